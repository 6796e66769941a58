"""Counts of one step of one bolt task. Pure.

emitted, transferred, executed, acked, failed   as in Storm
execute_ns    time in ``execute`` and ``flush``, all tuples together
process_ns    time from the beginning of ``execute`` to the ack, all acked tuples together
steps         steps that were committed
step_ns       time of these, from the first tuple to the end of the commit: what a full inbox makes
              wait is part of it
once_repeated, once_unkeyed, once_unsure
              of a bolt that is to be once: tuples that were applied before; that have no key; that
              may have been applied before what is remembered
from:[…]      executed, by the component and the stream that they came from: the edges of the
              topology's graph

The ledger counts as the bolt ``__acker``: executed are the updates of roots, acked the trees that
they completed, failed those that bolts failed, late what came for trees that were over, execute_ns
the time of the round trips that took them there.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

from tiercel.acker.inbox.chunk import Chunk
from tiercel.acker.ledger import Reply
from tiercel.spark_jobs.emitting.record import Record

# The counters of a bolt that is to be once.
ONCE_REPEATED = "once_repeated"
ONCE_UNKEYED = "once_unkeyed"
ONCE_UNSURE = "once_unsure"
ACKER = "__acker"
ACKER_TASK = 0
_FROM = "from:"


@cache
def edge_counter(component: str, stream: str) -> str:
    """The counter of the tuples that came from a stream."""
    return _FROM + json.dumps([component, stream])


def edge_of(counter: str) -> tuple[str, str] | None:
    """The component and the stream that a counter is about; None if it is about something else."""
    if not counter.startswith(_FROM):
        return None
    component, stream = json.loads(counter.removeprefix(_FROM))
    return component, stream


def sources_of(chunks: Sequence[Chunk]) -> Mapping[str, int]:
    """The counters of the edges that these chunks came over."""
    rows: Counter[str] = Counter()
    for chunk in chunks:
        rows[edge_counter(chunk.route.component, chunk.route.stream)] += chunk.values.num_rows
    return rows


def task_counts(record: Record, sources: Mapping[str, int], step_ns: int) -> dict[str, int]:
    """Count one step of a task."""
    counts = {
        "steps": 1,
        "step_ns": step_ns,
        "executed": record.executed,
        "emitted": record.emitted,
        "transferred": record.transferred,
        "acked": len(record.acked),
        "failed": len(record.reasons),
        "execute_ns": record.execute_ns,
        "process_ns": record.process_ns,
        **sources,
        **(record.raised if record.errors else {}),
        **(record.once.counts if record.once is not None else {}),
    }
    return {name: count for name, count in counts.items() if count}


def acker_counts(reply: Reply, roots: int, took_ns: int) -> dict[str, int]:
    """Count what one call of the ledger did with this many roots."""
    counts = {
        "executed": roots,
        "acked": reply.completed,
        "failed": reply.failed,
        "late": reply.late,
        "execute_ns": took_ns,
    }
    return {name: count for name, count in counts.items() if count}
