"""The most that was in flight lately."""

from __future__ import annotations

_PART_S = 30.0


class Peaks:
    """The most that was in flight in the last minute, in two parts of half a minute.

    One thread; times are seconds on one monotonic clock.
    """

    def __init__(self) -> None:
        self._before = 0
        self._lately = 0
        self._since = float("-inf")

    def look(self, in_flight: int, now: float) -> int | None:
        """Return the most of the last minute when half a minute is over, else None.

        None for the first time too: nothing is known of before then.
        """
        self._lately = max(self._lately, in_flight)
        if now - self._since < _PART_S:
            return None
        most = max(self._before, self._lately) if self._since > float("-inf") else None
        self._before = self._lately
        self._lately = 0
        self._since = now
        return most
