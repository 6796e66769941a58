"""The contract of the counters of every task of a topology, exact and not sampled, and of the last
errors; with windows, latencies as counters, and errors by kind.

A window is a span of time cut into slots: the slot of now and the twenty before it, as in Storm.
Nothing is sampled or forgotten early, and a window reaches back a twentieth more than its name says
at most.

Latencies are a histogram of exact counters, so that tasks and processes add up: bucket i counts the
latencies from 1.1**i to 1.1**(i + 1) ms under the counter name "complete_ms_bucket:i"; below 1 ms,
i is negative.
"""

from __future__ import annotations

import enum
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from tiercel.acker.ledger import REASON_LENGTH

LATENCY_BUCKET = "complete_ms_bucket:"
_GROWTH = math.log(1.1)
_SHORTEST_MS = 1e-3
_LONGEST_MS = 1e9
SLOTS = 20


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


SLIDING = (Window.TEN_MINUTES, Window.THREE_HOURS, Window.ONE_DAY)

# By component, task and counter.
Counts = dict[str, dict[int, dict[str, int]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """Counts of a window."""

    counts: Counts
    # Length of the window: since its first slot began, or since counting did. 0 if nothing
    # was ever counted.
    seconds: float


def total_of(counts: Mapping[str, Mapping[int, Mapping[str, int]]], component: str) -> Counter[str]:
    """Return the sums of the counters of a component's tasks; empty if it has none."""
    total: Counter[str] = Counter()
    for of_task in counts.get(component, {}).values():
        total.update(of_task)
    return total


def slot_of(window: Window, now: float) -> int:
    """The number of the slot that ``now`` lies in."""
    return int(now // window.slot_s)


def slots_of(window: Window, now: float) -> range:
    """The numbers of all slots of a window that ends now."""
    last = slot_of(window, now)
    return range(last - SLOTS, last + 1)


def seconds_of(window: Window, now: float, since: float | None) -> float:
    """Return the length of a window now, if counting began at ``since``."""
    if since is None:
        return 0.0
    began = (
        since
        if window is Window.ALL_TIME
        else max(since, slots_of(window, now).start * window.slot_s)
    )
    return max(0.0, now - began)


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorReport:
    """One error of one task, as operators see it."""

    # Aware, UTC.
    at: datetime
    component: str
    task: int
    # One line, at most 500 characters.
    message: str


def newest_first(errors: Iterable[ErrorReport]) -> list[ErrorReport]:
    """Sort by time; reports of one time stay in the order in which they came."""
    return sorted(errors, key=lambda error: error.at, reverse=True)


ERRORS_KEPT = 1000
# As in Storm: five errors per task in ten seconds.
ERRORS_A_WINDOW = 5
ERRORS_WINDOW = timedelta(seconds=10)


def by_task(errors: Sequence[ErrorReport]) -> dict[tuple[str, int], list[ErrorReport]]:
    """The errors of each (component, task), in order, clipped."""
    found: dict[tuple[str, int], list[ErrorReport]] = {}
    for error in errors:
        clipped = replace(error, message=error.message[:REASON_LENGTH])
        found.setdefault((error.component, error.task), []).append(clipped)
    return found


# Kinds per topology; beyond this the kind that has not come for the longest is forgotten.
TRACES_KEPT = 100


_RAISED = "raised:"


_NAME_LENGTH = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceReport:
    """One error of one task. Component, kind and place say which of all errors it is."""

    # Aware, UTC.
    at: datetime
    component: str
    task: int
    # Class of the exception: ``KeyError``.
    kind: str
    # Line of the user's code: ``helpers.py:12``; empty if it went through none.
    place: str
    # One line, at most 500 characters.
    reason: str
    # The traceback, in several lines; empty from a process that has reported it before.
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownError:
    """One kind of error of one component: its first report, and its count."""

    first: TraceReport
    # Aware, UTC.
    last: datetime
    # Errors of this kind of all tasks.
    count: int


# Identity of a kind of error: component, kind, place.
Name = tuple[str, str, str]
R = TypeVar("R", ErrorReport, TraceReport)


class Metrics(Protocol):
    """Counters by component and task, exact as long as the counting process lives.

    Counts that a process has not yet reported when it is killed are lost, and so are those that a
    store loses. Never a message.
    """

    def add(self, component: str, task: int, counts: Mapping[str, int]) -> None:
        """Add to the named counters of one task, all in one round trip.

        Call it once per piece of work.

        When it raises RedisUnavailableError the counts are kept here: the next call sends them
        too, and a call that had taken effect although its reply was lost is not counted twice. So
        do not add them again.
        """
        self.add_all({(component, task): counts})

    def add_all(self, counts: Mapping[tuple[str, int], Mapping[str, int]]) -> None:
        """``add`` for several tasks, {(component, task): {counter: count}}, in the
        same one round trip.
        """

    def report(self, errors: Sequence[ErrorReport]) -> None:
        """Keep these errors, the newest 1000 of the topology.

        A task keeps the first five errors of every ten seconds.

        A window begins with the first error after the window before. All processes that a task runs
        in share it.
        """

    def totals(self) -> Counts:
        """Everything counted, by component, task and counter."""
        return self.over(Window.ALL_TIME).counts

    def over(self, window: Window) -> Counted:
        """Return the counts of a window that ends now, and the length of that window.

        Exact, by the clock of each machine that counts. Counts older than a day and a slot are kept
        in the totals alone.
        """

    def errors(self, limit: int = 50) -> list[ErrorReport]:
        """Return the last reports, by the time at which they happened, newest first."""

    def trace(self, reports: Sequence[TraceReport]) -> None:
        """Keep the first report of each kind of error that has a traceback, and when each kind came
        last, of the 100 kinds of the topology that came last.

        Repeating a call changes nothing. The number of errors of a kind is among the counters.
        """

    def traces(self) -> Sequence[KnownError]:
        """Return the kinds of errors that are kept, by when they came last, the newest first."""

    def clear(self) -> None:
        """Forget everything that was counted for this topology."""


def bucket_of(latency_ms: float) -> str:
    """The counter that counts a latency; below 1 µs counts as 1 µs."""
    bounded_ms = min(max(latency_ms, _SHORTEST_MS), _LONGEST_MS)
    return f"{LATENCY_BUCKET}{math.floor(math.log(bounded_ms) / _GROWTH)}"


def cumulative(counts: Mapping[str, int], every: int = 8) -> list[tuple[float, int]]:
    """Return pairs (bound in ms, number of latencies below it), exact.

    The bounds go from 1 ms to 100 s, each 1.1**``every`` times the one before; the last one is
    infinite: all of them.
    """
    buckets = _buckets(counts)
    bounds = range(0, math.ceil(math.log(1e5) / _GROWTH) + every, every)
    found = [
        (math.exp(bound * _GROWTH), sum(n for at, n in buckets.items() if at < bound))
        for bound in bounds
    ]
    return [*found, (math.inf, sum(buckets.values()))]


def percentile(counts: Mapping[str, int], q: float) -> float | None:
    """Latency in ms that the fraction ``q`` (0 to 1) of all counted ones does not exceed.

    Within 5 %; None if none were counted.

    Counters with other names are ignored.
    """
    buckets = _buckets(counts)
    rank = q * sum(buckets.values())
    seen = 0
    for bucket, count in sorted(buckets.items()):
        seen += count
        if count and seen >= rank:
            # The geometric middle of the bucket: 4.9 % from either end.
            return math.exp((bucket + 0.5) * _GROWTH)
    return None


def _buckets(counts: Mapping[str, int]) -> dict[int, int]:
    """Return the counts of latencies by the number of their bucket."""
    return {
        int(name.removeprefix(LATENCY_BUCKET)): count
        for name, count in counts.items()
        if name.startswith(LATENCY_BUCKET)
    }


def name_of(report: TraceReport) -> Name:
    """Return the identity of the kind of error of a report."""
    return report.component, report.kind, report.place


def trace_counter(kind: str, place: str) -> str:
    """Return the counter that counts such errors of a task, among the task's other counters."""
    return f"{_RAISED}{json.dumps([kind[:_NAME_LENGTH], place[:_NAME_LENGTH]])}"


def known_errors(
    reports: Iterable[tuple[TraceReport, datetime]], totals: Counts
) -> Sequence[KnownError]:
    """Join first reports, each with when it came last, and counters; the newest first.

    A process tells its counters and its tracebacks one after the other: the count is one at least.
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


def packed(report: ErrorReport | TraceReport) -> str:
    """Pack a report for a store."""
    return json.dumps(astuple(report), default=datetime.isoformat)


def unpacked(kind: type[R], found: bytes) -> R:
    """Undo ``packed``."""
    at, *rest = json.loads(found)
    names = [field.name for field in fields(kind)]
    return kind(**dict(zip(names, [datetime.fromisoformat(at), *rest], strict=True)))
