"""Size of the steps of a bolt task, and the time between them.

A step should last some milliseconds: long enough to be worth its commit, short enough that
the acks of what is done leave soon. So it is cut by the clock after a tuple, and its size
follows what fitted.
"""

from __future__ import annotations

from collections.abc import Callable

from tiercel.spark_jobs.running.spacing import Spacing

# After this long no further tuple is begun.
_STEP_S = 0.02
_FIRST = 64
_LARGEST = 8_000
# Steps of a task to which several chunks come at a time begin no sooner: what comes meanwhile
# shares one commit. Where each comes alone it would wait for nothing.
_BETWEEN_S = 0.01
_LONGEST_BETWEEN_S = 0.05
_ALONE = 1
# Commits take one part in so many of a task's time, where nothing waits: on a busy machine
# steps are larger.
_OF_THE_TIME = 3
# Part of a step's time per tuple by which a quicker one lowers what is expected of the next.
_NEWS = 0.25
# An inbox that was empty is not looked at again sooner, while there is other work.
_LOOK_S = 0.01


class Slices:
    """Of one bolt task. Times are seconds on the caller's clock."""

    def __init__(self, clock: Callable[[], float], *, arrow: bool) -> None:
        """A step of an ``ArrowBolt`` cannot be cut: its size alone bounds it."""
        self._clock = clock
        self._can_be_cut = not arrow
        # Tuples that the next step may take.
        self.size = _FIRST
        self._began = self._executed = clock()
        self._work_began: float | None = None
        # The last time at which it was asked whether the step goes on, or began.
        self.asked_at = self._began
        self._look_at = self._began
        self._spacing = Spacing(times=_OF_THE_TIME, longest_s=_LONGEST_BETWEEN_S)
        self._least_s = 0.0
        # Tuples that the task can execute now, within one step. Of unknown work no more than one:
        # others may be free.
        self.claimable = 1
        # Time of one tuple as it is to be expected: a slow one counts at once, quick ones in time.
        self._tuple_s = 0.0

    def wanted(self, waiting: int) -> int:
        """Return how many tuples to take from the inbox, where this many wait already; 0: none."""
        if not waiting:
            return 2 * self.size
        if waiting >= self.size or self._clock() < self._look_at:
            return 0
        return 2 * self.size - waiting

    def rest_s(self) -> float:
        """Return how long to wait before looking into an empty inbox: until the next step may
        begin.
        """
        return max(0.0, self._began + self._spacing.between_s(self._least_s) - self._clock())

    def took(self, entries: int) -> None:
        """The inbox had this many entries for us."""
        if not entries:
            self._look_at = self._clock() + _LOOK_S
        else:
            self._least_s = _BETWEEN_S if entries > _ALONE else 0.0

    def begin(self) -> None:
        """A step begins. Its tuples are not executed yet: what they need is fetched before."""
        self.asked_at = self._began = self._clock()
        self._work_began = None

    def may(self) -> bool:
        """Return True if the step goes on with another tuple.

        Ask before each, also before the first.
        """
        self.asked_at = now = self._clock()
        if self._work_began is None:
            self._work_began = now
        return now - self._work_began < _STEP_S

    def ended(self, executed: int, offered: int) -> None:
        """The bolt executed so many of the tuples that it was offered.

        The commit comes after this.
        """
        self._executed = self._clock()
        took_s = self._executed - (self._work_began or self._began)
        if took_s > 2 * _STEP_S and not self._can_be_cut:
            self.size = max(1, executed // 2)
        elif executed < offered:
            self.size = max(1, executed)
        elif executed >= self.size and took_s <= _STEP_S:
            self.size = min(2 * self.size, _LARGEST)
        if executed:
            self._learn(executed, took_s / executed)

    def _learn(self, executed: int, tuple_s: float) -> None:
        self._tuple_s = max(tuple_s, self._tuple_s + _NEWS * (tuple_s - self._tuple_s))
        fit = int(_STEP_S / self._tuple_s) if self._tuple_s else _LARGEST
        most = 2 * self.claimable if executed >= self.claimable else self.claimable
        self.claimable = max(1, min(most, fit, _LARGEST))
        self.size = max(self.size, self.claimable)

    def committed(self) -> None:
        """The step has left."""
        self._spacing.took(self._clock() - self._executed)
