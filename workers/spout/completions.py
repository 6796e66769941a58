"""Counts the trees that complete per second."""

from __future__ import annotations

from collections import deque


class Completions:
    """Counted over the last seconds. One thread; times are seconds on one monotonic clock."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._seconds: deque[tuple[float, int]] = deque()
        self._first_at = float("inf")
        # Time at which the last tree completed.
        self.last_at = float("-inf")

    def add(self, count: int, now: float) -> None:
        """Note that so many trees completed now."""
        self.last_at = now
        self._first_at = min(self._first_at, now)
        second = now - now % 1.0
        if self._seconds and self._seconds[-1][0] == second:
            count += self._seconds.pop()[1]
        self._seconds.append((second, count))
        while self._seconds[0][0] < now - self._window_s:
            self._seconds.popleft()

    def per_second(self, now: float) -> float:
        """Mean of the window that ends now."""
        return (
            sum(count for second, count in self._seconds if second >= now - self._window_s)
            / self._window_s
        )

    def per_second_so_far(self, now: float) -> float:
        """The same, or the mean of the time since the first."""
        seconds = min(self._window_s, max(1.0, now - self._first_at))
        return self.per_second(now) * self._window_s / seconds
