"""How the kit sees what components emit: one more bolt, as in Storm's own kit, receives a copy of every stream.

Its chunks are read on their way. They hold what really left a task: what a ``BasicBolt`` emitted for a tuple that failed
is not among them. A direct stream names its receivers itself, so there the chunks of those are read.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

from queues.chunk import decode
from spark_jobs.bolt import BasicBolt, TopologyContext
from spark_jobs.collector import BasicCollector
from spark_jobs.grouping import Global
from spark_jobs.levels import Plan
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

    def context_of(self, task_id: int) -> TopologyContext:
        context = super().context_of(task_id)
        targets = {stream: [bolt for bolt in bolts if bolt != CAPTURE] for stream, bolts in context.targets.items()}
        return replace(context, targets=targets, tasks={bolt: ids for bolt, ids in context.tasks.items() if bolt != CAPTURE})


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
        config=topology.config,
        spouts=topology.spouts,
        bolts={**topology.bolts, CAPTURE: capture},
    )


class Seen:
    """What each stream carried so far."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._values: dict[tuple[str, str], list[list[Any]]] = defaultdict(list)

    def look(self, level: int, payload: bytes) -> None:
        """Look at a chunk that is given to ``level``; each tuple is counted once, at the level where it arrives."""
        chunk = decode(payload)
        route = chunk.route
        place = self._plan.places[route.target_task]
        if place.level != level:
            return
        if place.component == CAPTURE or route.stream in self._plan.topology.spec(route.component).direct:
            columns = [column.to_pylist() for column in chunk.values.columns]
            self._values[route.component, route.stream] += [list(values) for values in zip(*columns, strict=True)]

    def of(self, component: str, stream: str) -> list[list[Any]]:
        """Copies: a test may change them."""
        return [list(values) for values in self._values[component, stream]]
