"""The counters in memory: the twin of ``RedisMetrics``."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from acker.metrics import ERRORS_A_WINDOW, ERRORS_KEPT, ERRORS_WINDOW, ErrorReport, by_task


class MemoryMetrics:
    """``Metrics`` within one process; thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` counts seconds."""
        self._clock = clock
        self._windows: dict[tuple[str, int], tuple[float, int]] = {}
        """Of each task: when its window began, and how many errors it has reported since."""
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, int], Counter[str]] = {}
        self._errors: list[ErrorReport] = []

    def add(self, component: str, task: int, counts: Mapping[str, int]) -> None:
        with self._lock:
            self._counts.setdefault((component, task), Counter()).update(counts)

    def report(self, errors: Sequence[ErrorReport]) -> None:
        now = self._clock()
        with self._lock:
            for task, reported in by_task(errors).items():
                began, count = self._windows.get(task, (now, 0))
                if now - began >= ERRORS_WINDOW.total_seconds():
                    began, count = now, 0
                kept = reported[: ERRORS_A_WINDOW - count]
                self._windows[task] = (began, count + len(kept))
                self._errors = [*self._errors, *kept][-ERRORS_KEPT:]

    def totals(self) -> dict[str, dict[int, dict[str, int]]]:
        totals: dict[str, dict[int, dict[str, int]]] = {}
        with self._lock:
            for (component, task), counts in self._counts.items():
                if counts:
                    totals.setdefault(component, {})[task] = dict(counts)
        return totals

    def errors(self, limit: int = 50) -> list[ErrorReport]:
        with self._lock:
            return self._errors[::-1][:limit]

    def clear(self) -> None:
        with self._lock:
            self._counts.clear()
            self._errors.clear()
            self._windows.clear()
