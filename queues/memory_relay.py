"""The relay in memory: the twin that the contract suite and the test kit run on."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta

from queues.relay import START, Entry


class MemoryRelay:
    """``Relay`` within one process; thread-safe."""

    def __init__(self, lanes: int) -> None:
        self._logs: list[list[tuple[int, bytes]]] = [[] for _ in range(lanes)]
        self._last = 0
        self._seals: dict[tuple[int, str], str] = {}
        self._attendant: tuple[str, float] | None = None
        self._changed = threading.Condition()

    def append(self, entries: Sequence[Entry]) -> None:
        with self._changed:
            for entry in entries:
                self._last += 1
                self._logs[entry.lane].append((self._last, entry.payload))
            self._changed.notify_all()

    def advance(self, start: Mapping[int, str], limit: int, wait: timedelta) -> dict[int, str]:
        with self._changed:
            self._changed.wait_for(lambda: self._ends(start, limit) != dict(start), wait.total_seconds())
            return self._ends(start, limit)

    def read(self, lane: int, start: str, end: str) -> list[bytes]:
        after, last = _number(start), _number(end)
        with self._changed:
            return [payload for position, payload in self._logs[lane] if after < position <= last]

    def seal(self, lane: int, end: str) -> str:
        with self._changed:
            log = self._logs[lane]
            if (lane, end) not in self._seals and any(position == _number(end) for position, _ in log):
                self._seals[lane, end] = f"{log[-1][0]}-0"
            return self._seals.get((lane, end), end)

    def finish(self, ends: Mapping[int, str]) -> dict[int, str]:
        with self._changed:
            self._seals = {seal: self._seals[seal] for seal in ends.items() if seal in self._seals}
            reached = {lane: self._seals.get((lane, end), end) for lane, end in ends.items()}
            for lane, position in reached.items():
                self._logs[lane] = [entry for entry in self._logs[lane] if entry[0] > _number(position)]
            return reached

    def drain(self) -> list[bytes]:
        with self._changed:
            self._seals = {}
            payloads = [payload for log in self._logs for _, payload in log]
            self._logs = [[] for _ in self._logs]
            return payloads

    def attend(self, run: str, during: timedelta) -> None:
        with self._changed:
            self._attendant = (run, time.monotonic() + during.total_seconds())

    def leave(self) -> None:
        with self._changed:
            self._attendant = None

    def attendant(self) -> str | None:
        with self._changed:
            if self._attendant is None or time.monotonic() >= self._attendant[1]:
                return None
            return self._attendant[0]

    def length(self) -> int:
        with self._changed:
            return sum(map(len, self._logs))

    def close(self) -> None:
        pass

    def _ends(self, start: Mapping[int, str], limit: int) -> dict[int, str]:
        ends = dict(start)
        for lane, position in start.items():
            new = [entry for entry in self._logs[lane] if entry[0] > _number(position)][: limit or None]
            if new:
                ends[lane] = f"{new[-1][0]}-0"
        return ends


def _number(position: str) -> int:
    return 0 if position == START else int(position.partition("-")[0])
