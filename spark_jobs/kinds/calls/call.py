"""One tuple under way, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tiercel.acker.inbox.chunk import Chunk, Lineage
from tiercel.spark_jobs.bolts.tuples import Tuple, tuples_of
from tiercel.spark_jobs.emitting.fold import row_seeds


@dataclass(frozen=True, slots=True)
class CallEmission:
    """One emission, as the bolt gave it."""

    values: tuple[Any, ...]
    stream: str
    # Of a direct stream: the receiver.
    task: int | None = None


@dataclass(eq=False, kw_only=True, slots=True)
class Call:
    """One call of ``execute``. Its outcome belongs to the caller's threads until it has ended."""

    tup: Tuple
    # Of the chunk that has the tuple, whose row there is ``tup.row``; None: the step has it.
    lineage: Lineage | None = None
    # Position of that chunk in the inbox; None: the task's own tick, or a call within a step.
    position: str | None = None
    # In the order of arrival, from 1 on; given by the flight.
    number: int = 0
    emissions: list[CallEmission] = field(default_factory=list)
    # Reported by the bolt, without effect on the tuple.
    reports: list[BaseException | str] = field(default_factory=list)
    # Raised by it.
    error: BaseException | None = None
    # Bytes that it has emitted.
    size: int = 0
    took_ns: int = 0
    ended: bool = False


def calls_of(chunk: Chunk, rows: Sequence[int], position: str) -> list[Call]:
    """Return a call for each of these rows of a chunk."""
    lineage = chunk.lineage
    tuples = tuples_of(chunk, 0, row_seeds(lineage).tolist())
    return [Call(tup=tuples[row], lineage=lineage, position=position) for row in rows]


def rows_of(calls: Sequence[Call]) -> dict[str, list[int]]:
    """Return the rows of each position, in the order of the calls."""
    rows: dict[str, list[int]] = {}
    for call in calls:
        rows.setdefault(call.position or "", []).append(call.tup.row)
    return rows
