"""Simulated time: it stands still until it is moved, and nothing sleeps."""

from __future__ import annotations


class SimulatedClock:
    """Starts at 0. One thread only."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        """Seconds since the start."""
        return self._now

    def after(self, seconds: float) -> float:
        """Return the time so many seconds from now, exact to the nanosecond.

        300 times 0.1 s are 30 s, and not a little less.
        """
        return round(self._now + seconds, 9)

    def move_to(self, moment: float) -> None:
        """Let the time be this, unless it is past that."""
        self._now = max(self._now, moment)
