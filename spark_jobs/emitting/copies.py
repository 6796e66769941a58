"""Numbers of copies: where one emission goes to several tasks of one bolt, keys differ by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tiercel.acker.inbox.chunk import Rows
from tiercel.acker.ledger import Ids
from tiercel.spark_jobs.emitting.outputs import TaskOutput


def copy_numbers(chosen: Sequence[TaskOutput]) -> list[int]:
    """The number of each copy of one emission among those for its bolt, in the upper half of 64
    bits: keys of copies differ by it.

    By task, so that the order in which a grouping names them makes no difference.
    """
    found = [0] * len(chosen)
    seen: dict[str, int] = {}
    for at in sorted(range(len(chosen)), key=lambda at: chosen[at].target):
        bolt = chosen[at].bolt
        number = seen.get(bolt, 0)
        seen[bolt] = number + 1
        found[at] = number << 32
    return found


def copy_numbers_of(tasks: Mapping[int, Rows]) -> dict[int, Ids]:
    """``copy_numbers`` of emissions to tasks of one bolt, for each its rows; empty if none has
    several copies.
    """
    parts = [rows for rows in tasks.values() if len(rows)]
    most = 1 + max([int(rows[-1]) for rows in parts], default=0)
    if len(parts) <= 1 or sum(map(len, parts)) <= np.unique(np.concatenate(parts)).size:
        return {}
    seen = np.zeros(most, np.uint64)
    numbers = {}
    for task in sorted(tasks):
        numbers[task] = seen[tasks[task]]
        seen[tasks[task]] += np.uint64(1 << 32)
    return numbers
