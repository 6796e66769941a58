"""Which topologies and queues there are, so that commands need not be told."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass

from acker.redis_client import connect
from acker.redis_errors import translated
from queues import QueueSpout
from spark_jobs.topology import Topology
from workers.errors import UsageError
from workers.monitoring.graph import Graph, graph_of, pack_graph, unpack_graph

_QUEUES = "tiercel:queues"
"""A hash: queue name to topology name."""
_TOPOLOGIES = "tiercel:topologies"
"""A hash: topology name to what a command must know of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TopologyNote:
    """What a command knows of a topology."""

    name: str
    spout_tasks: int
    """Their ids are 1 .. this."""
    message_timeout_secs: float
    graph: Graph


class Registry:
    """Remembered by the processes as they start; best effort. Raises LedgerUnavailableError, LedgerRefusedError."""

    def __init__(self, redis_url: str) -> None:
        # Of the whole server, and not of a topology: in a cluster they may be on two.
        self._queues, self._topologies = connect(redis_url, _QUEUES), connect(redis_url, _TOPOLOGIES)

    def announce(self, topology: Topology) -> None:
        """There is this topology, with these queues. Idempotent."""
        note = json.dumps([topology.spout_tasks, topology.config.message_timeout_secs, pack_graph(graph_of(topology))])
        queues = [spec.spout.queue.name for spec in topology.spouts.values() if isinstance(spec.spout, QueueSpout)]
        with translated("note the topology"):
            self._topologies.hset(_TOPOLOGIES, topology.name, note)
            if queues:
                self._queues.hset(_QUEUES, mapping=dict.fromkeys(queues, topology.name))

    def topologies(self) -> dict[str, TopologyNote]:
        """The topologies that ran here, in the order of their names."""
        with translated("look up the topologies"):
            known: dict[bytes, bytes] = self._topologies.hgetall(_TOPOLOGIES)  # type: ignore[assignment]
        return {name.decode(): _note(name.decode(), said) for name, said in sorted(known.items())}

    def queues(self) -> dict[str, str]:
        """Queue name to topology name."""
        with translated("look up the queues"):
            known: dict[bytes, bytes] = self._queues.hgetall(_QUEUES)  # type: ignore[assignment]
        return {queue.decode(): topology.decode() for queue, topology in sorted(known.items())}

    def close(self) -> None:
        """Release the connections. Idempotent."""
        self._queues.close()
        self._topologies.close()


def known_topologies(redis_url: str) -> dict[str, TopologyNote]:
    """The topologies that ran here, in the order of their names; maybe none. Raises LedgerUnavailableError."""
    with closing(Registry(redis_url)) as registry:
        return registry.topologies()


def topologies_that_ran(redis_url: str) -> dict[str, TopologyNote]:
    """All that are known, in the order of their names. Raises UsageError if there is none, LedgerUnavailableError."""
    known = known_topologies(redis_url)
    if not known:
        raise UsageError("no topology has run here yet: start one, or name another Redis with --redis")
    return known


def topology_named(redis_url: str, name: str) -> TopologyNote:
    """What is known about a topology that ran. Raises UsageError if there is none of this name, LedgerUnavailableError."""
    known = known_topologies(redis_url)
    if name not in known:
        there = f"there are {', '.join(known)}" if known else "none has run here yet"
        raise UsageError(f"there is no topology {name!r}; {there}")
    return known[name]


def _note(name: str, said: bytes) -> TopologyNote:
    spout_tasks, message_timeout_secs, graph = json.loads(said)
    return TopologyNote(
        name=name, spout_tasks=spout_tasks, message_timeout_secs=message_timeout_secs, graph=unpack_graph(graph)
    )
