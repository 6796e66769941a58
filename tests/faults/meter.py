"""Work of a running topology, over time."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path

from tests.faults import numbered
from tests.support.entered import Looking

_LOOK_S = 0.1
_WHOLE = (1 << numbered.FAN_OUT) - 1
WINDOW_S = 1.0
# A fault shows in the rate within this time, or not at all.
SHOWS_S = 2.0


class Meter(Looking):
    """Follows the files of effects, each of which is a (number, part)."""

    def __init__(self, folder: Path) -> None:
        super().__init__(_LOOK_S)
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._lock = threading.Lock()
        # Parts seen of each number, as bits: a soak has millions of effects.
        self._parts: dict[int, int] = {}
        self._repeated: set[int] = set()
        self._effects = 0
        self._times: list[float] = [time.monotonic()]
        # Number of different effects at each of the times.
        self._firsts: list[int] = [0]

    def processed(self, numbers: Iterable[int]) -> int:
        """Count the messages that have all their effects."""
        self._look()
        with self._lock:
            return sum(self._parts.get(number) == _WHOLE for number in numbers)

    def repeated(self, numbers: Iterable[int]) -> int:
        """Count the messages that had an effect more than once."""
        with self._lock:
            return len(self._repeated.intersection(numbers))

    def rate(self, since: float, until: float) -> float:
        """Return the different messages per second between two times of the monotonic clock."""
        with self._lock:
            first, last = (
                self._firsts[min(bisect_left(self._times, at), len(self._times) - 1)]
                for at in (since, until)
            )
        return (last - first) / numbered.FAN_OUT / (until - since)

    def recovered(self, since: float, rate: float) -> tuple[float, ...]:
        """Return the seconds from ``since`` until messages were processed at ``rate`` over a whole
        window, in a tuple; empty if not yet.

        Work in flight may go on for a moment after the fault. So the first good window after a bad
        one counts, or 0 if no bad one follows soon.
        """
        if time.monotonic() < since + SHOWS_S + WINDOW_S + _LOOK_S:
            return ()
        with self._lock:
            times = [since, *(at for at in self._times if at >= since)]
        hurt = False
        for at in times:
            if at + WINDOW_S > time.monotonic() - _LOOK_S:
                break
            good = self.rate(at, at + WINDOW_S) >= rate
            if good and hurt:
                return (at - since,)
            hurt = hurt or not good
            if not hurt and at > since + SHOWS_S:
                return (0.0,)
        return ()

    def _look(self) -> None:
        with self._lock:
            for path in self._folder.iterdir():
                with path.open("rb") as file:
                    file.seek(self._read.get(path, 0))
                    text = file.read()
                # A half-written line is read once it is complete.
                whole = text[: text.rfind(b"\n") + 1]
                self._read[path] = self._read.get(path, 0) + len(whole)
                for line in whole.splitlines():
                    number, part = map(int, line.split()[:2])
                    self._count(number, 1 << part)
            self._times.append(time.monotonic())
            self._firsts.append(self._effects)

    def _count(self, number: int, part: int) -> None:
        had = self._parts.get(number, 0)
        if had & part:
            self._repeated.add(number)
        else:
            self._parts[number] = had | part
            self._effects += 1
