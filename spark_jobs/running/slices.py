"""Size of the steps of a bolt task, and the time between them.

A step should last some milliseconds: long enough to be worth its commit, short enough that
acks of finished tuples leave soon. So it is cut by the clock after a tuple, and its size
follows what fitted. Where each step costs something of its own, it may last in proportion.

The time of a step has two parts. That of its calls is measured, and put down to the tuples. The
rest (``flush``, the one call of an ``ArrowBolt``, packing) is split by comparing steps of two
sizes: its growth is put down to the tuples, and what remains to the step. Commits do not count.
"""

from __future__ import annotations

from collections.abc import Callable

# After this long no further tuple is begun; later where a step costs much itself, so that this
# takes one part in ten of the time.
_STEP_S = 0.02
_TIMES = 9
_LONGEST_STEP_S = 0.5
_FIRST = 64
_LARGEST = 8_000
# Steps of a task to which several chunks come at a time begin no sooner: chunks that come
# meanwhile share one commit. Where each comes alone it would wait for nothing.
_BETWEEN_S = 0.01
_LONGEST_BETWEEN_S = 0.05
_ALONE = 1
# Commits take one part in this many of a task's time, where nothing waits: on a busy machine
# steps are larger.
_OF_THE_TIME = 3
# Part of a step's time per tuple by which a quicker one lowers the expected time of the next.
_NEWS = 0.25
# Sizes of steps are told apart from this factor on.
_ANOTHER_SIZE = 1.5
# Full steps after which a larger claim is tried that should not fit: at first, and in the end.
_FIRST_TRY = 4
_RAREST_TRY = 256
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
        # Tuples beyond these that are worth a longer step, if the line has as many for each task.
        self.worthwhile = 0
        # Time of one tuple as it is to be expected: a slow one counts at once, quick ones in time.
        self._tuple_s = 0.0
        self._rest = _Rest()
        self._longest_s = _STEP_S
        self._try_after = self._until_try = _FIRST_TRY

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
        """A step begins. Its tuples are not executed yet: their data is fetched before."""
        self.asked_at = self._began = self._clock()
        self._work_began = None

    def may(self) -> bool:
        """Return True if the step goes on with another tuple.

        Ask before each, also before the first, and once more after the last.
        """
        self.asked_at = now = self._clock()
        if self._work_began is None:
            self._work_began = now
        return now - self._work_began < self._longest_s

    def ended(self, executed: int, offered: int) -> None:
        """The bolt executed this many of the offered tuples.

        The commit comes after this.
        """
        self._executed = self._clock()
        began = self._began if self._work_began is None else self._work_began
        took_s = self._executed - began
        if executed:
            # Of a bolt that is not asked for each tuple all of it is the rest.
            rest_s = self._executed - max(began, self.asked_at)
            self._rest.saw(executed, rest_s)
            self._learn(executed, (took_s - rest_s) / executed)
        longest_s = self._longest_s + self._rest.step_s
        if took_s > 2 * longest_s and not self._can_be_cut:
            self.size = max(1, executed // 2)
        elif executed < offered:
            self.size = max(1, executed)
        elif executed >= self.size and took_s <= longest_s:
            self.size = min(2 * self.size, _LARGEST)
        self.size = max(self.size, self.claimable + self.worthwhile)

    def _learn(self, executed: int, tuple_s: float) -> None:
        self._tuple_s = max(tuple_s, self._tuple_s + _NEWS * (tuple_s - self._tuple_s))
        expected_s = self._tuple_s + self._rest.tuple_s
        self._longest_s = min(max(_STEP_S, _TIMES * self._rest.step_s), _LONGEST_STEP_S)
        before = self.claimable + self.worthwhile
        full = executed >= before
        most = min(_fitting(self._longest_s, expected_s), 2 * before if full else before)
        self.claimable = min(most, _fitting(_STEP_S, expected_s))
        if full:
            most = self._tried(before, most)
        self.worthwhile = most - self.claimable

    def _tried(self, before: int, most: int) -> int:
        """Return how many to claim after a full step: now and then twice as many as should fit,
        for the rest may be the step's and not theirs. Never of calls that are slow themselves.
        """
        if most > before:
            self._try_after = self._until_try = _FIRST_TRY
        elif 2 * most <= _fitting(self._longest_s, self._tuple_s):
            self._until_try -= 1
            if self._until_try <= 0:
                self._try_after = min(2 * self._try_after, _RAREST_TRY)
                self._until_try = self._try_after
                return 2 * most
        return most

    def committed(self) -> None:
        """The step has left."""
        self._spacing.took(self._clock() - self._executed)


class _Rest:
    """Time of a step beyond its calls: a part of the step's, and a part for each tuple."""

    def __init__(self) -> None:
        self.step_s = 0.0
        self.tuple_s = 0.0
        # The size and the time of the last steps of about one size, and of those before them.
        self._now = self._before = (0.0, 0.0)

    def saw(self, tuples: int, seconds: float) -> None:
        size, mean_s = self._now
        expected_s = self.step_s + self.tuple_s * tuples
        if seconds > 2 * expected_s and tuples < max(size, self._before[0]):
            # The work has changed, and may be slow now: nothing is known but the mean.
            self._before, self._now = (0.0, 0.0), (float(tuples), seconds)
        elif size / _ANOTHER_SIZE <= tuples <= size * _ANOTHER_SIZE:
            size += _NEWS * (tuples - size)
            mean_s += _NEWS * (seconds - mean_s)
            self._now = size, mean_s
        else:
            self._before, self._now = self._now, (float(tuples), seconds)
        self._split()

    def _split(self) -> None:
        (size, seconds), (other, others_s) = self._now, self._before
        # Sizes that have come near to each other say nothing new.
        if abs(size - other) * 4 > size:
            self.tuple_s = max(0.0, min(seconds / size, (seconds - others_s) / (size - other)))
        self.step_s = max(0.0, seconds - self.tuple_s * size)


def _fitting(seconds: float, tuple_s: float) -> int:
    """Return how many tuples of this time are executed within the seconds; one at least."""
    return max(1, min(int(seconds / tuple_s), _LARGEST)) if tuple_s else _LARGEST


class Spacing:
    """Times between beginnings, in seconds. They follow what each of them costs.

    So a busy machine, on which everything takes longer, is asked for larger pieces and not
    for more of them.
    """

    def __init__(self, *, times: float, longest_s: float) -> None:
        """``times`` as long as the costs are, and ``longest_s`` at most."""
        self._times = times
        self._longest_s = longest_s
        self._cost_s = 0.0

    def took(self, seconds: float) -> None:
        """One of them cost so much. What a moment of trouble took counts little."""
        self._cost_s += (min(seconds, self._longest_s) - self._cost_s) / 8

    def between_s(self, least_s: float) -> float:
        """Time from one beginning to the next, ``least_s`` at least."""
        return min(max(least_s, self._times * self._cost_s), self._longest_s)
