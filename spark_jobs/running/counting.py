"""Counts and tracebacks of the bolt tasks of one process, reported by the clock, not by the step.

emitted, transferred, executed, acked, failed   as in Storm
execute_ns    time in ``execute`` and ``flush``, all tuples together
process_ns    time from the beginning of ``execute`` to the ack, all acked tuples together
steps         steps that were committed
step_ns       time of these, from the first tuple to the end of the commit: what a full inbox makes
              wait is part of it
once_repeated, once_unkeyed, once_unsure
              of a bolt that is to be once: tuples that were applied before; that have no key; that
              may have been applied before what is remembered
from:[…]      executed, by the component and the stream that they came from: the edges of the
              topology's graph

The ledger counts as the bolt ``__acker``: executed are the updates of roots, acked the trees that
they completed, failed those that bolts failed, late what came for trees that were over, execute_ns
the time of the round trips that took them there.

A call that lasts is counted while it lasts: a task that has been busy with one tuple for a
minute shows it. Of each kind of exception the first traceback is shown, then how often it came
again: a message that always fails raises the same a thousand times per second. A kind is one
exception class at one line of one bolt.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial

from tiercel.acker.inbox.chunk import Chunk
from tiercel.acker.ledger import Reply
from tiercel.acker.metrics.contract import (
    TRACES_KEPT,
    ErrorReport,
    Metrics,
    Name,
    TraceReport,
    name_of,
    trace_counter,
)
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.reasons import place_of, user_traceback
from tiercel.spark_jobs.running.step import Done

ACKER = "__acker"
ACKER_TASK = 0
_FROM = "from:"


@cache
def edge_counter(component: str, stream: str) -> str:
    """The counter of the tuples that came from a stream."""
    return _FROM + json.dumps([component, stream])


def edge_of(counter: str) -> tuple[str, str] | None:
    """The component and the stream that a counter is about; None if it is about something else."""
    if not counter.startswith(_FROM):
        return None
    component, stream = json.loads(counter.removeprefix(_FROM))
    return component, stream


def sources_of(chunks: Sequence[Chunk]) -> Mapping[str, int]:
    """The counters of the edges that these chunks came over."""
    rows: Counter[str] = Counter()
    for chunk in chunks:
        rows[edge_counter(chunk.route.component, chunk.route.stream)] += chunk.values.num_rows
    return rows


def task_counts(done: Done, step_ns: int) -> dict[str, int]:
    """Count one step of a task."""
    record = done.record
    counts = {
        "steps": 1,
        "step_ns": step_ns,
        "executed": record.executed,
        "emitted": record.emitted,
        "transferred": record.transferred,
        "acked": len(record.acked),
        "failed": len(record.reasons),
        "execute_ns": record.execute_ns,
        "process_ns": done.process_ns,
        **sources_of(done.chunks),
        **(record.raised if record.errors else {}),
        **(record.once.counts if record.once is not None else {}),
    }
    return {name: count for name, count in counts.items() if count}


def acker_counts(reply: Reply, roots: int, took_ns: int) -> dict[str, int]:
    """Count what one call of the ledger did with this many roots."""
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


class Counting:
    """Adds up until ``flush``. Thread-safe."""

    def __init__(self, metrics: Metrics) -> None:
        self.tracebacks = Tracebacks()
        self._metrics = metrics
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, int], Counter[str]] = {}
        self._errors: list[ErrorReport] = []
        # By task: the record of the step that is being executed. Its time counts while it goes on;
        # ``step`` then adds the rest.
        self.executing: dict[int, Record] = {}

    def noting(self, task: int, component: str) -> Callable[[BaseException, str], str]:
        """Return what a bolt task tells of an error: it is counted under the name returned."""
        return partial(self.tracebacks.note, component, task)

    def step(
        self, task: int, done: Done, reply: Reply | None, *, step_ns: int, commit_ns: int
    ) -> None:
        """Count a step that is committed."""
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
        for task, record in list(self.executing.items()):
            if record.began_ns:
                lasts_ns = now_ns - record.began_ns
                self._add((record.component, task), {"execute_ns": lasts_ns - record.told_ns})
                record.told_ns = lasts_ns

    def _add(self, name: tuple[str, int], more: Mapping[str, int]) -> None:
        counts = self._counts.setdefault(name, Counter())
        for what, count in more.items():
            counts[what] += count
