"""Reads what arrives at a bolt task, and tells what this topology cannot have written."""

from __future__ import annotations

import logging

from queues.chunk import Chunk, decode
from queues.errors import BadChunkError
from spark_jobs.levels import Plan
from spark_jobs.running.arrivals import schema_of

log = logging.getLogger(__name__)


def arrival(payload: bytes, plan: Plan, level: int) -> tuple[Chunk | None, list[int]]:
    """The chunk, if this topology can have written it for ``level`` or a later one; else None, and the roots to release.

    A chunk that cannot be read has no roots: its messages time out. One of another version of the topology has. Either is one
    line in the log, and harms nothing but itself.
    """
    try:
        chunk = decode(payload)
    except BadChunkError as error:
        log.warning(
            "passing over %d bytes: %s; whatever was in them times out and is delivered again", len(payload), error,
            extra={"event": "chunk_unreadable"},
        )  # fmt: skip
        return None, []
    route = chunk.route
    known = schema_of(route, plan.topology)
    place = plan.places.get(route.target_task)
    if place is not None and place.level >= level and known is not None and chunk.values.schema.equals(known.arrow):
        return chunk, []
    log.warning(
        "passing over %d tuples of stream %.50r of %.50r to task %d, which this version of the topology does not have; their"
        " messages are delivered again", chunk.values.num_rows, route.stream, route.component, route.target_task,
        extra={"event": "chunk_foreign"},
    )  # fmt: skip
    return None, [int(root) for root in dict.fromkeys(chunk.lineage.roots.tolist())]
