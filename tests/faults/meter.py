"""What a running topology has done, over time."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.faults import numbered

_LOOK_S = 0.1
WINDOW_S = 1.0


class Meter:
    """Follows the files of effects. An effect is (number, part); how often each was had is counted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow)
        self.effects: Counter[tuple[int, int]] = Counter()
        self._times: list[float] = [time.monotonic()]
        self._firsts: list[int] = [0]
        """How many different effects there were at each of the times."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def missing(self, numbers: Iterable[int]) -> int:
        """How many effects of these messages are not there."""
        self._look()
        with self._lock:
            return sum((number, part) not in self.effects for number in numbers for part in range(numbered.FAN_OUT))

    def repeated(self, numbers: Iterable[int]) -> int:
        """How many of these messages had an effect more than once."""
        with self._lock:
            return sum(any(self.effects[number, part] > 1 for part in range(numbered.FAN_OUT)) for number in numbers)

    def rate(self, since: float, until: float) -> float:
        """Different messages a second between two times of the monotonic clock."""
        with self._lock:
            first, last = (self._firsts[min(bisect_left(self._times, at), len(self._times) - 1)] for at in (since, until))
        return (last - first) / numbered.FAN_OUT / (until - since)

    def recovered(self, since: float, rate: float) -> float | None:
        """Seconds from ``since`` until messages were processed at ``rate`` over a whole window; None: not yet."""
        with self._lock:
            times = [at for at in self._times if at >= since]
        for at in [since, *times]:
            if at + WINDOW_S <= time.monotonic() - _LOOK_S and self.rate(at, at + WINDOW_S) >= rate:
                return at - since
        return None

    def _follow(self) -> None:
        while not self._stop.wait(_LOOK_S):
            self._look()

    def _look(self) -> None:
        with self._lock:
            for path in self._folder.iterdir():
                with path.open("rb") as file:
                    file.seek(self._read.get(path, 0))
                    text = file.read()
                # A line that is half written is read when it is whole.
                whole = text[: text.rfind(b"\n") + 1]
                self._read[path] = self._read.get(path, 0) + len(whole)
                for line in whole.splitlines():
                    number, part = line.split()
                    self.effects[int(number), int(part)] += 1
            self._times.append(time.monotonic())
            self._firsts.append(len(self.effects))
