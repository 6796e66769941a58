"""Begin and size of the steps of a ``BatchBolt``: a step is a batch, and a batch that is not full
waits for company.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tiercel.spark_jobs.running.slices import Slices
from tiercel.spark_jobs.topology.batching import Batching

# Between two looks into the inbox while a batch comes together: tuples that come one by one must
# not cost a round trip each.
_LOOK_S = 0.01


class BatchSlices(Slices):
    """``Slices`` of a task whose step is one batch."""

    def __init__(self, clock: Callable[[], float], batching: Batching) -> None:
        super().__init__(clock, arrow=True)
        self.size = batching.size
        self._wait_s = batching.wait_s
        # The tuples that wait, as (arrival, number) in their order.
        self._waiting: deque[tuple[float, int]] = deque()
        self._looked_at = self._arrival = clock()
        # True if there was a step since the last look into the inbox.
        self._worked = False

    def wanted(self, waiting: int) -> int:
        self._follow(waiting)
        return max(0, self.size - waiting)

    def patience_s(self, waiting: int, longest_s: float) -> float:
        """Return how long the look into the inbox may wait, where this many tuples wait already."""
        if waiting:
            return min(longest_s, self._left_s())
        # What came while the task was at work has waited already. A look that waits could not tell
        # it from what comes now.
        return 0.0 if self._worked else longest_s

    def rest_s(self) -> float:
        if not self._waiting:
            return 0.0
        return min(max(0.0, self._looked_at + _LOOK_S - self._clock()), self._left_s())

    def took(self, entries: int) -> None:  # noqa: ARG002 - others count them
        now = self._clock()
        # At the earliest: between the last look and this one it may have come at any time.
        self._arrival = self._looked_at if self._worked else now
        self._looked_at = now
        self._worked = False

    def allowed(self, waiting: int) -> int:
        """Return how many of the tuples that wait the next step may take; 0: none yet."""
        self._follow(waiting)
        return self.size if waiting >= self.size or not self._left_s() else 0

    def ended(self, executed: int, offered: int) -> None:  # noqa: ARG002 - the size stays
        self._executed = self._clock()
        self._worked = True

    def _left_s(self) -> float:
        """Time that the oldest tuple still waits; 0 where none does."""
        if not self._waiting:
            return 0.0
        left_s = self._waiting[0][0] + self._wait_s - self._clock()
        return left_s if left_s > 0 else 0.0

    def _follow(self, waiting: int) -> None:
        """Note what was executed since the last call, or has arrived with the last look."""
        known = sum(number for _, number in self._waiting)
        if waiting > known:
            self._waiting.append((self._arrival, waiting - known))
        gone = known - waiting
        while gone > 0:
            arrival, number = self._waiting.popleft()
            if number > gone:
                self._waiting.appendleft((arrival, number - gone))
            gone -= number
