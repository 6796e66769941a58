"""A topology as every view shows it, worked out of its counters. Pure.

Counts are exact: every tuple is counted where it happens, once, however often steps are repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tiercel.acker.metrics.contract import ErrorReport
from tiercel.acker.metrics.histogram import cumulative, percentile
from tiercel.acker.metrics.windows import total_of
from tiercel.queues.broker.depths import QueueDepth
from tiercel.spark_jobs.running.counts import ACKER, edge_counter
from tiercel.spark_jobs.whereabouts import Whereabouts
from tiercel.workers.control.contract import State
from tiercel.workers.control.graph import Component, Edge
from tiercel.workers.monitoring.bolts import BoltRow, TaskRow, bolt_row, mean, task_rows
from tiercel.workers.monitoring.faults import Fault, grouped
from tiercel.workers.monitoring.flow import STANDSTILL, Flow, flow_of
from tiercel.workers.monitoring.once import OnceRow, once_rows
from tiercel.workers.monitoring.processes import (
    ProcessRow,
    SpoutTaskRow,
    processes,
    spout_tasks,
)
from tiercel.workers.monitoring.raw import Raw

SOURCE = "source"
SINK = "sink"


@dataclass(frozen=True, kw_only=True, slots=True)
class SpoutRow:
    """One spout in a window; what is pending is of now."""

    name: str
    tasks: int
    # Tasks that are there now.
    running: int
    emitted: int
    transferred: int
    acked: int
    # Timeouts included.
    failed: int
    timeouts: int
    # Given back without blame.
    released: int
    # Mean, from the emit to the complete tree, of acked ones; None if there was none.
    complete_ms: float | None
    # Within 5 %.
    complete_p99_ms: float | None
    # All complete latencies together, in seconds.
    complete_s: float
    # (milliseconds, how many complete latencies were below).
    latencies: Sequence[tuple[float, int]]
    pending: int
    oldest_s: float
    # Failed messages that it holds until their back-off is over, now.
    in_back_off: int
    last_error: ErrorReport | None


@dataclass(frozen=True, kw_only=True, slots=True)
class AckerRow:
    """The ledger in a window; what is pending is of now."""

    pending: int
    memory_bytes: int
    # Of roots, by bolts.
    updates: int
    # Now.
    updates_a_second: float
    completed: int
    # By bolts; timeouts are not among them.
    failed: int
    timeouts: int
    # Updates of trees that were over.
    late: int
    # Mean time of the round trip that takes updates to the ledger, per update: many share one.
    update_ms: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeRow:
    """A subscription and what went over it."""

    edge: Edge
    tuples: int
    # Now.
    a_second: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Own:
    """tiercel's own queues in Redis, now."""

    topology: str
    # Tuples in the inboxes of bolt tasks.
    waiting: int
    # Age of the oldest of them.
    oldest_waiting_s: float
    # Roots in the ledger.
    pending: int
    oldest_pending_s: float
    # Failed messages that its spouts hold until their back-off is over: unacked in their queues.
    in_back_off: int
    # Entries of outcomes that no spout worker has taken yet.
    feed_entries: int
    # Age of the oldest of them.
    feed_lag_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueRow:
    """A queue of a topology, now."""

    depth: QueueDepth
    # "source" or "sink"; empty: it is no topology's.
    use: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Overview:
    """A topology."""

    name: str
    # active, deactivated, killed, or not running.
    state: str
    driver: bool
    # Length of the window.
    seconds: float
    # Complete trees, now.
    acked_a_second: float
    spouts: tuple[SpoutRow, ...]
    bolts: tuple[BoltRow, ...]
    # Of bolts, in the order of these.
    tasks: tuple[TaskRow, ...]
    acker: AckerRow
    edges: tuple[EdgeRow, ...]
    own: Own
    message_timeout_s: float
    errors: tuple[ErrorReport, ...]
    # Grouped by reason, the newest first.
    faults: tuple[Fault, ...] = ()
    # Now.
    flow: Flow = STANDSTILL
    spout_tasks: tuple[SpoutTaskRow, ...] = ()
    processes: tuple[ProcessRow, ...] = ()
    # None: there is no driver, or it does not say.
    driver_at: Whereabouts | None = None
    # Why no executor can run bolts; empty: nothing is known against it.
    trouble: str = ""
    # The last order that was given; the topology obeys it while it runs.
    ordered: State = State.ACTIVE
    # Those that it reads.
    queues: tuple[QueueDepth, ...] = ()
    # Those that it only publishes to: who reads them is no part of it.
    sinks: tuple[QueueDepth, ...] = ()
    # Of components that came upon repeated messages, or some that cannot be told apart.
    once: tuple[OnceRow, ...] = ()

    @property
    def queue_rows(self) -> tuple[QueueRow, ...]:
        """All of these, as tables show them."""
        return queue_rows(self.queues, self.sinks)


def queue_rows(sources: Iterable[QueueDepth], sinks: Iterable[QueueDepth]) -> tuple[QueueRow, ...]:
    """Return the rows of the queues that are read, then of those that are published to."""
    return (
        *(QueueRow(depth=depth, use=SOURCE) for depth in sources),
        *(QueueRow(depth=depth, use=SINK) for depth in sinks),
    )


def overview_of(name: str, raw: Raw) -> Overview:
    """The rows of a topology."""
    last: dict[str, ErrorReport] = {}
    for error in raw.errors:
        last.setdefault(error.component, error)
    spouts = tuple(_spout(each, raw, last.get(each.name)) for each in raw.graph.spouts)
    tasks = {each.name: task_rows(each, raw) for each in raw.graph.bolts}
    return Overview(
        name=name,
        state=state_of(raw),
        driver=raw.driver,
        seconds=raw.counted.seconds,
        acked_a_second=sum(total_of(raw.rates, spout.name)["acked"] for spout in spouts) / 1000,
        spouts=spouts,
        bolts=tuple(
            bolt_row(each, raw, tasks[each.name], last.get(each.name)) for each in raw.graph.bolts
        ),
        tasks=tuple(row for rows in tasks.values() for row in rows),
        acker=_acker(raw, sum(spout.timeouts for spout in spouts)),
        edges=tuple(_edge(each, raw) for each in raw.graph.edges),
        own=_own(name, raw),
        message_timeout_s=raw.message_timeout_s,
        errors=tuple(raw.errors),
        once=once_rows(
            [each.name for each in (*raw.graph.spouts, *raw.graph.bolts)],
            raw.counted.counts,
            raw.marks,
        ),
        faults=tuple(
            grouped(raw.errors, {bolt.name for bolt in raw.graph.bolts}, raw.known_errors)
        ),
        flow=flow_of(raw),
        spout_tasks=spout_tasks(raw),
        processes=processes(raw),
        driver_at=raw.driver_at,
        trouble=raw.trouble,
        ordered=raw.state or State.ACTIVE,
    )


def _own(name: str, raw: Raw) -> Own:
    return Own(
        topology=name,
        waiting=sum(one.tuples for one in raw.inboxes.values()),
        oldest_waiting_s=max([0.0, *(one.oldest_s for one in raw.inboxes.values())]),
        pending=raw.census.pending,
        oldest_pending_s=max([0.0, *(presence.oldest_s for presence in raw.present.values())]),
        in_back_off=sum(presence.in_back_off for presence in raw.present.values()),
        feed_entries=raw.census.feed_entries,
        feed_lag_s=raw.census.feed_lag_s,
    )


def state_of(raw: Raw) -> str:
    """Return the state of the topology: the one ordered, if any of its processes is there."""
    if not raw.driver and not raw.present:
        return "not running"
    return (raw.state or State.ACTIVE).value


def _spout(component: Component, raw: Raw, last_error: ErrorReport | None) -> SpoutRow:
    counts = total_of(raw.counted.counts, component.name)
    present = [raw.present[task] for task in component.tasks if task in raw.present]
    return SpoutRow(
        name=component.name,
        tasks=len(component.tasks),
        running=len(present),
        emitted=counts["emitted"],
        transferred=counts["transferred"],
        acked=counts["acked"],
        failed=counts["failed"],
        timeouts=counts["timeout"],
        released=counts["released"],
        complete_ms=mean(counts["complete_us"] / 1e3, counts["acked"]),
        complete_p99_ms=percentile(counts, 0.99),
        complete_s=counts["complete_us"] / 1e6,
        latencies=cumulative(counts),
        pending=sum(presence.pending for presence in present),
        oldest_s=max([0.0, *(presence.oldest_s for presence in present)]),
        in_back_off=sum(presence.in_back_off for presence in present),
        last_error=last_error,
    )


def _acker(raw: Raw, timeouts: int) -> AckerRow:
    counts = total_of(raw.counted.counts, ACKER)
    return AckerRow(
        pending=raw.census.pending,
        memory_bytes=raw.census.memory_bytes,
        updates=counts["executed"],
        updates_a_second=total_of(raw.rates, ACKER)["executed"] / 1000,
        completed=counts["acked"],
        failed=counts["failed"],
        timeouts=timeouts,
        late=counts["late"],
        update_ms=mean(counts["execute_ns"] / 1e6, counts["executed"]),
    )


def _edge(edge: Edge, raw: Raw) -> EdgeRow:
    counter = edge_counter(edge.source, edge.stream)
    return EdgeRow(
        edge=edge,
        tuples=total_of(raw.counted.counts, edge.target)[counter],
        a_second=total_of(raw.rates, edge.target)[counter] / 1000,
    )
