"""Counters and errors of one task since its last report to Redis."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from tiercel.acker.errors import AckerError
from tiercel.acker.metrics.contract import ErrorReport, Metrics

log = logging.getLogger(__name__)

_INTERVAL_S = 0.5
# As in Storm: at most five errors per ten seconds are reported, the rest are only counted.
_ERRORS_KEPT = 5
_ERRORS_WINDOW_S = 10.0


class Tally:
    """Counters and errors of one task; thread-safe to add to, flushed from one thread."""

    def __init__(
        self,
        metrics: Metrics,
        component: str,
        task: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metrics = metrics
        self._component = component
        self._task = task
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._errors: list[ErrorReport] = []
        # True if the metrics hold counters that could not be sent.
        self._owed = False
        # Time on the clock from which ``flush`` sends again.
        self.flush_at = clock() + _INTERVAL_S
        self._window: tuple[float, int] = (clock(), 0)

    def add(self, name: str, count: int = 1) -> None:
        with self._lock:
            self._counts[name] += count

    def add_all(self, counts: Mapping[str, int]) -> None:
        with self._lock:
            self._counts.update(counts)

    def error(self, message: str, about: str = "") -> bool:
        """Keep an error for operators, unless five were kept within ten seconds; return True if it
        was kept. ``about`` names the message that failed.
        """
        now = self._clock()
        report = ErrorReport(
            at=datetime.now(UTC),
            component=self._component,
            task=self._task,
            message=message.partition("\n")[0][:500],
            about=about,
        )
        with self._lock:
            self._counts["errors"] += 1
            since, kept = self._window
            if now - since >= _ERRORS_WINDOW_S:
                since = now
                kept = 0
            if kept < _ERRORS_KEPT:
                self._errors.append(report)
            self._window = (since, kept + 1)
            return kept < _ERRORS_KEPT

    def flush(self, *, now: bool = False) -> None:
        """Send the counters and errors, at most twice per second unless ``now``.

        Counters and errors that cannot be sent are kept for the next call.
        """
        if not now and self._clock() < self.flush_at:
            return
        self.flush_at = self._clock() + _INTERVAL_S
        with self._lock:
            counts = self._counts
            self._counts = Counter()
            errors = self._errors
            self._errors = []
        try:
            if counts or self._owed:
                # If this fails, the metrics keep the counters and send them with the next call.
                self._owed = True
                self._metrics.add(self._component, self._task, counts)
                self._owed = False
            if errors:
                self._metrics.report(errors)
        except AckerError as error:
            log.debug(
                "could not send counters, keeping them for later: %s",
                error,
                extra={"event": "metrics_kept"},
            )
            with self._lock:
                self._errors = errors + self._errors
