"""The counters in memory: the twin of ``RedisMetrics``."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from tiercel.acker.metrics.contract import (
    DRIVER_TASK,
    ERRORS_A_WINDOW,
    ERRORS_KEPT,
    ERRORS_WINDOW,
    OTHER_KINDS,
    SLIDING,
    TRACES_KEPT,
    Counted,
    Counts,
    ErrorReport,
    KnownError,
    Metrics,
    Name,
    TraceReport,
    Window,
    by_task,
    kind_of,
    known_errors,
    newest_first,
    trace_counter,
)

_Slot = dict[tuple[str, int], Counter[str]]


class MemoryMetrics(Metrics):
    """``Metrics`` within one process; thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` returns seconds."""
        self._clock = clock
        # By task: the time at which its window began, and the number of errors kept since then.
        self._windows: dict[tuple[str, int], tuple[float, int]] = {}
        self._lock = threading.Lock()
        self._since: float | None = None
        self._counts: _Slot = {}
        self._slots: dict[Window, dict[int, _Slot]] = {window: {} for window in SLIDING}
        self._errors: list[ErrorReport] = []
        # The first report of each kind of error, and the time of the last one.
        self._traces: dict[Name, tuple[TraceReport, datetime]] = {}

    def add_all(self, counts: Mapping[tuple[str, int], Mapping[str, int]]) -> None:
        now = self._clock()
        with self._lock:
            if self._since is None and any(counts.values()):
                self._since = now
            plain, of_kinds = self._parted(counts)
            _add(self._counts, plain)
            _add(self._counts, of_kinds)
            for window, slots in self._slots.items():
                _add(slots.setdefault(window.slot_at(now), {}), plain)
                for old in slots.keys() - set(window.slots_at(now)):
                    del slots[old]

    def report(self, errors: Sequence[ErrorReport]) -> None:
        now = self._clock()
        with self._lock:
            for task, reported in by_task(errors).items():
                began, count = self._windows.get(task, (now, 0))
                if now - began >= ERRORS_WINDOW.total_seconds():
                    began = now
                    count = 0
                kept = reported[: ERRORS_A_WINDOW - count]
                self._windows[task] = (began, count + len(kept))
                self._errors = [*self._errors, *kept][-ERRORS_KEPT:]

    def over(self, window: Window) -> Counted:
        now = self._clock()
        found: _Slot = {}
        with self._lock:
            if window is Window.ALL_TIME:
                _add(found, self._counts)
            else:
                for number in window.slots_at(now):
                    _add(found, self._slots[window].get(number, {}))
            seconds = window.seconds_at(now, self._since)
        return Counted(counts=_nested(found), seconds=seconds)

    def slots(self) -> Sequence[Counted]:
        now = self._clock()
        window = Window.TEN_MINUTES
        with self._lock:
            return [
                Counted(
                    counts=_nested(self._slots[window].get(number, {})),
                    seconds=window.slot_seconds_at(number, now, self._since),
                )
                for number in reversed(window.slots_at(now))
            ]

    def errors(self, limit: int = 50) -> list[ErrorReport]:
        with self._lock:
            return newest_first(self._errors[::-1][:limit])

    def trace(self, reports: Sequence[TraceReport]) -> None:
        with self._lock:
            for report in reports:
                name = report.name
                if name in self._traces:
                    first, last = self._traces[name]
                    self._traces[name] = (first, max(last, report.at))
                elif report.text:
                    if len(self._traces) >= TRACES_KEPT:
                        self._forget_oldest()
                    self._traces[name] = (report, report.at)

    def traces(self) -> Sequence[KnownError]:
        totals = self.totals()
        with self._lock:
            return known_errors(self._traces.values(), totals)

    def retire(self, is_over: Callable[[int], bool]) -> None:
        with self._lock:
            for component, task in [name for name in self._counts if is_over(name[1])]:
                _add(self._counts, {(component, DRIVER_TASK): self._counts.pop((component, task))})

    def clear(self) -> None:
        with self._lock:
            self._since = None
            self._counts.clear()
            for slots in self._slots.values():
                slots.clear()
            self._errors.clear()
            self._windows.clear()
            self._traces.clear()

    def _parted(self, counts: Mapping[tuple[str, int], Mapping[str, int]]) -> tuple[_Slot, _Slot]:
        """Return the counters of tasks, and the counters of kinds of errors."""
        plain: _Slot = {}
        of_kinds: _Slot = {}
        for (component, task), more in counts.items():
            for counter, count in more.items():
                kind = kind_of(counter)
                if kind is None:
                    _add(plain, {(component, task): {counter: count}})
                    continue
                kept = counter if (component, *kind) in self._traces else OTHER_KINDS
                _add(of_kinds, {(component, DRIVER_TASK): {kept: count}})
        return plain, of_kinds

    def _forget_oldest(self) -> None:
        oldest = min(self._traces, key=lambda name: self._traces[name][1])
        del self._traces[oldest]
        component, kind, place = oldest
        of_component = self._counts.get((component, DRIVER_TASK), Counter())
        if count := of_component.pop(trace_counter(kind, place), 0):
            of_component[OTHER_KINDS] += count


def _nested(slot: _Slot) -> Counts:
    found: Counts = {}
    for (component, task), counts in slot.items():
        found.setdefault(component, {})[task] = dict(counts)
    return found


def _add(slot: _Slot, counts: Mapping[tuple[str, int], Mapping[str, int]]) -> None:
    for place, more in counts.items():
        if more:
            slot.setdefault(place, Counter()).update(more)
