"""The lease within one process: the twin in the contract's suite."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tiercel.workers.control.lease import LASTS, Holder


class MemoryLease:
    """``Lease`` for all drivers and spout workers that are given this object. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._held: tuple[Holder, float] | None = None
        self._drawn = 0

    def take(self, holder: Holder) -> bool:
        with self._lock:
            found = self._found()
            if found is not None and found.driver != holder.driver:
                return False
            self._held = holder, self._clock() + LASTS.total_seconds()
            return True

    def draw(self, driver: str) -> int | None:
        with self._lock:
            found = self._found()
            if found is None or found.driver != driver:
                return None
            self._drawn += 1
            return self._drawn

    def leave(self, driver: str) -> None:
        with self._lock:
            found = self._found()
            if found is not None and found.driver == driver:
                self._held = None

    def holder(self) -> Holder | None:
        with self._lock:
            return self._found()

    def lose(self) -> None:
        """Forget the holder, as a Redis that restarts empty does."""
        with self._lock:
            self._held = None

    def close(self) -> None:
        pass

    def _found(self) -> Holder | None:
        if self._held is None:
            return None
        holder, until = self._held
        return holder if self._clock() < until else None
