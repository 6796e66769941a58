"""Presence within one process: the twin in the contract's suite, and the test kit's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from tiercel.workers.control.presence import Attendant, Seat


class MemoryPresences:
    """``Presences`` for all that are given this object."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._taken: dict[str, tuple[Attendant, float]] = {}
        self._drawn = 0

    def take(self, seat: Seat, attendant: Attendant, *, by_force: bool = False) -> bool:
        with self._lock:
            found = self._found(seat)
            if found is not None and found.name != attendant.name and not by_force:
                return False
            self._taken[seat.name] = attendant, self._clock() + seat.lasts.total_seconds()
            return True

    def leave(self, seat: Seat, name: str) -> None:
        with self._lock:
            if self._has(seat, name):
                del self._taken[seat.name]

    def look(self, seats: Sequence[Seat]) -> list[Attendant | None]:
        with self._lock:
            return [self._found(seat) for seat in seats]

    def draw_run(self, seat: Seat, name: str) -> int | None:
        with self._lock:
            if not self._has(seat, name):
                return None
            self._drawn += 1
            return self._drawn

    def lose(self) -> None:
        """Forget who is there, as a Redis that restarts empty does."""
        with self._lock:
            self._taken.clear()

    def close(self) -> None:
        pass

    def _has(self, seat: Seat, name: str) -> bool:
        found = self._found(seat)
        return found is not None and found.name == name

    def _found(self, seat: Seat) -> Attendant | None:
        """Hold the lock."""
        attendant, until = self._taken.get(seat.name, (None, 0.0))
        return attendant if self._clock() < until else None
