"""A topology as every view shows it, computed from its counters. Pure.

Counts are exact: each tuple is counted once, where it is processed, however often steps repeat.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import blake2b

from tiercel.acker.metrics.contract import (
    ACKER,
    ONCE_REPEATED,
    ONCE_UNKEYED,
    ONCE_UNSURE,
    ErrorReport,
    KnownError,
    cumulative,
    edge_counter,
    percentile,
    total_of,
)
from tiercel.queues.broker.depths import QueueDepth
from tiercel.queues.message.identity import NO_IDENTITY
from tiercel.spark_jobs.whereabouts import Whereabouts
from tiercel.workers.control.contract import State
from tiercel.workers.control.presence import ExecutorReport
from tiercel.workers.control.registry import Component, Edge
from tiercel.workers.monitoring.rows import (
    NOT_COUNTED,
    PER_SECOND,
    REPORT_S,
    BoltRow,
    Lately,
    ProcessRow,
    Readings,
    SpoutTaskRow,
    TaskRow,
    WindowsRow,
    bolt_row,
    lately_of,
    mean,
    oldest_waiting_s,
    processes,
    spout_tasks,
    task_rows,
    windows_rows,
)

# Parts of a reason that vary between messages: quoted text and numbers.
_VARIES = re.compile(r"'[^']*'|\"[^\"]*\"|\b0x[0-9a-f]+\b|\d+(?:[.,]\d+)*")
_ECHO = re.compile(r"(.+?)\[(\d+)\]: (.*)", re.DOTALL)
# Characters by which a report and its echo are compared, since reasons are clipped.
_COMPARED = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """The errors of one component that share a reason."""

    component: str
    # The reason of the last error.
    reason: str
    count: int
    # False: older errors were dropped, and ``count`` covers only the kept ones.
    exact: bool
    # Aware, UTC.
    first: datetime
    last: datetime
    # The newest message that failed for this reason; empty if it is not known.
    about: str = ""
    # Eight hexadecimal digits, the same as long as errors of this group are kept.
    id: str = ""


def grouped(
    errors: Iterable[ErrorReport], bolts: Collection[str], known: Sequence[KnownError] = ()
) -> list[Fault]:
    """Group error reports by reason; reports and groups are sorted newest first.

    Errors of one kind that the same line of the user's code raised are one group. Other errors are
    one group if their reasons differ only in quoted text and numbers.
    """
    groups: dict[tuple[str, ...], tuple[ErrorReport, KnownError | None, list[ErrorReport]]] = {}
    for error in errors:
        own = _repeated(error, bolts)
        kind = known_for(known, own.component, own.message)
        reason = _VARIES.sub("…", own.message)
        name = (reason,) if kind is None else (kind.first.kind, kind.first.place)
        groups.setdefault((own.component, *name), (own, kind, []))[-1].append(error)
    return [_fault(name, *group) for name, group in groups.items()]


def _fault(
    name: tuple[str, ...], own: ErrorReport, known: KnownError | None, errors: Sequence[ErrorReport]
) -> Fault:
    """Make a group of its last error, ``own``, and of all reports."""
    # A spout reports the error of a bolt again, for the message that failed.
    count = sum(error.component == own.component for error in errors) or len(errors)
    first = min(error.at for error in errors)
    return Fault(
        component=own.component,
        reason=own.message,
        count=max(count, known.count) if known else count,
        exact=known is not None,
        first=min(first, known.first.at) if known else first,
        last=errors[0].at,
        about=next((error.about for error in errors if error.about), ""),
        id=blake2b("\0".join(name).encode(), digest_size=4).hexdigest(),
    )


def each_once(errors: Iterable[ErrorReport], bolts: Collection[str]) -> list[ErrorReport]:
    """Return each failure once, newest first: a spout repeats the error of a bolt, and adds the
    message that failed.
    """
    found: list[ErrorReport] = []
    # By component, task and reason: the reports that no report of the other side was found for.
    told: dict[tuple[bool, str, int, str], deque[int]] = defaultdict(deque)
    for error in errors:
        own = _repeated(error, bolts)
        is_echo = own is not error
        name = own.component, own.task, own.message[:_COMPARED]
        if others := told[not is_echo, *name]:
            at = others.popleft()
            bolt, echo = (found[at], own) if is_echo else (own, found[at])
            found[at] = replace(bolt, at=found[at].at, about=echo.about)
        else:
            told[is_echo, *name].append(len(found))
            found.append(own)
    return found


def _repeated(error: ErrorReport, bolts: Collection[str]) -> ErrorReport:
    """Return the report of the bolt that a spout's report repeats, or the report itself."""
    found = _ECHO.fullmatch(error.message)
    if found is None or error.component in bolts or found[1] not in bolts:
        return error
    return replace(error, component=found[1], task=int(found[2]), message=found[3])


def known_for(known: Iterable[KnownError], component: str, message: str) -> KnownError | None:
    """Return the known error behind a component's report; None if no traceback is kept.

    A spout repeats the error of a bolt, and names the task: ``enrich[7]: KeyError: … (a.py:1)``.
    """
    for each in known:
        first = each.first
        place = f" ({first.place})" if first.place else ""
        if (
            (component == first.component or message.startswith(f"{first.component}["))
            and message.endswith(place)
            and first.kind in message.removesuffix(place)
        ):
            return each
    return None


SOURCE = "source"
SINK = "sink"
NOT_RUNNING = "not running"


@dataclass(frozen=True, kw_only=True, slots=True)
class SpoutRow:
    """One spout in a window; its pending trees are current."""

    name: str
    tasks: int
    # Tasks that have a worker now.
    running: int
    # They take the messages of one queue, so that one of them takes all if it must.
    shares_queue: bool
    # Its counters in the window; ``failed`` includes timeouts.
    counts: Counter[str]
    # Mean time from emit to complete tree; None if nothing was acked.
    complete_ms: float | None
    # Accurate to 5 %.
    complete_p99_ms: float | None
    # (bound in milliseconds, number of complete latencies below it).
    latencies: Sequence[tuple[float, int]]
    pending: int
    oldest_s: float
    # Failed messages that it now holds until their back-off is over.
    in_back_off: int
    # How long it has been able to send nothing: it is deactivated or cut off from RabbitMQ, or
    # windows hold all the messages that it may have. 0: it can send.
    silent_s: float
    last_error: ErrorReport | None

    @property
    def missing(self) -> int:
        """Number of tasks whose work no worker does now."""
        return 0 if self.shares_queue and self.running else self.tasks - self.running

    @property
    def failed_by_bolts(self) -> int:
        """Failures without timeouts."""
        return self.counts["failed"] - self.counts["timeout"]


@dataclass(frozen=True, kw_only=True, slots=True)
class OnceRow:
    """The once figures of a spout or bolt in a window."""

    name: str
    # Messages without the identity that the spout looks for.
    no_identity: int
    # Tuples that the bolt had applied before.
    repeated: int
    # Tuples without a key.
    unkeyed: int
    # Tuples that the bolt remembers now.
    remembered: int
    # Tuples older than the bolt's memory, which it may have applied before.
    unsure: int


def once_rows(readings: Readings) -> tuple[OnceRow, ...]:
    """Return the rows of the components that have anything to show."""
    rows = []
    for component in (*readings.graph.spouts, *readings.graph.bolts):
        total = total_of(readings.counted.counts, component.name)
        rows.append(
            OnceRow(
                name=component.name,
                no_identity=total[NO_IDENTITY],
                repeated=total[ONCE_REPEATED],
                unkeyed=total[ONCE_UNKEYED],
                remembered=readings.marks.get(component.name, 0),
                unsure=total[ONCE_UNSURE],
            )
        )
    return tuple(row for row in rows if any(astuple(row)[1:]))


@dataclass(frozen=True, kw_only=True, slots=True)
class AckerRow:
    """The ledger in a window; its pending roots are current."""

    pending: int
    memory_bytes: int
    # Its counters in the window: ``executed``, the updates by bolts; ``late``, the updates that
    # arrived after their tree had ended; ``acked`` and ``failed``, the roots.
    counts: Counter[str]
    # Now.
    updates_a_second: float
    timeouts: int
    # Mean time of a round trip to the ledger, divided by the updates that share it.
    update_ms: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeRow:
    """A subscription and its traffic."""

    edge: Edge
    # Tuples per second, now.
    a_second: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Own:
    """The current depths of tiercel's own queues in Redis."""

    topology: str
    # Tuples in the inboxes of bolt tasks.
    waiting: int
    # Age of the oldest waiting tuple.
    oldest_waiting_s: float
    # Roots in the ledger.
    pending: int
    oldest_pending_s: float
    # Failed messages that its spouts hold until their back-off is over: unacked in their queues.
    in_back_off: int
    # Entries of outcomes that no spout worker has taken yet.
    feed_entries: int
    # Age of the oldest such entry.
    feed_lag_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueRow:
    """A queue of a topology at this moment."""

    depth: QueueDepth
    # "source" or "sink"; empty: it belongs to no topology.
    use: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Flow:
    """The current speed of a topology."""

    # False at the first reading, which has nothing to compare with.
    known: bool = False
    acked_a_second: float = 0.0
    failed_a_second: float = 0.0
    # From emit to complete tree; None if none was complete.
    p50_ms: float | None = None
    p99_ms: float | None = None
    components: Mapping[str, Speed] = field(default_factory=dict)

    def of(self, component: str) -> Speed:
        """Return the speed of a component."""
        return self.components.get(component, _STILL)


STANDSTILL = Flow()


@dataclass(frozen=True, kw_only=True, slots=True)
class Overview:
    """Everything that views show of a topology."""

    name: str
    # active, deactivated, killed, or not running.
    state: str
    driver: bool
    # Length of the window.
    seconds: float
    spouts: tuple[SpoutRow, ...]
    bolts: tuple[BoltRow, ...]
    # Bolt tasks, in the order of the bolts.
    tasks: tuple[TaskRow, ...]
    acker: AckerRow
    edges: tuple[EdgeRow, ...]
    own: Own
    in_flight_limit_s: float
    # Each failure once, newest first.
    errors: tuple[ErrorReport, ...]
    # Grouped by reason, newest first.
    faults: tuple[Fault, ...] = ()
    # Now.
    flow: Flow = STANDSTILL
    spout_tasks: tuple[SpoutTaskRow, ...] = ()
    processes: tuple[ProcessRow, ...] = ()
    # Where the driver runs; None: there is no driver, or its place is unknown.
    driver_at: Whereabouts | None = None
    # The driver's reason why no executor can run bolts; empty: it reported none.
    trouble: str = ""
    # The driver's decision on executors; None: their number is the operator's.
    executors: ExecutorReport | None = None
    # The last order; the topology follows it while it runs.
    ordered: State = State.ACTIVE
    # The queues that it reads.
    queues: tuple[QueueDepth, ...] = ()
    # The queues that it only publishes to; their consumers are not part of it.
    sinks: tuple[QueueDepth, ...] = ()
    # Components that remember tuples, or met repeated tuples or messages without an identity.
    once: tuple[OnceRow, ...] = ()
    # Windowed bolts that have a process, or have counted anything.
    windows: tuple[WindowsRow, ...] = ()
    lately: Lately = NOT_COUNTED
    # When it was read; aware, UTC.
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def running(self) -> bool:
        """True if any process of the topology is alive."""
        return self.state != NOT_RUNNING

    @property
    def active(self) -> bool:
        """True if spouts may emit."""
        return self.state == State.ACTIVE.value

    @property
    def executors_fit(self) -> bool:
        """False if the driver reported that no executor can run bolts."""
        return not self.trouble

    @property
    def executors_said(self) -> str:
        """The executors that the topology wants and has, and why; empty without a decision."""
        found = self.executors
        if found is None:
            return ""
        refused = f", {found.refused} refused" if found.refused else ""
        return f"executors: {found.wanted} wanted, {found.present} present{refused} ({found.why})"

    @property
    def executor_problem(self) -> str:
        """The problem that no executor can run bolts; empty if the driver reported none."""
        return self.trouble and f"no executor can run bolts: {self.trouble}"

    @property
    def queue_rows(self) -> tuple[QueueRow, ...]:
        """The rows of the queues that it reads, then of the queues that it only publishes to."""
        return (
            *(QueueRow(depth=depth, use=SOURCE) for depth in self.queues),
            *(QueueRow(depth=depth, use=SINK) for depth in self.sinks),
        )


def overview_of(name: str, readings: Readings) -> Overview:
    """Compute the overview of a topology from its readings."""
    graph = readings.graph
    last = _last_errors(readings)
    spouts = tuple(_spout(each, readings, last.get(each.name)) for each in graph.spouts)
    tasks = {each.name: task_rows(each, readings) for each in graph.bolts}
    all_tasks = tuple(row for rows in tasks.values() for row in rows)
    workers = spout_tasks(readings)
    bolts = tuple(
        bolt_row(each, readings, tasks[each.name], last.get(each.name)) for each in graph.bolts
    )
    return Overview(
        name=name,
        state=state_of(readings),
        driver=readings.driver,
        seconds=readings.counted.seconds,
        spouts=spouts,
        bolts=bolts,
        tasks=all_tasks,
        acker=_acker(readings, sum(spout.counts["timeout"] for spout in spouts)),
        edges=tuple(_edge(each, readings) for each in graph.edges),
        own=_own(name, readings),
        in_flight_limit_s=readings.in_flight_limit_s,
        errors=tuple(each_once(readings.errors, tasks.keys())),
        once=once_rows(readings),
        windows=windows_rows(readings, bolts, all_tasks),
        faults=tuple(grouped(readings.errors, tasks.keys(), readings.known_errors)),
        flow=flow_of(readings),
        spout_tasks=workers,
        processes=processes(readings, workers, all_tasks),
        driver_at=readings.driver_at,
        trouble=readings.trouble,
        executors=readings.executors,
        ordered=_ordered(readings),
        lately=lately_of(readings),
        at=readings.at,
    )


def _last_errors(readings: Readings) -> Mapping[str, ErrorReport]:
    """Return the last error of each component, unless it is older than the counts beside it."""
    seconds = readings.counted.seconds
    oldest = readings.at - timedelta(seconds=seconds + REPORT_S)
    last: dict[str, ErrorReport] = {}
    for error in readings.errors:
        if not seconds or error.at >= oldest:
            last.setdefault(error.component, error)
    return last


def _ordered(readings: Readings) -> State:
    if readings.killed and state_of(readings) == NOT_RUNNING:
        return State.KILLED
    return readings.state or State.ACTIVE


def _own(name: str, readings: Readings) -> Own:
    return Own(
        topology=name,
        waiting=sum(one.tuples for one in readings.inboxes.values()),
        oldest_waiting_s=max([0.0, *map(oldest_waiting_s, readings.inboxes.values())]),
        pending=readings.census.pending,
        oldest_pending_s=max([0.0, *(presence.oldest_s for presence in readings.present.values())]),
        in_back_off=sum(presence.in_back_off for presence in readings.present.values()),
        feed_entries=readings.census.feed_entries,
        feed_lag_s=readings.census.feed_lag_s,
    )


def state_of(readings: Readings) -> str:
    """Return the state of a topology: the ordered one if a driver or a spout worker is alive."""
    if not readings.driver and not readings.present:
        return NOT_RUNNING
    return (readings.state or State.ACTIVE).value


def _spout(component: Component, readings: Readings, last_error: ErrorReport | None) -> SpoutRow:
    counts = total_of(readings.counted.counts, component.name)
    present = [readings.present[task] for task in component.tasks if task in readings.present]
    silent_since = readings.silent.get(component.name, readings.at)
    return SpoutRow(
        name=component.name,
        tasks=len(component.tasks),
        running=len(present),
        shares_queue=component.queue is not None,
        counts=counts,
        complete_ms=mean(counts["complete_us"] / 1e3, counts["acked"]),
        complete_p99_ms=percentile(counts, 0.99),
        latencies=cumulative(counts),
        pending=sum(presence.pending for presence in present),
        oldest_s=max([0.0, *(presence.oldest_s for presence in present)]),
        in_back_off=sum(presence.in_back_off for presence in present),
        silent_s=max(0.0, (readings.at - silent_since).total_seconds()),
        last_error=last_error,
    )


def _acker(readings: Readings, timeouts: int) -> AckerRow:
    counts = total_of(readings.counted.counts, ACKER)
    return AckerRow(
        pending=readings.census.pending,
        memory_bytes=readings.census.memory_bytes,
        counts=counts,
        updates_a_second=total_of(readings.rates, ACKER)["executed"] / PER_SECOND,
        timeouts=timeouts,
        update_ms=mean(counts["execute_ns"] / 1e6, counts["executed"]),
    )


def _edge(edge: Edge, readings: Readings) -> EdgeRow:
    rates = total_of(readings.rates, edge.target)
    return EdgeRow(edge=edge, a_second=rates[edge_counter(edge.source, edge.stream)] / PER_SECOND)


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """The current speed of one component."""

    # Per second: complete trees of a spout, executed tuples of a bolt.
    a_second: float = 0.0
    failed_a_second: float = 0.0
    # For a spout, the median time from emit to complete tree; for a bolt, the mean time in
    # ``execute``. None if nothing was processed.
    latency_ms: float | None = None


_STILL = Speed()


def flow_of(readings: Readings) -> Flow:
    """Compute the current speed from the rates."""
    together: Counter[str] = Counter()
    components: dict[str, Speed] = {}
    for spout in readings.graph.spouts:
        rates = total_of(readings.rates, spout.name)
        together.update(rates)
        components[spout.name] = _speed(rates, "acked", percentile(rates, 0.5))
    for bolt in readings.graph.bolts:
        rates = total_of(readings.rates, bolt.name)
        execute_ms = mean(rates["execute_ns"] / 1e6, rates["executed"])
        components[bolt.name] = _speed(rates, "executed", execute_ms)
    return Flow(
        known=bool(readings.rates),
        acked_a_second=together["acked"] / PER_SECOND,
        failed_a_second=together["failed"] / PER_SECOND,
        p50_ms=percentile(together, 0.5),
        p99_ms=percentile(together, 0.99),
        components=components,
    )


def _speed(rates: Counter[str], done: str, latency_ms: float | None) -> Speed:
    return Speed(
        a_second=rates[done] / PER_SECOND,
        failed_a_second=rates["failed"] / PER_SECOND,
        latency_ms=latency_ms,
    )
