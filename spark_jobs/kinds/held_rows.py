"""The rows that one task of a windowed bolt holds, as columns, and its watermark.

Pure. Timestamps are microseconds since 1970; ``now`` is seconds on a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta

import numpy as np
from numpy.typing import NDArray

Longs = NDArray[np.int64]
Mask = NDArray[np.bool_]
# Before and after all times.
NEVER = -(2**62)
FOREVER = 2**62
# The status of a row that is in windows; all others wait to leave.
GOOD = 0
_FIRST_ROOM = 1_024


def micros(duration: timedelta) -> int:
    """Return a duration in microseconds."""
    return duration // timedelta(microseconds=1)


class Watermark:
    """Event time of one task: the highest timestamp of each source task minus ``lag``, for the
    slowest of them. It never goes back.

    A source that has sent nothing for ``idle_s`` does not count. If none counts, time goes on by
    the clock.
    """

    def __init__(self, sources: Iterable[int], lag_us: int, idle_s: float, now: float) -> None:
        self.at = NEVER
        self.highest = dict.fromkeys(sources, NEVER)
        self._seen = dict.fromkeys(self.highest, now)
        self._lag = lag_us
        self._idle_s = idle_s

    def follow(self, source: int, times: Longs, now: float) -> Longs:
        """Take the timestamps of a source's tuples; return the watermark before each of them.

        Tuples without a valid timestamp have ``NEVER``.
        """
        before = self.highest.get(source, NEVER)
        self._seen[source] = now
        others = self._slowest(now, source)
        highest = np.maximum.accumulate(np.concatenate([[before], times]))
        reached = np.maximum(np.minimum(highest, others) - self._lag, self.at)
        self.highest[source] = int(highest[-1])
        self.at = int(reached[-1])
        found: Longs = reached[:-1]
        return found

    def advance(self, now: float) -> int:
        """Return the watermark, which may have moved because sources are idle."""
        slowest = self._slowest(now)
        if slowest == FOREVER:
            slowest = max(self.highest.values(), default=NEVER)
            if slowest > NEVER:
                slowest += int(1e6 * max(0.0, now - self._last_seen - self._idle_s))
        self.at = max(self.at, slowest - self._lag)
        return self.at

    def reaches(self, end: int) -> float | None:
        """Return the time at which the watermark reaches ``end`` if no tuple comes; None: never."""
        if max(self.highest.values(), default=NEVER) == NEVER:
            return None
        left = sorted((seen, source) for source, seen in self._seen.items())
        for place, (seen, _) in enumerate(left[:-1]):
            slowest = min(self.highest[source] for _, source in left[place + 1 :])
            if slowest - self._lag >= end:
                return seen + self._idle_s
        rest = end + self._lag - max(self.highest.values())
        return self._last_seen + self._idle_s + max(0, rest) / 1e6

    @property
    def _last_seen(self) -> float:
        return max(self._seen.values())

    def _slowest(self, now: float, but: int | None = None) -> int:
        return min(
            [
                self.highest[source]
                for source, seen in self._seen.items()
                if source != but and now - seen < self._idle_s
            ],
            default=FOREVER,
        )


class HeldRows:
    """Columns of the rows that a task holds."""

    NAMES = ("time", "key", "arrived", "ms", "seq", "entry", "row", "first", "status")

    def __init__(self) -> None:
        # Timestamp; number of the key; time of arrival; position and number of the entry, and row
        # in it; end of the first window that the row may be in; ``GOOD``, or why the row leaves.
        self._columns = {name: np.zeros(_FIRST_ROOM, np.int64) for name in self.NAMES}
        self._alive = np.zeros(_FIRST_ROOM, bool)
        # Number of rows with the removed ones, and without.
        self.size = 0
        self.count = 0

    def __getitem__(self, name: str) -> Longs:
        return self._columns[name][: self.size]

    @property
    def alive(self) -> Mask:
        """Mask of the rows that are not removed."""
        return self._alive[: self.size]

    @property
    def good(self) -> Mask:
        """Mask of the rows that are in windows."""
        good: Mask = self.alive & (self["status"] == GOOD)
        return good

    def add(self, columns: Mapping[str, Longs]) -> Longs:
        """Add rows behind all others; return their indices."""
        count = len(columns["time"])
        while self.size + count > len(self._alive):
            self._alive = np.concatenate([self._alive, np.zeros_like(self._alive)])
            for name, column in self._columns.items():
                self._columns[name] = np.concatenate([column, np.zeros_like(column)])
        places = slice(self.size, self.size + count)
        for name, values in columns.items():
            self._columns[name][places] = values
        self._alive[places] = True
        self.size += count
        self.count += count
        return np.arange(places.start, places.stop)

    def remove(self, rows: Longs) -> None:
        """Remove rows, each at most once."""
        self._alive[rows] = False
        self.count -= len(rows)

    def compact(self) -> bool:
        """Forget removed rows if they are many; return True if indices have changed."""
        if self.size < _FIRST_ROOM or self.count * 2 > self.size:
            return False
        alive = np.flatnonzero(self.alive)
        for name, column in self._columns.items():
            self._columns[name][: len(alive)] = column[alive]
        self._alive[: len(alive)] = True
        self._alive[len(alive) :] = False
        self.size = len(alive)
        return True

    @property
    def oldest(self) -> int | None:
        """Time of arrival of the first row; None if there is none."""
        alive = self.alive
        first = int(alive.argmax()) if alive.size else 0
        return int(self["arrived"][first]) if alive.size and alive[first] else None
