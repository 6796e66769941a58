"""Reads the inbox of a bolt task, and tells what this topology cannot have written."""

from __future__ import annotations

import logging
from contextlib import suppress

from tiercel.acker.errors import BadChunkError
from tiercel.acker.inbox.chunk import Chunk, Route, belongs_to, decode
from tiercel.acker.inbox.contract import Inboxes
from tiercel.queues.values.schema import Schema
from tiercel.spark_jobs.bolts.streams import SYSTEM, SYSTEM_STREAMS
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.spark_jobs.topology.placement import line_at

log = logging.getLogger(__name__)


def arrival(
    payload: bytes, topology: Topology, task: int, line: int | None = None
) -> tuple[Chunk | None, list[int]]:
    """Return the chunk if this topology can have written it for ``task``, or for its ``line``.

    Else None, and the roots to release.

    A chunk that cannot be read has no roots: its messages time out. One of another version of the
    topology has them. Either is one line in the log, and harms only itself.
    """
    try:
        chunk = decode(payload)
    except BadChunkError as error:
        log.warning(
            "task %d passes over %d bytes: %s; whatever was in them times out and is delivered "
            "again", task, len(payload),
            error, extra={"event": "chunk_unreadable"},
        )  # fmt: skip
        return None, []
    route = chunk.route
    known = schema_of(route, topology)
    if (
        route.target_task in (task, line)
        and known is not None
        and chunk.values.schema.equals(known.arrow)
    ):
        return chunk, []
    log.warning(
        "task %d passes over %d tuples of stream %.50r of %.50r, which this version of the topology"
        " does not send there; their messages are delivered again",
        task, chunk.values.num_rows, route.stream, route.component,
        extra={"event": "chunk_foreign"},
    )  # fmt: skip
    return None, [int(root) for root in dict.fromkeys(chunk.lineage.roots.tolist())]


def waiting_roots(inboxes: Inboxes, run: str, topology: Topology, task: int) -> set[int]:
    """The roots of what lies in one inbox and in its line, taken or not: of the first ten thousand
    tuples.

    Changes nothing.

    Raises StaleAttemptError, RedisUnavailableError.
    """
    roots: set[int] = set()
    line = line_at(topology, task)
    for owner, entries in inboxes.drain(run):
        is_mine = owner == task or (line is not None and belongs_to(owner, line))
        for entry in entries if is_mine else ():
            with suppress(BadChunkError):
                roots.update(decode(entry.payload).lineage.roots.tolist())
    return roots


def schema_of(route: Route, topology: Topology) -> Schema | None:
    """Return the schema of the stream that a chunk came on.

    None if the topology has no such stream.
    """
    if route.component == SYSTEM:
        return SYSTEM_STREAMS.get(route.stream)
    component = topology.spouts.get(route.component) or topology.bolts.get(route.component)
    return component.streams.get(route.stream) if component is not None else None
