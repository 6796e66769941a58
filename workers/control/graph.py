"""A topology without the user's code, which its processes publish for monitors. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from tiercel.acker.inbox.chunk import line_of
from tiercel.queues.queue_spout import QueueSpout
from tiercel.spark_jobs.bolts.queue_sink import QueueSink
from tiercel.spark_jobs.topology.graph import Topology

# Far above any real topology, because a monitor holds this many connections and keys in memory.
_MOST_SHARDS = 4_096
_MOST_TASKS = 1 << 31


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """A spout or a bolt."""

    name: str
    # Their ids.
    tasks: tuple[int, ...]
    # The queue that a ``QueueSpout`` reads, or that a ``QueueSink`` publishes to.
    queue: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Edge:
    """A bolt's subscription to a stream."""

    source: str
    stream: str
    target: str
    grouping: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Graph:
    """The components and edges of a topology."""

    spouts: tuple[Component, ...]
    bolts: tuple[Component, ...]
    edges: tuple[Edge, ...]
    # Shards of its ledger; 0: nothing is tracked.
    shards: int

    @property
    def bolt_tasks(self) -> list[int]:
        """The ids of all bolt tasks."""
        return [task for bolt in self.bolts for task in bolt.tasks]

    @property
    def inboxes(self) -> list[int]:
        """The ids of all inboxes: of bolt tasks, and of the lines that some tasks share."""
        return [
            *self.bolt_tasks,
            *(line_of(bolt.tasks) for bolt in self.bolts if len(bolt.tasks) > 1),
        ]

    @property
    def queues(self) -> list[str]:
        """The queues that it reads, each once."""
        return list(dict.fromkeys(spout.queue for spout in self.spouts if spout.queue is not None))

    @property
    def sinks(self) -> list[str]:
        """The queues that it publishes to and does not read, each once."""
        known = dict.fromkeys(bolt.queue for bolt in self.bolts if bolt.queue is not None)
        return [queue for queue in known if queue not in self.queues]


def graph_of(topology: Topology) -> Graph:
    """Return the graph of a topology, to be published."""
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
        bolts=tuple(
            Component(name=name, tasks=tuple(topology.task_ids(name)), queue=_sink(spec.bolt))
            for name, spec in topology.bolts.items()
        ),
        edges=tuple(edges),
        shards=topology.config.ackers,
    )


def _sink(bolt: object) -> str | None:
    """Return the queue of a sink; None if each tuple names its queue, or an exchange routes it."""
    return bolt.queue if isinstance(bolt, QueueSink) and isinstance(bolt.queue, str) else None


def pack_graph(graph: Graph) -> dict[str, Any]:
    """Return the graph as JSON values."""
    return asdict(graph)


def unpack_graph(packed: object) -> Graph:
    """Return the graph that ``pack_graph`` packed.

    Raises ValueError or TypeError for anything else, such as a newer version's graph.
    """
    whole = _members(packed, Graph, "the graph")
    graph = Graph(
        spouts=_components(whole["spouts"]),
        bolts=_components(whole["bolts"]),
        edges=tuple(_edge(each) for each in _list(whole["edges"], "edges")),
        shards=_whole(whole["shards"], "shards", most=_MOST_SHARDS),
    )
    _check_edges(graph)
    return graph


def _components(packed: object) -> tuple[Component, ...]:
    found = []
    for each in _list(packed, "components"):
        said = _members(each, Component, "a component")
        tasks = tuple(
            _whole(task, "a task", most=_MOST_TASKS) for task in _list(said["tasks"], "tasks")
        )
        queue = None if said["queue"] is None else _text(said["queue"], "a queue")
        found.append(Component(name=_text(said["name"], "a component"), tasks=tasks, queue=queue))
    return tuple(found)


def _edge(packed: object) -> Edge:
    return Edge(
        **{name: _text(value, name) for name, value in _members(packed, Edge, "an edge").items()}
    )


def _check_edges(graph: Graph) -> None:
    bolts = {bolt.name for bolt in graph.bolts}
    known = bolts | {spout.name for spout in graph.spouts}
    if len(known) != len(graph.spouts) + len(graph.bolts):
        raise ValueError("two components have one name")
    for edge in graph.edges:
        if edge.source not in known or edge.target not in bolts:
            raise ValueError(
                f"an edge goes from {edge.source!r:.50} to {edge.target!r:.50}, which are not "
                "both there"
            )


def _members(packed: object, kind: type[Any], what: str) -> Mapping[str, Any]:
    names = {each.name for each in fields(kind)}
    if not isinstance(packed, dict) or packed.keys() != names:
        found = (
            sorted(map(str, packed.keys() ^ names))
            if isinstance(packed, dict)
            else [type(packed).__name__]
        )
        raise ValueError(
            f"{what} has other members than this version of tiercel writes "
            f"({', '.join(found)[:100]})"
        )
    return packed


def _list(packed: object, what: str) -> list[Any]:
    if not isinstance(packed, list):
        raise TypeError(f"{what}: not a list")
    return packed


def _text(packed: object, what: str) -> str:
    if not isinstance(packed, str):
        raise TypeError(f"the name of {what} is no text")
    packed.encode()  # half a surrogate pair cannot be shown, which is a ValueError too
    return packed


def _whole(packed: object, what: str, *, most: int) -> int:
    if not isinstance(packed, int) or isinstance(packed, bool) or not 0 <= packed <= most:
        raise ValueError(f"{what} is not a number from 0 to {most:,}")
    return packed
