"""A topology as monitors see it: what its processes publish when they start, so that nobody needs the user's code. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from queues import QueueSpout
from spark_jobs.levels import plan_topology
from spark_jobs.topology import Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """A spout or a bolt."""

    name: str
    tasks: tuple[int, ...]
    """Their ids."""
    queue: str | None = None
    """What a ``QueueSpout`` reads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Edge:
    """A bolt's subscription to a stream."""

    source: str
    stream: str
    target: str
    grouping: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Graph:
    """The whole of it."""

    spouts: tuple[Component, ...]
    bolts: tuple[Component, ...]
    edges: tuple[Edge, ...]
    shards: int
    """Of its ledger; 0: nothing is tracked."""
    relay_lanes: int

    @property
    def queues(self) -> list[str]:
        """The queues that it reads, each once."""
        return list(dict.fromkeys(spout.queue for spout in self.spouts if spout.queue is not None))


def graph_of(topology: Topology) -> Graph:
    """What is published of a topology."""
    spouts = [
        Component(
            name=name,
            tasks=tuple(topology.task_ids(name)),
            queue=spec.spout.queue.name if isinstance(spec.spout, QueueSpout) else None,
        )
        for name, spec in topology.spouts.items()
    ]
    edges = [
        Edge(source=each.component, stream=each.stream, target=bolt, grouping=each.grouping.name)
        for bolt, spec in topology.bolts.items()
        for each in spec.subscriptions
    ]
    return Graph(
        spouts=tuple(spouts),
        bolts=tuple(Component(name=name, tasks=tuple(topology.task_ids(name))) for name in topology.bolts),
        edges=tuple(edges),
        shards=topology.config.ackers,
        relay_lanes=plan_topology(topology, max_lanes=1).relay_lanes if topology.bolts else 0,
    )


def pack_graph(graph: Graph) -> dict[str, Any]:
    """As JSON writes it."""
    return asdict(graph)


def unpack_graph(packed: Mapping[str, Any]) -> Graph:
    """What ``pack_graph`` packed."""
    return Graph(
        spouts=_components(packed["spouts"]),
        bolts=_components(packed["bolts"]),
        edges=tuple(Edge(**each) for each in packed["edges"]),
        shards=packed["shards"],
        relay_lanes=packed["relay_lanes"],
    )


def _components(packed: Sequence[Mapping[str, Any]]) -> tuple[Component, ...]:
    return tuple(Component(name=each["name"], tasks=tuple(each["tasks"]), queue=each["queue"]) for each in packed)
