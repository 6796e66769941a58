"""Tracebacks of what bolts raise, for people to see: the first of each kind, then how often since.

A kind is one exception class at one line of one bolt. A message that always fails, or an API that
is away, raises the same a thousand times per second: its traceback is worth one look.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tiercel.acker.metrics.contract import (
    TRACES_KEPT,
    Name,
    TraceReport,
    name_of,
    trace_counter,
)
from tiercel.spark_jobs.reasons import place_of, user_traceback

log = logging.getLogger(__name__)

_AGAIN_S = 60.0
# Names of exceptions that are made up while it runs would fill the counters.
_OTHERS = "errors of other kinds"


@dataclass(slots=True)
class _Kind:
    """One kind, as this process has met it."""

    since: datetime
    said_at: float
    # Since it was last said, and altogether.
    again: int = 0
    count: int = 1

    def say(self, now: float) -> tuple[int, float]:
        """Return how often it came since it was last said, and in how many seconds."""
        said = self.again, now - self.said_at
        self.again = 0
        self.said_at = now
        return said


class Tracebacks:
    """The kinds that this process has met. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds: dict[Name, _Kind] = {}
        # Not sent yet: first reports, and the newest of each kind that was met again.
        self._firsts: list[TraceReport] = []
        self._newest: dict[Name, TraceReport] = {}

    def note(self, component: str, task: int, error: BaseException, reason: str) -> str:
        """Note that a bolt task raised this; returns the counter that counts it.

        The first one of its kind is logged with its traceback.
        """
        report = TraceReport(
            at=datetime.now(UTC),
            component=component,
            task=task,
            kind=type(error).__name__,
            place=place_of(error),
            reason=reason,
            text="",
        )
        name = name_of(report)
        with self._lock:
            kind = self._kinds.get(name)
            if kind is not None:
                kind.again += 1
                kind.count += 1
                self._newest[name] = report
            elif len(self._kinds) >= TRACES_KEPT:
                return trace_counter(_OTHERS, "")
            else:
                self._kinds[name] = _Kind(since=report.at, said_at=self._clock())
        if kind is None:
            self._begin(replace(report, text=user_traceback(error)))
        return trace_counter(report.kind, report.place)

    def look(self) -> None:
        """Say once per minute how often each kind came again; call it every second."""
        now = self._clock()
        with self._lock:
            due = [
                (name, kind.say(now), kind)
                for name, kind in self._kinds.items()
                if kind.again and now - kind.said_at >= _AGAIN_S
            ]
        for (component, raised, place), (again, seconds), kind in due:
            log.warning(
                "%s: %s%s came %d times more in %.0f s, %d times since %s", component, raised,
                f" ({place})" if place else "", again, seconds, kind.count,
                kind.since.astimezone().strftime("%H:%M:%S"),
                extra={"event": "bolt_raised_again"},
            )  # fmt: skip

    def take(self) -> Sequence[TraceReport]:
        """Return the reports since the last call, first reports with their tracebacks first."""
        with self._lock:
            reports = [*self._firsts, *self._newest.values()]
            self._firsts = []
            self._newest = {}
            return reports

    def give_back(self, reports: Sequence[TraceReport]) -> None:
        """These could not be sent: ``take`` returns them again."""
        with self._lock:
            self._firsts = [*reports, *self._firsts]

    def _begin(self, report: TraceReport) -> None:
        with self._lock:
            self._firsts.append(report)
        log.warning(
            "%s[%d]: %s\n%s", report.component, report.task, report.reason, report.text,
            extra={"event": "bolt_raised"},
        )  # fmt: skip
