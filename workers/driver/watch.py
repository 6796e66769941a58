"""Judgements on one run. Pure.

Which bolt tasks lack a process, how it ended, how long to wait for the next.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tiercel.acker.inbox.records import InboxFigures
from tiercel.workers.control.presence import UNATTENDED_S

# For the Spark tasks of a run, until each bolt task has been seen.
START_S = 60.0
# Spark has a new executor for one that was killed after three seconds, and after fifteen where the
# machine is busy. Till then only the tasks that it had stand; a new run would begin all anew.
_REPLACED_S = 20.0
# What waits for these tasks must not time out, which would blame its messages.
_REPLACED_PART = 2 / 3
# Looks in a row. When Redis stood still, or its clock jumped, one look finds each process gone for
# long, until it says again that it lives: within a second or two.
SURE_LOOKS = 4
# A run that lasted so long and had all its processes was no failure of the topology.
_HEALTHY_S = 30.0
_LONGEST_PAUSE_S = 10.0
_LONGEST_UNFIT_PAUSE_S = 30.0


class Ended(enum.Enum):
    """Reason for the end of a run."""

    STOPPED = "stopped"
    # Its Spark job ended by itself.
    FAILED = "failed"
    # Another driver or run has the topology, or Redis lost its memory.
    LOST = "lost"
    # An operator wants another one, on what Spark has now.
    REBALANCED = "rebalanced"
    # Bolt tasks had no process: too few slots, or executors that are gone.
    UNATTENDED = "unattended"
    # Executors could not start Python.
    UNFIT = "unfit"


@dataclass(frozen=True, kw_only=True, slots=True)
class Staffing:
    """Finds the bolt tasks that no process attends. Pure."""

    never: tuple[int, ...]
    lost: tuple[int, ...]

    @classmethod
    def of(cls, figures: Mapping[int, InboxFigures], lost_s: float) -> Staffing:
        """Of all bolt tasks of the run. One that was not seen for ``lost_s`` is lost."""
        never = tuple(task for task, one in figures.items() if one.seen_s is None)
        lost = tuple(
            task for task, one in figures.items() if one.seen_s is not None and one.seen_s > lost_s
        )
        return cls(never=never, lost=lost)

    def missing(self, age_s: float) -> tuple[int, ...]:
        """The tasks that should be attended by now, in a run that began so long ago."""
        return (*self.lost, *(self.never if age_s > START_S else ()))


def lost_s(message_timeout_s: float, *, is_planned: bool) -> float:
    """Return how long a task may be without a process; ``is_planned``: Spark waits for an executor
    to run it on.

    >>> lost_s(30.0, is_planned=False), lost_s(30.0, is_planned=True), lost_s(18.0, is_planned=True)
    (10.0, 20.0, 12.0)
    """
    if not is_planned:
        return UNATTENDED_S
    return max(UNATTENDED_S, min(_REPLACED_S, _REPLACED_PART * message_timeout_s))


class Absences:
    """The bolt tasks that look after look finds without a process."""

    def __init__(self) -> None:
        self._looks: Counter[int] = Counter()

    def looked(self, missing: Sequence[int]) -> tuple[int, ...]:
        """Take one look's tasks without a process; return those that are surely without."""
        self._looks = Counter({task: self._looks[task] + 1 for task in missing})
        return tuple(task for task in missing if self._looks[task] >= SURE_LOOKS)


def healthy(ended: Ended, lasted_s: float) -> bool:
    """Return True if the pauses between runs begin anew after this one."""
    return ended is Ended.REBALANCED or (ended is not Ended.UNATTENDED and lasted_s > _HEALTHY_S)


def pause_s(failures: int) -> float:
    """Return the pause before the next run, after so many in a row that were not healthy.

    >>> [pause_s(failures) for failures in (0, 1, 2, 3, 9)]
    [0.25, 0.5, 1.0, 2.0, 10.0]
    """
    return min(_LONGEST_PAUSE_S, _doubled(failures))


def unfit_pause_s(attempts: int) -> float:
    """Return the pause before executors are tried again that could not start Python.

    >>> [unfit_pause_s(attempts) for attempts in (1, 2, 3, 9)]
    [2.0, 4.0, 8.0, 30.0]
    """
    return min(_LONGEST_UNFIT_PAUSE_S, 4 * _doubled(attempts))


def _doubled(failures: int) -> float:
    doubled: float = 0.25 * 2 ** min(failures, 10)
    return doubled
