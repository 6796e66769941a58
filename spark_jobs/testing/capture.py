"""How the kit sees what components emit: one more bolt, as in Storm's own kit, receives a copy of every stream.

Its chunks are read on their way. They hold what really left a task: what a ``BasicBolt`` emitted for a tuple that failed
is not among them. A direct stream names its receivers itself, so there the chunks of those are read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from queues.chunk import Route, decode
from spark_jobs.bolt import BasicBolt, TopologyContext
from spark_jobs.collector import BasicCollector
from spark_jobs.grouping import Global
from spark_jobs.levels import Plan
from spark_jobs.system import is_system
from spark_jobs.topology import BoltSpec, Subscription, Topology
from spark_jobs.tuples import Tuple

CAPTURE = "__capture"


class _Capture(BasicBolt):
    """Acks whatever comes."""

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class _Watched(Topology):
    """The user's topology and the capturing bolt, of which components are not told."""

    shown_name: str
    """An engine may give it a name of its own, of which components are not told either."""

    def context_of(self, task_id: int) -> TopologyContext:
        context = super().context_of(task_id)
        targets = {stream: [bolt for bolt in bolts if bolt != CAPTURE] for stream, bolts in context.targets.items()}
        tasks = {bolt: ids for bolt, ids in context.tasks.items() if bolt != CAPTURE}
        return replace(context, topology=self.shown_name, targets=targets, tasks=tasks)


def watched(topology: Topology) -> Topology:
    """The topology with the capturing bolt; the ids of its own tasks stay what they were."""
    subscriptions = tuple(
        Subscription(component=component, stream=stream, grouping=Global())
        for component in (*topology.spouts, *topology.bolts)
        for stream in topology.spec(component).streams
        if stream not in topology.spec(component).direct
    )
    capture = BoltSpec(bolt=_Capture(), parallelism=1, overrides={}, streams={}, subscriptions=subscriptions)
    return _Watched(
        name=topology.name,
        shown_name=topology.name,
        config=topology.config,
        spouts=topology.spouts,
        bolts={**topology.bolts, CAPTURE: capture},
    )


def is_watched(plan: Plan, level: int, payload: bytes) -> bool:
    """Whether a chunk that is given to ``level`` shows what a component emitted: each tuple once, where it arrives."""
    route = decode(payload).route
    place = plan.places[route.target_task]
    if place.level != level:
        return False
    return place.component == CAPTURE or _is_direct(plan.topology, route)


def _is_direct(topology: Topology, route: Route) -> bool:
    return not is_system(route.component) and route.stream in topology.spec(route.component).direct


class Seen:
    """What each stream carried so far."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], list[list[Any]]] = defaultdict(list)

    def look(self, payloads: Iterable[bytes]) -> None:
        """Look at the watched chunks of one micro-batch."""
        # Where Spark shuffles, chunks arrive in any order.
        for chunk in sorted(map(decode, payloads), key=lambda chunk: chunk.route.source_task):
            route, columns = chunk.route, [column.to_pylist() for column in chunk.values.columns]
            self._values[route.component, route.stream] += [list(values) for values in zip(*columns, strict=True)]

    def of(self, component: str, stream: str) -> list[list[Any]]:
        """Copies: a test may change them."""
        return [list(values) for values in self._values[component, stream]]
