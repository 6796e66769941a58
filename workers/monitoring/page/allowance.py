"""Bounds what strangers may have done in a time: a few at once, then one now and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta


class Allowance:
    """A bucket of ``most``, of which one comes back per ``every``. For one thread."""

    def __init__(
        self, most: int, every: timedelta, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._every_s = every.total_seconds()
        self._clock = clock
        self._left = float(most)
        self._seen_at = clock()

    @property
    def wait_s(self) -> float:
        """Seconds until there is one; 0 if there is."""
        self._fill()
        return max(0.0, (1 - self._left) * self._every_s)

    def take(self) -> bool:
        """Take one; False if there is none."""
        if self.wait_s > 0:
            return False
        self._left -= 1
        return True

    def _fill(self) -> None:
        now = self._clock()
        self._left = min(float(self._most), self._left + (now - self._seen_at) / self._every_s)
        self._seen_at = now
