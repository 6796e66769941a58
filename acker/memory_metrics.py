"""The counters in memory: the twin of ``RedisMetrics``."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence

from acker.metrics import ERRORS_KEPT, ErrorReport, clipped


class MemoryMetrics:
    """``Metrics`` within one process; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, int], Counter[str]] = {}
        self._errors: list[ErrorReport] = []

    def add(self, component: str, task: int, counts: Mapping[str, int]) -> None:
        with self._lock:
            self._counts.setdefault((component, task), Counter()).update(counts)

    def report(self, errors: Sequence[ErrorReport]) -> None:
        with self._lock:
            self._errors = [*self._errors, *map(clipped, errors)][-ERRORS_KEPT:]

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
