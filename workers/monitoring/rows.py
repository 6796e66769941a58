"""The readings of a topology at one moment, and the rows that views show of its bolts, tasks,
processes, and its counts of the last minute. Pure.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from tiercel.acker.ids import is_extra, line_of, task_of
from tiercel.acker.inbox.contract import InboxFigures, OpenWindows, moment
from tiercel.acker.ledger import Census
from tiercel.acker.metrics.contract import (
    WINDOWS_CLOSED,
    WINDOWS_FAILED,
    WINDOWS_LATE,
    WINDOWS_REFUSED,
    Counted,
    Counts,
    ErrorReport,
    KnownError,
    chained_of,
    merged,
    percentile,
    total_of,
)
from tiercel.spark_jobs.topology.grouping import NoGrouping, Shuffle
from tiercel.spark_jobs.whereabouts import Whereabouts, unpacked
from tiercel.workers.control.contract import State
from tiercel.workers.control.presence import NEW, ExecutorReport, Presence, attended
from tiercel.workers.control.registry import Component, Graph

# Rates are counts per thousand seconds; times are counted in nanoseconds.
PER_SECOND = 1e3
_SHARE = 1e12
# Shares of its time that a task spends in its bolt.
_HOT = 0.8
_ENGAGED = 0.5
# Groupings whose tuples free tasks take from a line.
_LINES = (Shuffle.name, NoGrouping.name)
_NO_INBOX = InboxFigures(tuples=0, bytes=0, adopted=False, oldest_s=0.0, attempts=0, seen_s=None)
DRIVER = "the driver"
# Nearly 2,000 years around 1970: datetimes have these times in each time zone.
_FAR_US = 62 * 10**15


@dataclass(frozen=True, kw_only=True, slots=True)
class Readings:
    """Everything that was read about a topology at one moment."""

    graph: Graph
    counted: Counted
    present: Mapping[int, Presence]
    state: State | None
    # A driver has the topology's lease.
    driver: bool
    # By bolt task.
    inboxes: Mapping[int, InboxFigures]
    census: Census
    # Newest first.
    errors: Sequence[ErrorReport]
    # Longest time that a message may be in flight; 0: any time.
    in_flight_limit_s: float = 0.0
    # Number of tuples that each once bolt remembers.
    marks: Mapping[str, int] = field(default_factory=dict)
    # Kinds of errors that have a traceback.
    known_errors: Sequence[KnownError] = ()
    # Where the driver runs; None: there is no driver, or its place is unknown.
    driver_at: Whereabouts | None = None
    # The driver's reason why no executor can run bolts; empty: it reported none.
    trouble: str = ""
    # The driver's decision on executors; None: their number is the operator's.
    executors: ExecutorReport | None = None
    # Counts per thousand seconds, averaged over the last ten seconds.
    rates: Counts = field(default_factory=dict)
    # Counts of each slot of ten minutes, the current slot first.
    slots: Sequence[Counted] = ()
    # ``tiercel kill`` ended the topology, and no run has begun since.
    killed: bool = False
    # By bolt: when Redis lost its state, as the driver noticed.
    states_lost: Mapping[str, datetime] = field(default_factory=dict)
    # Paused bolt to the time of the order.
    paused: Mapping[str, datetime] = field(default_factory=dict)
    # Spout that can send nothing to the time since which it cannot.
    silent: Mapping[str, datetime] = field(default_factory=dict)
    # Aware, UTC.
    at: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True, kw_only=True, slots=True)
class Lately:
    """The counts of the last minute or a little more, the same in every view: health is judged by
    them.
    """

    # Length of the span; 0 if nothing was ever counted.
    seconds: float = 0.0
    # Messages of all spouts.
    emitted: int = 0
    acked: int = 0
    # Timeouts included.
    failed: int = 0
    # From emit to complete tree; None if none was complete.
    p99_ms: float | None = None
    # By component.
    counts: Mapping[str, Counter[str]] = field(default_factory=dict)
    # How long no message was acked, within the ten minutes that are counted by slots.
    quiet_s: float = 0.0
    # Messages that were emitted during that time, but before the span of the other counts.
    emitted_before: int = 0
    # Time since the first emission of that time, and since its first failure.
    emitting_s: float = 0.0
    failing_s: float = 0.0
    # Different messages that failed or were postponed in the span of the other counts, or more:
    # only five failures of a task are kept in ten seconds. A message without an identifier counts
    # once per attempt.
    failed_messages: int = 0

    def of(self, component: str) -> Counter[str]:
        """Return the counts of a component."""
        return self.counts.get(component, Counter())


NOT_COUNTED = Lately()
# An error may be this much older than the report that counts it.
REPORT_S = 2.0
_LATELY_SLOTS = 3


def lately_of(readings: Readings) -> Lately:
    """Count the last minute or a little more."""
    names = [spout.name for spout in readings.graph.spouts]
    found = merged(readings.slots[:_LATELY_SLOTS])
    counts = {each: total_of(found.counts, each) for each in found.counts}
    together = _together(counts, names)
    oldest = readings.at - timedelta(seconds=found.seconds + REPORT_S)
    about = {error.about for error in readings.errors if error.about and error.at >= oldest}
    return Lately(
        seconds=found.seconds,
        emitted=together["emitted"],
        acked=together["acked"],
        failed=together["failed"],
        p99_ms=percentile(together, 0.99),
        counts=counts,
        failed_messages=len(about),
        **_quiet(readings, names),
    )


def _together(counts: Mapping[str, Counter[str]], names: Iterable[str]) -> Counter[str]:
    total: Counter[str] = Counter()
    for name in names:
        total.update(counts.get(name, {}))
    return total


def _quiet(readings: Readings, spouts: Sequence[str]) -> Mapping[str, Any]:
    """Return the fields of ``Lately`` about the time since the last ack."""
    quiet_s = emitting_s = failing_s = 0.0
    emitted_before = 0
    for number, slot in enumerate(readings.slots):
        counts = {each: total_of(slot.counts, each) for each in slot.counts}
        of_spouts = _together(counts, spouts)
        if of_spouts["acked"]:
            break
        ended_s, quiet_s = quiet_s, quiet_s + slot.seconds
        if of_spouts["emitted"]:
            emitting_s = quiet_s
            emitted_before += of_spouts["emitted"] if number >= _LATELY_SLOTS else 0
        if any(of["failed"] for of in counts.values()):
            ages = [(readings.at - error.at).total_seconds() for error in readings.errors]
            within = [age_s for age_s in ages if ended_s <= age_s <= quiet_s + REPORT_S]
            failing_s = max(within, default=quiet_s)
    return {
        "quiet_s": quiet_s,
        "emitted_before": emitted_before,
        "emitting_s": emitting_s,
        "failing_s": failing_s,
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskRow:
    """One bolt task: its inbox and its process now, its steps in a window."""

    component: str
    task: int
    # Tuples in its inbox, including the tuples of its current step.
    waiting: int
    waiting_bytes: int
    # Age of the oldest waiting tuple; 0 while windows hold tuples.
    oldest_s: float
    # Its counters in the window.
    counts: Counter[str]
    # Share of the window that it spent in ``execute``, as in Storm: execute latency x executed /
    # window.
    capacity: float
    # The same share, over the last ten seconds.
    busy: float
    # Now.
    steps_a_second: float
    # Mean time of a step, its commit included; None if there was none.
    step_ms: float | None
    # Attempts at the task in this run, including the first.
    attempts: int
    # A process has recently reported that it runs the task.
    attended: bool
    # Seconds since the last such report; None: there was none in this run.
    seen_s: float | None
    # Time that its current call of the bolt has taken so far; None: no call takes long.
    doing_s: float | None = None
    # Failed tuples in its inbox that wait for their next attempt.
    retrying: int = 0
    # Open windows; None: its bolt has no windows, or the task no process.
    windows: OpenWindows | None = None
    # Where its process runs; None: there is no process, or its place is unknown.
    place: Whereabouts | None = None

    @property
    def restarts(self) -> int:
        """Attempts after the first."""
        return max(0, self.attempts - 1)


class Queued(NamedTuple):
    """Tuples that no task executes yet."""

    tuples: int
    # Age of the oldest tuple where there are any.
    oldest_s: float


class Load(enum.Enum):
    """Load of a bolt, by ``BoltRow.busy``."""

    CALM = "calm"
    ENGAGED = "engaged"
    # It is the bottleneck.
    HOT = "hot"


@dataclass(frozen=True, kw_only=True, slots=True)
class BoltRow:
    """One bolt in a window; its waiting tuples and processes are current."""

    name: str
    tasks: int
    # Its counters in the window.
    counts: Counter[str]
    # Mean time in ``execute`` and ``flush`` per tuple; None if nothing was executed.
    execute_ms: float | None
    # Mean time from the beginning of ``execute`` to the ack; None if nothing was acked.
    process_ms: float | None
    # Of its busiest task; near 1, the bolt needs more tasks.
    capacity: float
    # Over the last ten seconds, of its busiest task; the mean of all tasks if a free one takes the
    # next tuple, however busy the others are.
    busy: float
    free_tasks_take: bool
    # Tuples in the inboxes of its tasks, and in the line that they share.
    waiting: int
    # Tuples that no task executes yet, about.
    queued: Queued
    # Age of the oldest waiting tuple.
    oldest_s: float
    # Now.
    steps_a_second: float
    # Mean time of a step, its commit included; None if there was none.
    step_ms: float | None
    # Attempts in this run after the first one of each task.
    restarts: int
    # Tasks without a process.
    unattended: tuple[int, ...]
    last_error: ErrorReport | None
    # Tasks that have been in one call for long, and for how many seconds.
    calls: tuple[tuple[int, float], ...] = ()
    # Waiting tuples that have failed and wait for their next attempt.
    retrying: int = 0
    # The bolt whose steps execute its tuples, and their share; None: its own tasks do all of it.
    chained: tuple[str, float] | None = None
    # When Redis lost its state, as the driver noticed; None: never.
    state_lost_at: datetime | None = None
    # Since when it is paused by order; None: it is not.
    paused_since: datetime | None = None

    @property
    def paused(self) -> bool:
        """True if an operator has paused it."""
        return self.paused_since is not None

    @property
    def load(self) -> Load:
        """Load over the last ten seconds."""
        if self.busy >= _HOT:
            return Load.HOT
        return Load.ENGAGED if self.busy >= _ENGAGED else Load.CALM


def task_rows(component: Component, readings: Readings) -> tuple[TaskRow, ...]:
    """Return the rows of a bolt's tasks, in order: its own, and the extra ones that run."""
    extra = sorted(
        task
        for task, inbox in readings.inboxes.items()
        if is_extra(task) and task_of(task) in component.tasks and attended(inbox)
    )
    tasks = (*component.tasks, *extra)
    return tuple(_task(component.name, task, readings) for task in tasks)


def _task(component: str, task: int, readings: Readings) -> TaskRow:
    counts = Counter(readings.counted.counts.get(component, {}).get(task))
    rates = Counter(readings.rates.get(component, {}).get(task))
    window_s = readings.counted.seconds
    inbox = readings.inboxes.get(task, _NO_INBOX)
    execute_s = counts["execute_ns"] / 1e9
    return TaskRow(
        component=component,
        task=task,
        waiting=inbox.tuples,
        waiting_bytes=inbox.bytes,
        oldest_s=oldest_waiting_s(inbox),
        counts=counts,
        # The first report of a process may cover time before the window.
        capacity=min(1.0, execute_s / window_s) if window_s else 0.0,
        busy=min(1.0, rates["execute_ns"] / _SHARE),
        steps_a_second=rates["steps"] / PER_SECOND,
        step_ms=mean(counts["step_ns"] / 1e6, counts["steps"]),
        attempts=inbox.attempts,
        attended=attended(inbox),
        seen_s=inbox.seen_s,
        doing_s=inbox.doing_s if attended(inbox) else None,
        retrying=inbox.retrying if attended(inbox) else 0,
        windows=inbox.windows if attended(inbox) else None,
        place=unpacked(inbox.place) if attended(inbox) else None,
    )


def inboxes_in(graph: Graph, counts: Mapping[str, Iterable[int]]) -> list[int]:
    """Return the ids of all inboxes: of bolt tasks, of the lines that some tasks share, and of the
    extra tasks that have counted and are not known to be over.
    """
    lines = [line_of(bolt.tasks) for bolt in graph.bolts if len(bolt.tasks) > 1]
    counted = [task for bolt in graph.bolts for task in counts.get(bolt.name, ())]
    return [*graph.bolt_tasks, *lines, *filter(is_extra, counted)]


def oldest_waiting_s(inbox: InboxFigures) -> float:
    """Return the age of the oldest waiting tuple; 0 while windows hold tuples, which are older."""
    return 0.0 if inbox.windows is not None and inbox.windows.tuples else inbox.oldest_s


def _queued(component: Component, readings: Readings, rows: Sequence[TaskRow]) -> Queued:
    """Return the tuples of a bolt that no task executes yet."""
    line = readings.inboxes.get(line_of(component.tasks), _NO_INBOX)
    found = [(line.tuples, line.oldest_s)]
    for row in rows:
        # A task that executes one tuple after the other reports a call that takes long.
        begun = component.at_once if component.at_once > 1 else row.doing_s is not None
        begun = 0 if component.name in readings.paused else begun
        found.append((row.waiting - row.retrying - begun, row.oldest_s))
    waiting = [(number, age_s) for number, age_s in found if number > 0]
    return Queued(
        sum(number for number, _ in waiting), max((age_s for _, age_s in waiting), default=0.0)
    )


def _busy(component: Component, readings: Readings, rows: Sequence[TaskRow]) -> tuple[float, bool]:
    """Return how busy a bolt is, and whether its free tasks take the next tuple from a line."""
    edges = [edge for edge in readings.graph.edges if edge.target == component.name]
    free_tasks_take = len(component.tasks) > 1 and all(edge.grouping in _LINES for edge in edges)
    shares = [row.busy for row in rows if row.attended] or [0.0]
    busy = sum(shares) / len(shares) if free_tasks_take else max(shares)
    return busy, free_tasks_take


def bolt_row(
    component: Component, readings: Readings, rows: Sequence[TaskRow], error: ErrorReport | None
) -> BoltRow:
    """Return the row of a bolt; ``rows`` are its tasks."""
    counts = total_of(readings.counted.counts, component.name)
    line = readings.inboxes.get(line_of(component.tasks), _NO_INBOX)
    busy, free_tasks_take = _busy(component, readings, rows)
    return BoltRow(
        name=component.name,
        tasks=len(rows),
        counts=counts,
        execute_ms=mean(counts["execute_ns"] / 1e6, counts["executed"]),
        process_ms=mean(counts["process_ns"] / 1e6, counts["acked"]),
        capacity=max((row.capacity for row in rows), default=0.0),
        busy=busy,
        free_tasks_take=free_tasks_take,
        waiting=sum(row.waiting for row in rows) + line.tuples,
        queued=_queued(component, readings, rows),
        oldest_s=max([line.oldest_s, *(row.oldest_s for row in rows)]),
        steps_a_second=sum(row.steps_a_second for row in rows),
        step_ms=mean(counts["step_ns"] / 1e6, counts["steps"]),
        restarts=sum(row.restarts for row in rows),
        unattended=tuple(row.task for row in rows if not row.attended),
        last_error=error,
        calls=tuple((row.task, row.doing_s) for row in rows if row.doing_s is not None),
        retrying=sum(row.retrying for row in rows),
        chained=_chained(total_of(readings.rates, component.name)),
        state_lost_at=readings.states_lost.get(component.name),
        paused_since=readings.paused.get(component.name),
    )


def _chained(rates: Mapping[str, int]) -> tuple[str, float] | None:
    """Return the bolt whose steps have executed most tuples of a bolt lately, and their share."""
    counts = [
        (number, head) for name, number in rates.items() if (head := chained_of(name)) and number
    ]
    if not counts:
        return None
    most, head = max(counts)
    return head, most / max(most, rates["executed"])


def mean(total: float, count: int) -> float | None:
    """Return the mean; None without a count."""
    return total / count if count else None


@dataclass(frozen=True, kw_only=True, slots=True)
class SpoutTaskRow:
    """One spout task at this moment."""

    component: str
    task: int
    # A worker runs the task.
    running: bool
    presence: Presence


def spout_tasks(readings: Readings) -> tuple[SpoutTaskRow, ...]:
    """Return the rows of all spout tasks, in order."""
    present = readings.present
    return tuple(
        SpoutTaskRow(
            component=spout.name,
            task=task,
            running=task in present,
            presence=present.get(task, NEW),
        )
        for spout in readings.graph.spouts
        for task in spout.tasks
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessRow:
    """One live process."""

    # None: it runs an older version, which does not report its place.
    place: Whereabouts | None
    # "the driver", or its tasks by component: ``split[3, 4]``.
    runs: str


def processes(
    readings: Readings, spouts: Iterable[SpoutTaskRow], bolts: Iterable[TaskRow]
) -> tuple[ProcessRow, ...]:
    """Return the processes: the driver first, then spout workers, then the processes of bolts."""
    running: dict[Whereabouts | None, dict[str, list[int]]] = defaultdict(dict)
    if readings.driver:
        running[readings.driver_at][DRIVER] = []
    for worker in spouts:
        if worker.running:
            of_process = running[worker.presence.whereabouts]
            of_process.setdefault(worker.component, []).append(worker.task)
    for row in bolts:
        if row.attended:
            running[row.place].setdefault(row.component, []).append(row.task)
    return tuple(ProcessRow(place=place, runs=_runs(tasks)) for place, tasks in running.items())


def _runs(tasks: dict[str, list[int]]) -> str:
    return ", ".join(
        f"{name}[{', '.join(map(str, numbers))}]" if numbers else name
        for name, numbers in tasks.items()
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowsRow:
    """The figures of a windowed bolt in a window of time; its open windows are current."""

    name: str
    # Of the tasks that have a process; None: none has.
    open: int | None
    held: int | None
    # Of the task that is furthest behind; None: no task has one, as in processing time.
    watermark: datetime | None
    # Time since the watermark, which is below 0 if timestamps are ahead of the clock.
    watermark_lag_s: float | None
    closed: int
    # Calls for a window that raised.
    failed: int
    # Tuples that came after their last window had closed.
    late: int
    # Tuples without a valid timestamp.
    refused: int
    # Age of the oldest tuple that they hold.
    oldest_s: float | None

    @property
    def watermark_s(self) -> float | None:
        """The watermark in seconds since 1970."""
        return None if self.watermark is None else self.watermark.timestamp()


def windows_rows(
    readings: Readings, bolts: Sequence[BoltRow], tasks: Sequence[TaskRow]
) -> tuple[WindowsRow, ...]:
    """Return the rows of the windowed bolts that have anything to show."""
    rows = []
    for bolt in bolts:
        total = total_of(readings.counted.counts, bolt.name)
        by_task = {
            each.task: each.windows
            for each in tasks
            if each.component == bolt.name and each.windows
        }
        told = list(by_task.values())
        ages = [readings.inboxes[task].oldest_s for task, each in by_task.items() if each.tuples]
        marks = [each.watermark_us for each in told if each.watermark_us is not None]
        watermark = moment(min(max(min(marks), -_FAR_US), _FAR_US)) if marks else None
        lag_s = None if watermark is None else (readings.at - watermark).total_seconds()
        row = WindowsRow(
            name=bolt.name,
            open=sum(each.number for each in told) if told else None,
            held=sum(each.tuples for each in told) if told else None,
            watermark=watermark,
            watermark_lag_s=lag_s,
            closed=total[WINDOWS_CLOSED],
            failed=total[WINDOWS_FAILED],
            late=total[WINDOWS_LATE],
            refused=total[WINDOWS_REFUSED],
            oldest_s=max(ages, default=0.0) if told else None,
        )
        if told or row.closed or row.failed or row.late or row.refused:
            rows.append(row)
    return tuple(rows)
