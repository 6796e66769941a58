"""The contract of the counters and the last errors of all tasks of a topology.

Counters are exact: nothing is sampled or dropped early. A window is a span of time divided into
slots: the current slot and the twenty before it, as in Storm. A window is at most a twentieth
longer than its name says.

Latencies are a histogram of exact counters, which can be summed over tasks and processes: bucket i
counts the latencies from 1.1**i to 1.1**(i + 1) ms under the counter name "complete_ms_bucket:i";
below 1 ms, i is negative.

A ``Tally`` collects the counters and errors of one spout task between two reports.

The counters of a bolt task:

emitted, transferred, executed, acked, failed   as in Storm
retried       executed tuples that failed and that the bolt's ``Retry`` executes again; they are not
              in ``failed``
execute_ns    total time in ``execute`` and ``flush``
process_ns    total time from the start of ``execute`` to the ack, over all acked tuples
steps         committed steps
step_ns       total time of these steps, from the first tuple to the end of the commit, including
              waits for full inboxes
once_repeated, once_unkeyed, once_unsure
              for a bolt with ``once``: tuples that were applied before; tuples without a key;
              tuples older than the remembered keys, which may have been applied before
windows_closed, windows_failed, windows_late, windows_refused
              for a windowed bolt: windows that closed; calls for windows that raised; tuples that
              came after their last window had closed; tuples without a valid timestamp
retry_later   tuples that the bolt postponed with ``RetryLater``; they are among the failed ones
state_lost_at seconds since the epoch at which the driver last saw that Redis had lost the bolt's
              state; a count of task 0
from:[…]      executed tuples by source component and stream: the edges of the topology's graph
in:…          executed tuples by the component whose steps executed them, see running/chain.py

The ledger is counted as the bolt ``__acker``:

executed      updates of roots
acked         trees that the updates completed
failed        trees that bolts failed
late          updates of trees that had already ended
execute_ns    total time of the round trips
"""

from __future__ import annotations

import enum
import json
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Protocol

from tiercel.acker.errors import AckerError
from tiercel.acker.ledger import REASON_LENGTH

log = logging.getLogger(__name__)

ACKER = "__acker"
ACKER_TASK = 0
WINDOWS_CLOSED = "windows_closed"
WINDOWS_FAILED = "windows_failed"
WINDOWS_LATE = "windows_late"
WINDOWS_REFUSED = "windows_refused"
RETRY_LATER = "retry_later"
ONCE_REPEATED = "once_repeated"
ONCE_UNKEYED = "once_unkeyed"
ONCE_UNSURE = "once_unsure"
STATE_LOST_AT = "state_lost_at"
# The driver counts for no task of a bolt; so do tasks that are over.
DRIVER_TASK = 0
_FROM = "from:"
_IN = "in:"
LATENCY_BUCKET = "complete_ms_bucket:"
_GROWTH = math.log(1.1)
_SHORTEST_MS = 1e-3
_LONGEST_MS = 1e9
SLOTS = 20
# A ``Tally`` sends at most this often. As in Storm, it keeps at most five errors per ten seconds:
# all others are only counted.
_TALLY_S = 0.5
_ERRORS_KEPT = 5
_ERRORS_WINDOW_S = 10.0


@cache
def edge_counter(component: str, stream: str) -> str:
    """Return the name of the counter of tuples from a stream."""
    return _FROM + json.dumps([component, stream])


def chained_counter(component: str) -> str:
    """Return the name of the counter of tuples that were executed in steps of another component."""
    return _IN + component


def chained_of(counter: str) -> str | None:
    """Return the component of a counter of ``chained_counter``; None for any other counter."""
    return counter.removeprefix(_IN) if counter.startswith(_IN) else None


class Window(enum.Enum):
    """A span of time up to now; the value is in seconds."""

    TEN_MINUTES = 600
    THREE_HOURS = 10_800
    ONE_DAY = 86_400
    ALL_TIME = 0

    @property
    def slot_s(self) -> int:
        """Seconds per slot; ``ALL_TIME`` has none."""
        return self.value // SLOTS

    def slot_at(self, now: float) -> int:
        """Return the number of the slot at ``now``."""
        return int(now // self.slot_s)

    def slots_at(self, now: float) -> range:
        """Return the numbers of all slots of the window that ends now."""
        return range(self.slot_at(now) - SLOTS, self.slot_at(now) + 1)

    def slot_seconds_at(self, number: int, now: float, since: float | None) -> float:
        """Return how long a slot has counted by ``now``, if counting began at ``since``."""
        if since is None:
            return 0.0
        ends = min(now, (number + 1) * self.slot_s)
        return max(0.0, ends - max(since, number * self.slot_s))

    def seconds_at(self, now: float, since: float | None) -> float:
        """Return the length of the window that ends now, if counting began at ``since``."""
        if since is None:
            return 0.0
        all_time = self is Window.ALL_TIME
        began = since if all_time else max(since, self.slots_at(now).start * self.slot_s)
        return max(0.0, now - began)


SLIDING = (Window.TEN_MINUTES, Window.THREE_HOURS, Window.ONE_DAY)

# Counts by component, task and counter.
Counts = dict[str, dict[int, dict[str, int]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """Counts of a window."""

    counts: Counts
    # Length of the window: the time since its first slot began, or since counting began if that
    # was later. 0 if nothing was ever counted.
    seconds: float


def merged(parts: Iterable[Counted]) -> Counted:
    """Add up the counts of spans of time that do not overlap."""
    counts: Counts = {}
    seconds = 0.0
    for part in parts:
        seconds += part.seconds
        for component, tasks in part.counts.items():
            for task, more in tasks.items():
                of_task = counts.setdefault(component, {}).setdefault(task, {})
                for name, count in more.items():
                    of_task[name] = of_task.get(name, 0) + count
    return Counted(counts=counts, seconds=seconds)


def total_of(counts: Mapping[str, Mapping[int, Mapping[str, int]]], component: str) -> Counter[str]:
    """Return the counters of a component, summed over its tasks; empty if there are none."""
    total: Counter[str] = Counter()
    for of_task in counts.get(component, {}).values():
        total.update(of_task)
    return total


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorReport:
    """One error of one task, as operators see it."""

    # Aware, UTC.
    at: datetime
    component: str
    task: int
    # One line, at most 500 characters.
    message: str
    # The message that failed: ``message order-17 of queue orders``; empty if it is not known.
    about: str = ""


def newest_first(errors: Iterable[ErrorReport]) -> list[ErrorReport]:
    """Sort by time, newest first; reports with equal times keep their order."""
    return sorted(errors, key=lambda error: error.at, reverse=True)


ERRORS_KEPT = 1000
# As in Storm: five errors per task in ten seconds.
ERRORS_A_WINDOW = 5
ERRORS_WINDOW = timedelta(seconds=10)


def by_task(errors: Sequence[ErrorReport]) -> dict[tuple[str, int], list[ErrorReport]]:
    """Group errors by (component, task), in order, with clipped messages."""
    found: dict[tuple[str, int], list[ErrorReport]] = {}
    for error in errors:
        clipped = replace(error, message=error.message[:REASON_LENGTH])
        found.setdefault((error.component, error.task), []).append(clipped)
    return found


# Kinds per topology; beyond this, the kind that was not seen for the longest time is forgotten.
TRACES_KEPT = 100


_RAISED = "raised:"


_NAME_LENGTH = 200


# Identity of a kind of error: component, kind, place.
Name = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceReport:
    """One error of one task, identified by component, kind and place."""

    # Aware, UTC.
    at: datetime
    component: str
    task: int
    # Class of the exception: ``KeyError``.
    kind: str
    # Line of the user's code: ``helpers.py:12``; empty if the traceback has none.
    place: str
    # One line, at most 500 characters.
    reason: str
    # The traceback, in several lines; empty if the process has reported it before.
    text: str

    @property
    def name(self) -> Name:
        """The identity of its kind of error; one kind has one counter."""
        return self.component, self.kind[:_NAME_LENGTH], self.place[:_NAME_LENGTH]


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownError:
    """One kind of error of one component, with its first report and its count."""

    first: TraceReport
    # Aware, UTC.
    last: datetime
    # Number of errors of this kind in all tasks.
    count: int


class Metrics(Protocol):
    """Counters by component and task, exact as long as the counting process lives.

    Counts that a process has not reported when it is killed are lost, and so are counts that a
    store loses. Messages are never lost.
    """

    def add(self, component: str, task: int, counts: Mapping[str, int]) -> None:
        """Add to the named counters of one task, all in one round trip.

        Call it once per piece of work. Errors of a kind that ``trace`` does not keep are counted as
        ``OTHER_KINDS``, so that there are no more counters than kinds. These counters are kept for
        all time only, as ``DRIVER_TASK`` of the component.

        If this raises RedisUnavailableError, the counts are kept and sent with the next call: do
        not add them again. A call that took effect although its reply was lost is not counted
        twice.
        """
        self.add_all({(component, task): counts})

    def add_all(self, counts: Mapping[tuple[str, int], Mapping[str, int]]) -> None:
        """``add`` for several tasks, {(component, task): {counter: count}}, in one round trip."""

    def report(self, errors: Sequence[ErrorReport]) -> None:
        """Keep these errors; a topology keeps its newest 1000.

        Per task, only the first five errors of each window of ten seconds are kept. A window begins
        with the first error after the previous window. All processes that run the task share it.
        """

    def totals(self) -> Counts:
        """Return all counts, by component, task and counter."""
        return self.over(Window.ALL_TIME).counts

    def over(self, window: Window) -> Counted:
        """Return the counts of a window that ends now, and the length of that window.

        Counts are exact, by the clock of the machine that counted. Counts older than a day and a
        slot are kept only in the totals.
        """

    def slots(self) -> Sequence[Counted]:
        """Return the counts of each slot of the last ten minutes, the current slot first.

        A slot is half a minute; added up, the slots are ``over(Window.TEN_MINUTES)``.
        """

    def errors(self, limit: int = 50) -> list[ErrorReport]:
        """Return the last errors, newest first."""

    def trace(self, reports: Sequence[TraceReport]) -> None:
        """Keep the first report with a traceback of each kind of error, and the time of its last
        report, for the 100 kinds of the topology that were reported last.

        Repeating a call changes nothing. The number of errors of a kind is among the counters: call
        this before ``add``. The count of a kind that is forgotten is added to ``OTHER_KINDS``.
        """

    def traces(self) -> Sequence[KnownError]:
        """Return the kinds of errors that are kept, those reported last first."""

    def retire(self, is_over: Callable[[int], bool]) -> None:
        """Move the counts of all time of tasks that are over to ``DRIVER_TASK`` of their component,
        so that the totals of components stay and tasks that come and go do not pile up.

        Windows keep the tasks. May be repeated, and also moves counts that came late. Counters of
        kinds of errors, as older versions wrote them, are moved to where ``add`` counts now.
        """

    def clear(self) -> None:
        """Delete all counts and errors of this topology."""


class Tally:
    """Counters and errors of one task since its last report. Thread-safe, but for ``flush``: one
    thread calls that.
    """

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
        self.flush_at = clock() + _TALLY_S
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
        self.flush_at = self._clock() + _TALLY_S
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


def bucket_of(latency_ms: float) -> str:
    """Return the name of the counter of a latency; less than 1 µs counts as 1 µs."""
    bounded_ms = min(max(latency_ms, _SHORTEST_MS), _LONGEST_MS)
    return f"{LATENCY_BUCKET}{math.floor(math.log(bounded_ms) / _GROWTH)}"


def cumulative(counts: Mapping[str, int], every: int = 8) -> list[tuple[float, int]]:
    """Return pairs (bound in ms, exact number of latencies below it).

    The bounds go from 1 ms to 100 s, each 1.1**``every`` times the one before; the last bound is
    infinite, and includes all latencies.
    """
    buckets = _buckets(counts)
    bounds = range(0, math.ceil(math.log(1e5) / _GROWTH) + every, every)
    found = [
        (math.exp(bound * _GROWTH), sum(n for at, n in buckets.items() if at < bound))
        for bound in bounds
    ]
    return [*found, (math.inf, sum(buckets.values()))]


def percentile(counts: Mapping[str, int], q: float) -> float | None:
    """Return the latency in ms that the fraction ``q`` (0 to 1) of all latencies does not exceed.

    Exact to 5 %; None if no latency was counted. Counters with other names are ignored.
    """
    buckets = _buckets(counts)
    rank = q * sum(buckets.values())
    seen = 0
    for bucket, count in sorted(buckets.items()):
        seen += count
        if count and seen >= rank:
            # The geometric middle of the bucket is 4.9 % from either end.
            return math.exp((bucket + 0.5) * _GROWTH)
    return None


def _buckets(counts: Mapping[str, int]) -> dict[int, int]:
    """Return the counts of latencies by bucket number."""
    return {
        int(name.removeprefix(LATENCY_BUCKET)): count
        for name, count in counts.items()
        if name.startswith(LATENCY_BUCKET)
    }


def trace_counter(kind: str, place: str) -> str:
    """Return the name of the counter of a kind of error, among a task's other counters."""
    return f"{_RAISED}{json.dumps([kind[:_NAME_LENGTH], place[:_NAME_LENGTH]])}"


# Counts the errors of all kinds that are not kept: exception classes made at run time would fill
# the counters. metrics/lua/trace.lua names it too.
OTHER_KINDS = trace_counter("errors of other kinds", "")


def kind_of(counter: str) -> tuple[str, str] | None:
    """Return kind and place of a counter of ``trace_counter``; None for any other counter."""
    if not counter.startswith(_RAISED):
        return None
    kind, place = json.loads(counter.removeprefix(_RAISED))
    return kind, place


def known_errors(
    reports: Iterable[tuple[TraceReport, datetime]], totals: Counts
) -> Sequence[KnownError]:
    """Add the counts to the first and last reports of each kind; sort by last, newest first.

    A count is at least one, even if a process has not yet reported its counters.
    """
    found = [
        KnownError(first=first, last=last, count=max(1, _count(first, totals)))
        for first, last in reports
    ]
    return sorted(found, key=lambda known: known.last, reverse=True)


def _count(report: TraceReport, totals: Counts) -> int:
    counter = trace_counter(report.kind, report.place)
    tasks: Mapping[int, Mapping[str, int]] = totals.get(report.component, {})
    return sum(counts.get(counter, 0) for counts in tasks.values())
