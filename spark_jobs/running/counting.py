"""What the bolt tasks of one process did, told by the clock and not by the step."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime

from acker import ErrorReport, Metrics, Reply
from spark_jobs.counts import ACKER, ACKER_TASK, acker_counts, task_counts
from spark_jobs.running.step import Done

REASON_LENGTH = 500


class Counting:
    """Adds up until ``flush``. Thread-safe."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, int], Counter[str]] = {}
        self._errors: list[ErrorReport] = []

    def step(self, task: int, done: Done, reply: Reply | None, ledger_ns: int = 0) -> None:
        """A step is committed; ``ledger_ns`` is how long the ledger took with it."""
        record = done.record
        counts = task_counts(record, done.sources, time.time_ns())
        errors = [
            ErrorReport(at=datetime.now(UTC), component=record.component, task=task, message=message[:REASON_LENGTH])
            for message in record.errors
        ]
        with self._lock:
            self._add((record.component, task), counts)
            if reply is not None:
                self._add((ACKER, ACKER_TASK), acker_counts(reply, len(done.updates.roots), ledger_ns))
            self._errors += errors

    def flush(self) -> None:
        """Tell the metrics. Raises LedgerUnavailableError, and then keeps what it has."""
        with self._lock:
            counts, self._counts = self._counts, {}
            errors, self._errors = self._errors, []
        try:
            if counts:
                # What it cannot send now it keeps itself, and sends with the next call.
                self._metrics.add_all(counts)
        except BaseException:
            with self._lock:
                self._errors = errors + self._errors
            raise
        if errors:
            self._metrics.report(errors)

    def _add(self, name: tuple[str, int], more: Mapping[str, int]) -> None:
        self._counts.setdefault(name, Counter()).update(more)
