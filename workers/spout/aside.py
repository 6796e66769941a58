"""Room for tuples of other tasks, while part of what is in flight waits behind one
that takes long.
"""

from __future__ import annotations

from collections import deque

# A task that was kept from the processor for a moment is not stuck.
_STUCK_S = 0.2
# Where something was done lately that took such a part of the oldest tuple's age, tasks are
# slow, and not stuck.
_SLOW_PART = 0.25
# From the oldest tuple to the last that was emitted, so far at least came one that is done. Of two
# tasks one is stuck.
_PASSED_PART = 0.3
# Where messages are waiting a spout fills up what there is in less.
_CALM_S = 0.25
_LENT_S = 30.0


class Aside:
    """Decides how many may be in flight beyond the bound.

    One thread; times are seconds on one monotonic clock.

    What waits behind one long tuple in the inbox of its task would else fill the bound, and hold up
    what is for other tasks. Something is stuck where tuples passed the oldest one by until there
    was no room, and none that took nearly as long is done: in a task that is only slower than the
    others, such tuples are done all the time.
    """

    def __init__(self) -> None:
        self.room = 0
        self._oldest_at = float("-inf")
        self._enlarged_at = float("-inf")
        # A spout that has just started had no room from the beginning.
        self._reached_at = float("inf")
        self._emitted_at = float("-inf")
        # Time of the emit of the youngest tuple whose tree is complete.
        self._youngest = float("-inf")
        # When a tree completed and how long it took: those that no later one exceeds.
        self._slowest: deque[tuple[float, float]] = deque()
        self._calm = False

    @property
    def youngest(self) -> float:
        """Time of the emit of the youngest tuple whose tree is complete."""
        return self._youngest

    def emitted(self, now: float) -> None:
        """Tuples were emitted."""
        self._emitted_at = now

    def completed(self, first: float, last: float, now: float) -> None:
        """Trees completed that were emitted between these times."""
        self._youngest = max(self._youngest, last)
        took_s = now - first
        while self._slowest and self._slowest[-1][1] <= took_s:
            self._slowest.pop()
        self._slowest.append((now, took_s))

    def reached(self, oldest_at: float, now: float) -> bool:
        """Note that there is no room; return whether that is because of what is stuck."""
        if now - self._reached_at > _CALM_S:
            self._calm = True
        elif oldest_at > self._oldest_at:
            self._calm = False
        self._reached_at = now
        self._oldest_at = oldest_at
        return self._is_stuck(oldest_at, now)

    @property
    def calm(self) -> bool:
        """True if there was room for all that came, until something was stuck."""
        return self._calm

    def enlarge(self, by: int, now: float) -> None:
        """Give so much more room."""
        self.room += by
        self._enlarged_at = now

    def look(self, oldest_at: float, now: float, *, is_used: bool) -> None:
        """Take the room back when it is unused, and what came before it is done."""
        if oldest_at > self._enlarged_at and (not is_used or now - self._enlarged_at > _LENT_S):
            self.room = 0

    def _is_stuck(self, oldest_at: float, now: float) -> bool:
        while self._slowest and self._slowest[0][0] < oldest_at:
            self._slowest.popleft()
        age_s = now - oldest_at
        slowest_s = self._slowest[0][1] if self._slowest else 0.0
        passed_s = self._youngest - oldest_at
        overtaken = passed_s > 0 and passed_s >= _PASSED_PART * (self._emitted_at - oldest_at)
        return age_s > _STUCK_S and overtaken and slowest_s < _SLOW_PART * age_s
