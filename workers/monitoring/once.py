"""Rows about messages that are to take effect once: which components came upon what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tiercel.acker.metrics.windows import total_of
from tiercel.queues.queue_spout import NO_IDENTITY
from tiercel.spark_jobs.running.counts import ONCE_REPEATED, ONCE_UNKEYED, ONCE_UNSURE


@dataclass(frozen=True, kw_only=True, slots=True)
class OnceRow:
    """One spout or bolt in a window, which came upon any of these."""

    name: str
    # Messages of a spout that has an identity for them, without one.
    no_identity: int
    # Tuples of a bolt that were applied before.
    repeated: int
    # Tuples of a bolt that have no key.
    unkeyed: int
    # Tuples of a bolt that are remembered now.
    remembered: int
    # Tuples of a bolt that may have been applied before what is remembered.
    unsure: int


def once_rows(
    names: Iterable[str],
    counts: Mapping[str, Mapping[int, Mapping[str, int]]],
    marks: Mapping[str, int],
) -> tuple[OnceRow, ...]:
    """The rows of these components, without those that remember and came upon nothing; ``marks``
    are how many tuples each remembers.
    """
    rows = []
    for name in names:
        total = total_of(counts, name)
        met = any(total[one] for one in (NO_IDENTITY, ONCE_REPEATED, ONCE_UNKEYED, ONCE_UNSURE))
        if met or marks.get(name):
            rows.append(
                OnceRow(
                    name=name,
                    no_identity=total[NO_IDENTITY],
                    repeated=total[ONCE_REPEATED],
                    unkeyed=total[ONCE_UNKEYED],
                    remembered=marks.get(name, 0),
                    unsure=total[ONCE_UNSURE],
                )
            )
    return tuple(rows)
