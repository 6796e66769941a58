"""Counts of the bolt tasks of one process, reported by the clock and not by the step.

A call that lasts is counted while it lasts: a task that has been busy with one tuple for a
minute shows it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from tiercel.acker.ledger import Reply
from tiercel.acker.metrics.contract import ErrorReport, Metrics
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.running.counts import ACKER, ACKER_TASK, acker_counts, task_counts
from tiercel.spark_jobs.running.step import Done
from tiercel.spark_jobs.running.tracebacks import Tracebacks


@dataclass(slots=True)
class _CountedStep:
    """One step in the bolt's hands."""

    component: str
    began_ns: int
    # The part of its time that was reported.
    told_ns: int = 0


class Counting:
    """Adds up until ``flush``. Thread-safe."""

    def __init__(self, metrics: Metrics) -> None:
        self.tracebacks = Tracebacks()
        self._metrics = metrics
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, int], Counter[str]] = {}
        self._errors: list[ErrorReport] = []
        self._calls: dict[int, _CountedStep] = {}
        self._told_ns: dict[int, int] = {}

    @contextmanager
    def executing(self, task: int, component: str) -> Iterator[None]:
        """Count the time of this block while it goes on; ``step`` then adds the rest."""
        call = _CountedStep(component, time.perf_counter_ns())
        with self._lock:
            self._calls[task] = call
        try:
            yield
        finally:
            with self._lock:
                self._calls.pop(task, None)
                self._told_ns[task] = call.told_ns

    def noting(self, task: int, component: str) -> Callable[[BaseException, str], str]:
        """Return what a bolt task tells of an error: it is counted under the name returned."""
        return partial(self.tracebacks.note, component, task)

    def step(
        self, task: int, done: Done, reply: Reply | None, *, step_ns: int, commit_ns: int
    ) -> None:
        """Count a step that is committed."""
        record = done.record
        counts = task_counts(record, done.sources, step_ns)
        acked = None if reply is None else acker_counts(reply, len(done.updates.roots), commit_ns)
        errors = self._reports(task, record) if record.errors else ()
        with self._lock:
            told_ns = self._told_ns.pop(task, 0)
            counts["execute_ns"] = max(0, record.execute_ns - told_ns)
            self._add((record.component, task), counts)
            if acked is not None:
                self._add((ACKER, ACKER_TASK), acked)
            self._errors += errors

    def flush(self) -> None:
        """Tell the metrics. Raises RedisUnavailableError, and then keeps the counts."""
        with self._lock:
            self._look_at_calls()
            counts = self._counts
            self._counts = {}
            errors = self._errors
            self._errors = []
        try:
            if counts:
                # Counts that cannot be sent now are kept, and sent with the next call.
                self._metrics.add_all(counts)
        except BaseException:
            with self._lock:
                self._errors = errors + self._errors
            raise
        if errors:
            self._metrics.report(errors)
        self._send_tracebacks()

    @staticmethod
    def _reports(task: int, record: Record) -> list[ErrorReport]:
        now = datetime.now(UTC)
        return [
            ErrorReport(at=now, component=record.component, task=task, message=message)
            for message in record.errors
        ]

    def _send_tracebacks(self) -> None:
        self.tracebacks.look()
        reports = self.tracebacks.take()
        if not reports:
            return
        try:
            self._metrics.trace(reports)
        except BaseException:
            self.tracebacks.give_back(reports)
            raise

    def _look_at_calls(self) -> None:
        now_ns = time.perf_counter_ns()
        for task, call in self._calls.items():
            lasts_ns = now_ns - call.began_ns
            self._add((call.component, task), {"execute_ns": lasts_ns - call.told_ns})
            call.told_ns = lasts_ns

    def _add(self, name: tuple[str, int], more: Mapping[str, int]) -> None:
        counts = self._counts.setdefault(name, Counter())
        for what, count in more.items():
            counts[what] += count
