"""Counters and tracebacks of the bolt tasks of one process, reported on a timer, not per step.

A long call is counted while it lasts: a task that has been busy with one tuple for a minute shows
it. For each kind of exception, the first traceback is logged, then only how often the kind
recurred: a message that always fails may raise the same exception a thousand times per second. A
kind is one exception class at one line of one bolt.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from tiercel.acker.inbox.chunk import Chunk
from tiercel.acker.ledger import Reply
from tiercel.acker.metrics.contract import (
    ACKER,
    ACKER_TASK,
    OTHER_KINDS,
    RETRY_LATER,
    TRACES_KEPT,
    ErrorReport,
    Metrics,
    Name,
    TraceReport,
    chained_counter,
    edge_counter,
    trace_counter,
)
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.reasons import lacks_memory, place_of, user_traceback
from tiercel.spark_jobs.running.step import Done


def sources_of(chunks: Sequence[Chunk]) -> Mapping[str, int]:
    """Return the number of tuples per edge counter in these chunks."""
    rows: Counter[str] = Counter()
    for chunk in chunks:
        rows[edge_counter(chunk.route.component, chunk.route.stream)] += chunk.values.num_rows
    return rows


def task_counts(done: Done, step_ns: int) -> dict[str, int]:
    """Return the nonzero counts of one step of a task."""
    record = done.record
    counts = {
        "steps": 1,
        "step_ns": step_ns,
        "executed": record.executed,
        "emitted": record.emitted,
        "transferred": record.transferred,
        "acked": len(record.acked),
        "failed": len(record.reasons) - record.retried,
        "retried": record.retried,
        "execute_ns": record.execute_ns,
        "process_ns": done.process_ns,
        **sources_of(done.chunks),
        **(record.raised if record.errors else {}),
        **({RETRY_LATER: record.postponed} if record.reasons else {}),
        **(record.once.counts if record.once is not None else {}),
        **record.more_counts,
    }
    return {name: count for name, count in counts.items() if count}


def acker_counts(reply: Reply, roots: int, took_ns: int) -> dict[str, int]:
    """Return the nonzero counts of one ledger call that updated this many roots."""
    counts = {
        "executed": roots,
        "acked": reply.completed,
        "failed": reply.failed,
        "late": reply.late,
        "execute_ns": took_ns,
    }
    return {name: count for name, count in counts.items() if count}


log = logging.getLogger(__name__)

_AGAIN_S = 60.0


@dataclass(slots=True)
class _Kind:
    """Occurrences of one kind of exception in this process."""

    since: datetime
    said_at: float
    # Number of occurrences since the last log line, and in all.
    again: int = 0
    count: int = 1

    def say(self, now: float) -> tuple[int, float]:
        """Return the occurrences and the seconds since the last log line, and start over."""
        said = self.again, now - self.said_at
        self.again = 0
        self.said_at = now
        return said


class Tracebacks:
    """The kinds of exceptions that bolts raised in this process. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds: dict[Name, _Kind] = {}
        # Reports to send: the first of each kind, and the newest of each kind that recurred.
        self._firsts: list[TraceReport] = []
        self._newest: dict[Name, TraceReport] = {}
        self._lacked_memory = False

    def note(self, component: str, task: int, error: BaseException, reason: str) -> str:
        """Note an error of a bolt task; return the name of its counter.

        The first error of each kind is logged with its traceback.
        """
        if lacks_memory(error):
            self._lacked_memory = True  # first: what follows may find no memory either
        report = TraceReport(
            at=datetime.now(UTC),
            component=component,
            task=task,
            kind=type(error).__name__,
            place=place_of(error),
            reason=reason,
            text="",
        )
        name = report.name
        with self._lock:
            kind = self._kinds.get(name)
            if kind is not None:
                kind.again += 1
                kind.count += 1
                self._newest[name] = report
            elif len(self._kinds) >= TRACES_KEPT:
                return OTHER_KINDS
            else:
                self._kinds[name] = _Kind(since=report.at, said_at=self._clock())
        if kind is None:
            self._begin(replace(report, text=user_traceback(error)))
        return trace_counter(report.kind, report.place)

    def take_lack(self) -> bool:
        """Return True if a bolt lacked memory since the last call."""
        lacked, self._lacked_memory = self._lacked_memory, False
        return lacked

    def look(self) -> None:
        """Log once per minute how often each kind recurred; call it every second."""
        now = self._clock()
        with self._lock:
            due = [
                (name, kind.say(now), kind)
                for name, kind in self._kinds.items()
                if kind.again and now - kind.said_at >= _AGAIN_S
            ]
        for (component, raised, place), (again, seconds), kind in due:
            log.warning(
                "%s: %s%s occurred %d more times in %.0f s, %d times since %s", component, raised,
                f" ({place})" if place else "", again, seconds, kind.count,
                kind.since.astimezone().strftime("%H:%M:%S"),
                extra={"event": "bolt_raised_again"},
            )  # fmt: skip

    def take(self) -> Sequence[TraceReport]:
        """Return the reports since the last call, starting with reports that have tracebacks."""
        with self._lock:
            reports = [*self._firsts, *self._newest.values()]
            self._firsts = []
            self._newest = {}
            return reports

    def give_back(self, reports: Sequence[TraceReport]) -> None:
        """Keep reports that could not be sent: ``take`` returns them again."""
        with self._lock:
            self._firsts = [*(report for report in reports if report.text), *self._firsts]
            for report in reports:
                if not report.text:
                    self._newest.setdefault(report.name, report)

    def _begin(self, report: TraceReport) -> None:
        with self._lock:
            self._firsts.append(report)
        log.warning(
            "%s[%d]: %s\n%s", report.component, report.task, report.reason, report.text,
            extra={"event": "bolt_raised"},
        )  # fmt: skip


class Counting:
    """Adds up counters until ``flush``. Thread-safe."""

    def __init__(self, metrics: Metrics) -> None:
        self.tracebacks = Tracebacks()
        self._metrics = metrics
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, int], Counter[str]] = {}
        self._errors: list[ErrorReport] = []
        # The records of the steps that are being executed, with their tasks. Each ``flush`` counts
        # their time so far; ``step`` adds the rest.
        self.executing: dict[Record, int] = {}

    def noting(self, task: int, component: str) -> Callable[[BaseException, str], str]:
        """Return a function that notes an error of a bolt task and returns its counter's name."""
        return partial(self.tracebacks.note, component, task)

    def step(
        self, task: int, done: Done, reply: Reply | None, *, step_ns: int, commit_ns: int
    ) -> None:
        """Count a committed step."""
        record = done.record
        counts = task_counts(done, step_ns)
        acked = None if reply is None else acker_counts(reply, len(done.updates.roots), commit_ns)
        errors = self._reports(task, record) if record.errors else ()
        with self._lock:
            counts["execute_ns"] = max(0, record.execute_ns - record.told_ns)
            self._add((record.component, task), counts)
            if acked is not None:
                self._add((ACKER, ACKER_TASK), acked)
            self._errors += errors

    def inner_step(self, task: int, done: Done, *, step_ns: int, at: str) -> None:
        """Count a committed step that was part of a step of the component ``at``."""
        record = done.record
        self.step(task, done, None, step_ns=step_ns, commit_ns=0)
        with self._lock:
            self._add((record.component, task), {chained_counter(at): record.executed})

    def flush(self) -> None:
        """Send everything to the metrics. If it raises RedisUnavailableError, counts are kept."""
        with self._lock:
            self._look_at_calls()
            counts = self._counts
            self._counts = {}
            errors = self._errors
            self._errors = []
        unsent = counts
        try:
            # First, so that the metrics know the kinds of all errors that are counted.
            self._send_tracebacks()
            # If the next call fails, the metrics keep the counts and send them with the next one.
            unsent = {}
            if counts:
                self._metrics.add_all(counts)
        except BaseException:
            with self._lock:
                self._errors = errors + self._errors
                for name, more in unsent.items():
                    self._add(name, more)
            raise
        if errors:
            self._metrics.report(errors)

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
        for record, task in list(self.executing.items()):
            if record.began_ns:
                lasts_ns = now_ns - record.began_ns
                self._add((record.component, task), {"execute_ns": lasts_ns - record.told_ns})
                record.told_ns = lasts_ns

    def _add(self, name: tuple[str, int], more: Mapping[str, int]) -> None:
        counts = self._counts.setdefault(name, Counter())
        for what, count in more.items():
            counts[what] += count
