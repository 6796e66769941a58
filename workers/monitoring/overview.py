"""What every view shows of a topology, worked out of its counters. Pure.

Counts are exact: every tuple is counted where it happens, once, whatever Spark repeats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from acker import Census, Counted, ErrorReport
from acker.histogram import cumulative, percentile
from acker.windows import Counts
from queues import QueueDepth
from queues.inbox.records import InboxFigures
from spark_jobs.counts import ACKER, edge_counter
from workers.control import Presence, State
from workers.monitoring.graph import Component, Edge, Graph


@dataclass(frozen=True, kw_only=True, slots=True)
class SpoutRow:
    """One spout in a window; what is pending is of now."""

    name: str
    tasks: int
    running: int
    """Tasks that are there now."""
    emitted: int
    transferred: int
    acked: int
    failed: int
    """Timeouts included."""
    timeouts: int
    released: int
    """Given back without blame."""
    complete_ms: float | None
    """Mean, from the emit to the complete tree, of acked ones; None if there was none."""
    complete_p99_ms: float | None
    """Within 5 %."""
    complete_s: float
    """All complete latencies together, in seconds."""
    latencies: Sequence[tuple[float, int]]
    """(milliseconds, how many complete latencies were below)."""
    pending: int
    oldest_s: float
    last_error: ErrorReport | None


@dataclass(frozen=True, kw_only=True, slots=True)
class BoltRow:
    """One bolt in a window."""

    name: str
    tasks: int
    emitted: int
    transferred: int
    executed: int
    acked: int
    failed: int
    execute_ms: float | None
    """Mean time in ``execute``; None if nothing was executed."""
    process_ms: float | None
    """Mean time from the arrival in the task to the ack in the ledger; None if nothing was acked."""
    execute_s: float
    """All of it together, in seconds."""
    process_s: float
    capacity: float
    """The share of the window that the busiest task spent in ``execute``: near 1, the bolt needs more tasks."""
    last_error: ErrorReport | None


@dataclass(frozen=True, kw_only=True, slots=True)
class AckerRow:
    """The ledger in a window; what is pending is of now."""

    pending: int
    memory_bytes: int
    updates: int
    """Of roots, by bolts."""
    updates_a_second: float
    """Now."""
    completed: int
    failed: int
    """By bolts; timeouts are not among them."""
    timeouts: int
    late: int
    """Updates of trees that were over."""
    update_ms: float | None
    """Mean time an update takes its task, many of them in one call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeRow:
    """A subscription and what went over it."""

    edge: Edge
    tuples: int
    a_second: float
    """Now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Own:
    """tiercel's own queues in Redis, now."""

    topology: str
    waiting: int
    """Tuples in the inboxes of bolt tasks."""
    oldest_waiting_s: float
    """How long the oldest of them waits."""
    pending: int
    """Roots in the ledger."""
    oldest_pending_s: float
    feed_entries: int
    """Entries of outcomes that no spout worker has taken yet."""
    feed_lag_s: float
    """How long the oldest of them waits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Raw:
    """What was read of a topology at one moment."""

    graph: Graph
    counted: Counted
    present: Mapping[int, Presence]
    state: State | None
    driver: bool
    """Whether a driver is there."""
    inboxes: Mapping[int, InboxFigures]
    """By bolt task."""
    census: Census
    errors: Sequence[ErrorReport]
    """Newest first."""
    message_timeout_s: float = 0.0
    """0: messages never time out."""
    rates: Counts = field(default_factory=dict)
    """Counts a thousand seconds, now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Overview:
    """A topology."""

    name: str
    state: str
    """active, deactivated, killed, or not running."""
    driver: bool
    seconds: float
    """How long the window is."""
    acked_a_second: float
    """Complete trees, now."""
    spouts: tuple[SpoutRow, ...]
    bolts: tuple[BoltRow, ...]
    acker: AckerRow
    edges: tuple[EdgeRow, ...]
    own: Own
    message_timeout_s: float
    errors: tuple[ErrorReport, ...]
    queues: tuple[QueueDepth, ...] = ()


def overview_of(name: str, raw: Raw) -> Overview:
    """The rows of a topology."""
    last: dict[str, ErrorReport] = {}
    for error in raw.errors:
        last.setdefault(error.component, error)
    spouts = tuple(_spout(each, raw, last.get(each.name)) for each in raw.graph.spouts)
    own = Own(
        topology=name,
        waiting=sum(one.tuples for one in raw.inboxes.values()),
        oldest_waiting_s=max([0.0, *(one.oldest_s for one in raw.inboxes.values())]),
        pending=raw.census.pending,
        oldest_pending_s=max([0.0, *(presence.oldest_s for presence in raw.present.values())]),
        feed_entries=raw.census.feed_entries,
        feed_lag_s=raw.census.feed_lag_s,
    )
    return Overview(
        name=name,
        state=state_of(raw),
        driver=raw.driver,
        seconds=raw.counted.seconds,
        acked_a_second=sum(_total(raw.rates.get(spout.name, {}))["acked"] for spout in spouts) / 1000,
        spouts=spouts,
        bolts=tuple(_bolt(each, raw.counted, last.get(each.name)) for each in raw.graph.bolts),
        acker=_acker(raw, sum(spout.timeouts for spout in spouts)),
        edges=tuple(_edge(each, raw) for each in raw.graph.edges),
        own=own,
        message_timeout_s=raw.message_timeout_s,
        errors=tuple(raw.errors),
    )


def state_of(raw: Raw) -> str:
    """What the topology does: what it was told, if anything of it is there."""
    if not raw.driver and not raw.present:
        return "not running"
    return (raw.state or State.ACTIVE).value


def _total(tasks: Mapping[int, Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for counts in tasks.values():
        total.update(counts)
    return total


def _spout(component: Component, raw: Raw, last_error: ErrorReport | None) -> SpoutRow:
    counts = _total(raw.counted.counts.get(component.name, {}))
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
        complete_ms=_mean(counts["complete_us"] / 1e3, counts["acked"]),
        complete_p99_ms=percentile(counts, 0.99),
        complete_s=counts["complete_us"] / 1e6,
        latencies=cumulative(counts),
        pending=sum(presence.pending for presence in present),
        oldest_s=max([0.0, *(presence.oldest_s for presence in present)]),
        last_error=last_error,
    )


def _bolt(component: Component, counted: Counted, last_error: ErrorReport | None) -> BoltRow:
    tasks = counted.counts.get(component.name, {})
    counts = _total(tasks)
    busiest_s = max([0.0, *(task.get("execute_ns", 0) / 1e9 for task in tasks.values())])
    return BoltRow(
        name=component.name,
        tasks=len(component.tasks),
        emitted=counts["emitted"],
        transferred=counts["transferred"],
        executed=counts["executed"],
        acked=counts["acked"],
        failed=counts["failed"],
        execute_ms=_mean(counts["execute_ns"] / 1e6, counts["executed"]),
        process_ms=_mean(counts["process_ns"] / 1e6, counts["acked"]),
        execute_s=counts["execute_ns"] / 1e9,
        process_s=counts["process_ns"] / 1e9,
        capacity=busiest_s / counted.seconds if counted.seconds else 0.0,
        last_error=last_error,
    )


def _acker(raw: Raw, timeouts: int) -> AckerRow:
    counts = _total(raw.counted.counts.get(ACKER, {}))
    return AckerRow(
        pending=raw.census.pending,
        memory_bytes=raw.census.memory_bytes,
        updates=counts["executed"],
        updates_a_second=_total(raw.rates.get(ACKER, {}))["executed"] / 1000,
        completed=counts["acked"],
        failed=counts["failed"],
        timeouts=timeouts,
        late=counts["late"],
        update_ms=_mean(counts["execute_ns"] / 1e6, counts["executed"]),
    )


def _edge(edge: Edge, raw: Raw) -> EdgeRow:
    counter = edge_counter(edge.source, edge.stream)
    return EdgeRow(
        edge=edge,
        tuples=_total(raw.counted.counts.get(edge.target, {}))[counter],
        a_second=_total(raw.rates.get(edge.target, {}))[counter] / 1000,
    )


def _mean(total: float, count: int) -> float | None:
    return total / count if count else None
