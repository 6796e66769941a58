"""Orders to a topology in memory: the twin of ``RedisControl``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tiercel.workers.control.contract import (
    KILL_LASTS,
    NO_PAUSES,
    NO_REBALANCE,
    Change,
    Pauses,
    Rebalance,
    State,
)


class MemoryControl:
    """``Control`` within one process; thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._order: tuple[State, float] | None = None
        self._rebalance = NO_REBALANCE
        self._pauses = NO_PAUSES
        # The spouts that were noted as silent.
        self.silent: set[str] = set()

    def order(self, state: State) -> None:
        with self._lock:
            lasts = KILL_LASTS.total_seconds() if state is State.KILLED else float("inf")
            self._order = state, self._clock() + lasts

    def state(self) -> State | None:
        with self._lock:
            if self._order is None or self._clock() >= self._order[1]:
                return None
            return self._order[0]

    def ask(self, known: State) -> State | None:
        found = self.state()
        if found is None:
            self.order(known)
        return found

    def rebalance(self, change: Change) -> None:
        with self._lock:
            before = self._rebalance
            numbers = {**before.parallelism, **change}
            left = {bolt: number for bolt, number in numbers.items() if number is not None}
            self._rebalance = Rebalance(number=before.number + 1, parallelism=left)

    def rebalanced(self, known: Rebalance) -> Rebalance:
        with self._lock:
            if not self._rebalance.number:
                self._rebalance = known
            return self._rebalance

    def pause(self, bolt: str) -> None:
        with self._lock:
            since = {**self._pauses.since_ms, bolt: int(time.time() * 1000)}
            self._pauses = Pauses(number=self._pauses.number + 1, since_ms=since)

    def resume(self, bolt: str) -> None:
        with self._lock:
            left = {name: ms for name, ms in self._pauses.since_ms.items() if name != bolt}
            self._pauses = Pauses(number=self._pauses.number + 1, since_ms=left)

    def note_silent(self, spout: str) -> None:
        self.silent.add(spout)

    def paused(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._pauses.since_ms)

    def pauses(self, known: Pauses) -> Pauses:
        with self._lock:
            if not self._pauses.number:
                self._pauses = known
            return self._pauses

    def lose(self) -> None:
        """Forget everything, as a Redis that restarts empty does."""
        with self._lock:
            self._order = None
            self._rebalance = NO_REBALANCE
            self._pauses = NO_PAUSES

    def close(self) -> None:
        pass
