"""The registry of topologies for commands, and the graph of a topology without the
user's code, which its processes publish there for monitors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import islice, product
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, StrictStr, TypeAdapter, ValidationError

from tiercel.acker.layout import LedgerSpec, shard_prefix, topology_prefix
from tiercel.acker.redis.clients import connect
from tiercel.acker.redis.errors import translated
from tiercel.workers.control.contract import Unreadable
from tiercel.workers.errors import UsageError

# Commands that only talk to Redis load neither NumPy nor Arrow nor RabbitMQ's client.
if TYPE_CHECKING:
    from tiercel.spark_jobs.topology.graph import Topology

# Far above any real topology: a monitor keeps this many connections and keys in memory.
_Shards = Annotated[int, Field(strict=True, ge=0, le=4_096)]
_AtOnce = Annotated[int, Field(strict=True, ge=1, le=1 << 31)]
_Task = Annotated[int, Field(strict=True, ge=0, le=1 << 31)]
_AS_WRITTEN = ConfigDict(extra="forbid")


def _encodable(text: str) -> str:
    text.encode()  # raises ValueError for half a surrogate pair, which cannot be shown
    return text


_Text = Annotated[StrictStr, AfterValidator(_encodable)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """A spout or a bolt."""

    __pydantic_config__ = _AS_WRITTEN
    name: _Text
    # The ids of its tasks.
    tasks: tuple[_Task, ...]
    # The queue that a ``QueueSpout`` reads, or that a ``QueueSink`` publishes to.
    queue: _Text | None = None
    # Tuples that each of its tasks executes at once; of a spout it says nothing.
    at_once: _AtOnce = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Edge:
    """A bolt's subscription to a stream."""

    __pydantic_config__ = _AS_WRITTEN
    source: _Text
    stream: _Text
    target: _Text
    grouping: _Text


@dataclass(frozen=True, kw_only=True, slots=True)
class Graph:
    """The components and edges of a topology."""

    __pydantic_config__ = _AS_WRITTEN
    spouts: tuple[Component, ...]
    bolts: tuple[Component, ...]
    edges: tuple[Edge, ...]
    # Number of shards of its ledger; 0: nothing is tracked.
    shards: _Shards

    @property
    def bolt_tasks(self) -> list[int]:
        """The ids of all bolt tasks."""
        return [task for bolt in self.bolts for task in bolt.tasks]

    @property
    def queues(self) -> list[str]:
        """The queues that the topology reads, each once."""
        return list(dict.fromkeys(spout.queue for spout in self.spouts if spout.queue is not None))

    @property
    def sinks(self) -> list[str]:
        """The queues that the topology publishes to and does not read, each once."""
        known = dict.fromkeys(bolt.queue for bolt in self.bolts if bolt.queue is not None)
        return [queue for queue in known if queue not in self.queues]


def graph_of(topology: Topology) -> Graph:
    """Return the graph of a topology."""
    # In a process that has a topology they are loaded; elsewhere they cost 0.3 s.
    from tiercel.queues.queue_spout import QueueSpout  # noqa: PLC0415
    from tiercel.spark_jobs.topology.bolt_settings import at_once_of  # noqa: PLC0415

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
            Component(
                name=name,
                tasks=tuple(topology.task_ids(name)),
                queue=_sink(spec.bolt),
                at_once=at_once_of(spec),
            )
            for name, spec in topology.bolts.items()
        ),
        edges=tuple(edges),
        shards=topology.config.ackers,
    )


def _sink(bolt: object) -> str | None:
    """Return the queue of a sink; None if tuples name their queues, or an exchange routes them."""
    from tiercel.spark_jobs.bolts.queue_sink import QueueSink  # noqa: PLC0415 - as above

    return bolt.queue if isinstance(bolt, QueueSink) and isinstance(bolt.queue, str) else None


# Keys per call that removes them.
_AT_ONCE = 1_000
_TAGS = 128
_GRAPH = TypeAdapter(Graph)
_OTHER_MEMBERS = ("missing", "unexpected_keyword_argument", "dataclass_type")


def unpack_graph(packed: object) -> Graph:
    """Return the graph that ``asdict`` and JSON have packed.

    Raises ValueError for anything else, such as a newer version's graph.
    """
    try:
        graph = _GRAPH.validate_python(packed)
    except ValidationError as error:
        raise ValueError(_misfit(error)) from None
    _check_edges(graph)
    return graph


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


def _misfit(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    *place, name = ("the graph", *map(str, first["loc"] or ("no object",)))
    if first["type"] not in _OTHER_MEMBERS:
        return f"{' '.join([*place, name])}: {first['msg']}"
    return f"{' '.join(place)} has other members than this version of tiercel writes ({name[:100]})"


# A hash: topology name to its note.
_TOPOLOGIES = "tiercel:topologies"
# Raised by JSON that others wrote: RecursionError for thousands of brackets, OverflowError for an
# absurd timeout.
_STRANGE = (ValueError, TypeError, OverflowError, RecursionError)


@dataclass(frozen=True, kw_only=True, slots=True)
class TopologyNote:
    """A topology as commands know it."""

    name: str
    # The ids of its spout tasks are 1 to this number.
    spout_tasks: int
    message_timeout_secs: float
    graph: Graph
    # How long a message may be in flight: more than its timeout if a bolt takes long.
    in_flight_secs: float
    # False: messages never time out.
    times_out: bool

    def ledger_spec(self, redis_urls: tuple[str, ...]) -> LedgerSpec:
        """Return the location of the topology's ledger and states."""
        return LedgerSpec(
            topology=self.name,
            urls=redis_urls,
            shards=max(1, self.graph.shards),
            owners=max(1, self.spout_tasks),
            message_timeout=timedelta(seconds=self.message_timeout_secs),
        )


class Registry:
    """The notes that processes leave when they start; best effort.

    Raises RedisUnavailableError, RedisRefusedError.
    """

    def __init__(self, redis_url: str, patience: timedelta = timedelta(seconds=5)) -> None:
        """``patience`` is how long Redis may take for each of three tries."""
        self._topologies = connect(redis_url, _TOPOLOGIES, socket_timeout=patience)
        self._unreadable = Unreadable(
            "use the version of tiercel that wrote it, or start that topology again with this one"
        )

    def announce(self, topology: Topology) -> None:
        """Register the topology as the driver runs it. Idempotent."""
        with translated("note the topology", self._topologies):
            self._topologies.hset(_TOPOLOGIES, topology.name, _packed(topology))

    def announce_new(self, topology: Topology) -> None:
        """As ``announce``, but keep a driver's note, whose numbers an operator may have set."""
        with translated("note the topology", self._topologies):
            self._topologies.hsetnx(_TOPOLOGIES, topology.name, _packed(topology))

    def forget(self, name: str) -> bool:
        """Remove the note of a topology; False if there was none. Idempotent."""
        with translated("forget the topology", self._topologies):
            return bool(self._topologies.hdel(_TOPOLOGIES, name))

    def topologies(self) -> dict[str, TopologyNote]:
        """Return the topologies that ran here, sorted by name; skip unreadable notes."""
        with translated("look up the topologies", self._topologies):
            known: dict[bytes, bytes] = self._topologies.hgetall(_TOPOLOGIES)  # type: ignore[assignment]
        notes = {}
        for name, said in sorted(known.items()):
            try:
                note = _note(name.decode(), said)
            except _STRANGE as error:
                self._unreadable.pass_over(f"the note of topology {_shown(name)}", said, error)
            else:
                notes[note.name] = note
        return notes

    def close(self) -> None:
        """Release the connection. Idempotent."""
        self._topologies.close()


def known_topologies(redis_url: str, name: str | None = None) -> dict[str, TopologyNote]:
    """Return the topologies that ran here, sorted by name, or only the named one.

    Raises UsageError if there is none of this name, RedisUnavailableError.
    """
    with closing(Registry(redis_url)) as registry:
        known = registry.topologies()
    if name is None:
        return known
    if name not in known:
        there = f"there are {', '.join(known)}" if known else "none has run here yet"
        raise UsageError(f"there is no topology {name!r}; {there}")
    return {name: known[name]}


def remove_keys(redis_urls: Sequence[str], topology: str) -> int:
    """Remove all keys of a topology, found by a scan of all keys of its servers; return their
    number.

    Raises RedisUnavailableError, RedisRefusedError.
    """
    pattern = topology_prefix(topology).partition("}")[0]
    # In a cluster these hash tags are on all members.
    tags = [topology_prefix(topology), *(shard_prefix(topology, shard) for shard in range(_TAGS))]
    pools = []
    removed = 0
    for url, tag in product(redis_urls, tags):
        with connect(url, tag) as client, translated("forget the topology", client):
            if client.connection_pool in pools:
                continue
            pools.append(client.connection_pool)
            for rest in ("}:*", ":*}:*"):
                keys = client.scan_iter(f"{pattern}{rest}", count=_AT_ONCE)
                while some := list(islice(keys, _AT_ONCE)):
                    removed += _unlinked(client, some)
    return removed


def _unlinked(client: Any, keys: Sequence[bytes]) -> int:
    # One call per key, because keys in different slots of a cluster cannot share one.
    with client.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.unlink(key)
        return sum(pipeline.execute())


def topology_named(redis_url: str, name: str) -> TopologyNote:
    """Return the note of a topology that ran here. Raises as ``known_topologies``."""
    return known_topologies(redis_url, name)[name]


def _packed(topology: Topology) -> str:
    timeout_secs = topology.config.message_timeout_secs
    note = [topology.spout_tasks, timeout_secs, asdict(graph_of(topology))]
    times_out = topology.config.enable_message_timeouts
    if topology.in_flight_secs != timeout_secs or not times_out:
        note.append(topology.in_flight_secs)
    if not times_out:
        note.append(times_out)
    return json.dumps(note)


def _note(name: str, said: bytes) -> TopologyNote:
    """Parse a note. Raises one of ``_STRANGE`` unless this version's ``announce`` wrote it."""
    if not name or not name.isprintable():
        raise ValueError("no topology has such a name")
    spout_tasks, timeout_secs, packed, *more = json.loads(said, parse_constant=_no_number)
    graph = unpack_graph(packed)
    tasks = sorted(task for spout in graph.spouts for task in spout.tasks)
    if tasks != list(range(1, len(tasks) + 1)) or spout_tasks != len(tasks):
        raise ValueError("the tasks of its spouts do not count from 1")
    in_flight_secs, times_out = more + [timeout_secs, True][len(more) :]
    if not isinstance(times_out, bool):
        raise ValueError("it does not say whether messages time out")  # noqa: TRY004
    for seconds in (timeout_secs, in_flight_secs):
        if not isinstance(seconds, int | float) or timedelta(seconds=seconds) <= timedelta(0):
            raise ValueError("its message timeout is no number of seconds")
    return TopologyNote(
        name=name,
        spout_tasks=spout_tasks,
        message_timeout_secs=timeout_secs,
        graph=graph,
        in_flight_secs=in_flight_secs,
        times_out=times_out,
    )


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _shown(name: bytes) -> str:
    return repr(name[:50].decode(errors="backslashreplace"))
