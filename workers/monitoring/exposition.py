"""``/metrics``: figures over all time for Prometheus, in seconds and bytes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from prometheus_client import core, generate_latest
from prometheus_client.registry import Collector

from tiercel.acker.metrics.contract import RETRY_LATER
from tiercel.workers.control.contract import State
from tiercel.workers.monitoring.findings import OF_SERVERS, FindingKind
from tiercel.workers.monitoring.overview import Overview
from tiercel.workers.monitoring.watcher import Look, Watcher

# Nanoseconds and microseconds per second, by the ends of counters.
_UNITS = {"_ns": 1e9, "_us": 1e6}
# Name, counter or attribute of a row, help.
_Figures = tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, kw_only=True)
class _Group:
    """Metrics with the same labels; each has one value per row."""

    # Labels after the topology, and the attributes of a row that give their values.
    labels: Mapping[str, str]
    rows: Callable[[Overview], Iterable[Any]]
    # By the names of a row's counters.
    counters: _Figures = ()
    # By attributes of a row, as gauges are.
    totals: _Figures = ()
    gauges: _Figures = ()

    def metrics(self, found: Mapping[str, Overview]) -> Iterator[core.Metric]:
        """Return the metrics of these topologies."""
        rows = [
            ((name, *(str(getattr(row, each)) for each in self.labels.values())), row)
            for name, overview in found.items()
            for row in self.rows(overview)
        ]
        yield from self._families(core.CounterMetricFamily, self.counters, rows, _counter)
        yield from self._families(core.CounterMetricFamily, self.totals, rows, attrgetter)
        yield from self._families(core.GaugeMetricFamily, self.gauges, rows, attrgetter)

    def _families(
        self,
        kind: type[core.CounterMetricFamily | core.GaugeMetricFamily],
        figures: _Figures,
        rows: Iterable[tuple[tuple[str, ...], Any]],
        getter: Callable[[str], Callable[[Any], Any]],
    ) -> Iterator[core.Metric]:
        for name, figure, help_ in figures:
            family = kind(name, help_, labels=["topology", *self.labels])
            for labels, row in rows:
                value = getter(figure)(row)
                if value is not None:
                    family.add_metric(labels, float(value))
            yield family


def _counter(name: str) -> Callable[[Any], float]:
    """Return the function that reads this counter of a row; times are in seconds."""
    return lambda row: row.counts[name] / _UNITS.get(name[-3:], 1)


_GROUPS = (
    _Group(
        labels={"spout": "name"},
        rows=attrgetter("spouts"),
        counters=(
            ("tiercel_spout_emitted", "emitted", "Tuples that spouts emitted"),
            ("tiercel_spout_transferred", "transferred", "Tuples sent, one per receiving task"),
            ("tiercel_spout_acked", "acked", "Trees that completed"),
            ("tiercel_spout_timeouts", "timeout", "Trees that timed out"),
            ("tiercel_spout_released", "released", "Trees released: neither acked nor failed"),
        ),
        totals=(("tiercel_spout_failed", "failed_by_bolts", "Trees that bolts failed"),),
        gauges=(
            ("tiercel_spout_pending", "pending", "Trees in flight"),
            ("tiercel_spout_oldest_pending_seconds", "oldest_s", "Age of the oldest pending tree"),
            ("tiercel_spout_messages_in_back_off", "in_back_off", "Failed messages in back-off"),
            (
                "tiercel_spout_silent_seconds",
                "silent_s",
                "How long a spout has been able to send nothing; 0 if it can",
            ),
            ("tiercel_spout_tasks", "tasks", "Tasks of a spout"),
            ("tiercel_spout_tasks_running", "running", "Tasks of a spout that have a worker"),
        ),
    ),
    _Group(
        labels={"bolt": "name"},
        rows=attrgetter("bolts"),
        counters=(
            ("tiercel_bolt_executed", "executed", "Tuples that bolts executed"),
            ("tiercel_bolt_emitted", "emitted", "Tuples that bolts emitted"),
            ("tiercel_bolt_transferred", "transferred", "Tuples sent, one per receiving task"),
            ("tiercel_bolt_acked", "acked", "Tuples that bolts acked"),
            ("tiercel_bolt_failed", "failed", "Tuples that bolts failed"),
            (
                "tiercel_bolt_retried",
                "retried",
                "Attempts that failed and were followed by another",
            ),
            ("tiercel_bolt_retry_later", RETRY_LATER, "Failed tuples with RetryLater"),
            ("tiercel_bolt_execute_seconds", "execute_ns", "Time in execute and flush, summed"),
            ("tiercel_bolt_process_seconds", "process_ns", "Time from execute to ack, summed"),
        ),
        gauges=(
            ("tiercel_bolt_paused", "paused", "1 while an operator has paused the bolt"),
            (
                "tiercel_bolt_waiting_tuples",
                "waiting",
                "Tuples in the inboxes of its tasks, and in the line that they share",
            ),
            (
                "tiercel_bolt_oldest_waiting_seconds",
                "oldest_s",
                "Age of the oldest of these tuples; 0 while windows hold tuples",
            ),
        ),
    ),
    _Group(
        labels={"component": "component", "task": "task"},
        rows=attrgetter("tasks"),
        counters=(
            ("tiercel_task_executed", "executed", "Tuples that a bolt task executed"),
            (
                "tiercel_task_execute_seconds",
                "execute_ns",
                "Time in execute and flush: its rate is the capacity",
            ),
            ("tiercel_task_steps", "steps", "Steps that a bolt task committed"),
            ("tiercel_task_step_seconds", "step_ns", "Time of its steps, including commits"),
        ),
        gauges=(
            ("tiercel_inbox_tuples", "waiting", "Tuples in the inbox of a bolt task"),
            ("tiercel_inbox_bytes", "waiting_bytes", "Bytes in the inbox of a bolt task"),
            ("tiercel_inbox_oldest_seconds", "oldest_s", "Age of the oldest waiting tuple"),
            ("tiercel_task_attempts", "attempts", "Attempts at a bolt task, including the first"),
            ("tiercel_task_attended", "attended", "1 while a process runs the bolt task"),
            ("tiercel_task_seen_seconds", "seen_s", "Time since the last report of its process"),
            ("tiercel_task_call_seconds", "doing_s", "Age of the current call, if it takes long"),
            ("tiercel_task_waiting_for_retry", "retrying", "Failed tuples that wait for a retry"),
        ),
    ),
    _Group(
        labels={"component": "name"},
        rows=attrgetter("windows"),
        totals=(
            ("tiercel_windows_closed", "closed", "Windows that closed"),
            ("tiercel_windows_failed", "failed", "Calls of a bolt for a window that raised"),
            ("tiercel_windows_late", "late", "Tuples that came after their last window closed"),
            ("tiercel_windows_refused", "refused", "Tuples without a valid timestamp"),
        ),
        gauges=(
            ("tiercel_windows_open", "open", "Windows that have tuples and have not closed"),
            ("tiercel_windows_held_tuples", "held", "Tuples that wait for their windows"),
            ("tiercel_windows_oldest_seconds", "oldest_s", "Age of the oldest held tuple"),
            (
                "tiercel_windows_watermark_timestamp_seconds",
                "watermark_s",
                "Watermark of the task that is furthest behind, in seconds since 1970",
            ),
            (
                "tiercel_windows_watermark_lag_seconds",
                "watermark_lag_s",
                "Time by which this watermark is behind the clock",
            ),
        ),
    ),
    _Group(
        labels={"component": "name"},
        rows=attrgetter("once"),
        totals=(
            ("tiercel_no_identity", "no_identity", "Messages without the configured identity"),
            ("tiercel_once_repeated", "repeated", "Tuples that a bolt had applied before"),
            ("tiercel_once_unkeyed", "unkeyed", "Tuples without a key"),
            ("tiercel_once_unsure", "unsure", "Tuples older than the keys that a bolt remembers"),
        ),
        gauges=(("tiercel_once_marks", "remembered", "Tuples that a bolt remembers"),),
    ),
    _Group(
        labels={},
        rows=lambda overview: [overview.acker],
        counters=(
            ("tiercel_acker_updates", "executed", "Updates of roots by bolts"),
            ("tiercel_acker_completed", "acked", "Trees that updates completed"),
            ("tiercel_acker_late", "late", "Updates of trees that had already ended"),
        ),
        gauges=(
            ("tiercel_acker_pending", "pending", "Roots in the ledger"),
            ("tiercel_acker_memory_bytes", "memory_bytes", "Memory of pending roots"),
        ),
    ),
    _Group(
        labels={},
        rows=lambda overview: [overview],
        gauges=(
            ("tiercel_feed_entries", "own.feed_entries", "Outcomes that no spout worker has taken"),
            ("tiercel_feed_lag_seconds", "own.feed_lag_s", "Age of the oldest entry in a feed"),
            ("tiercel_driver_up", "driver", "1 while the topology has a driver"),
            ("tiercel_executors_fit", "executors_fit", "0 while no executor can run bolts"),
            ("tiercel_topology_active", "active", "1 while the spouts may emit"),
            (
                "tiercel_topology_in_flight_limit_seconds",
                "in_flight_limit_s",
                "Message timeout, plus the time limits of calls that may be longer; 0: no limit",
            ),
        ),
    ),
)
_EXECUTORS = _Group(
    labels={},
    rows=lambda overview: [overview.executors] if overview.executors else [],
    gauges=(
        ("tiercel_executors_wanted", "wanted", "Executors that the load needs"),
        ("tiercel_executors_present", "present", "Executors that Spark has"),
        ("tiercel_executors_refused", "refused", "Executors that Spark has long not given"),
    ),
)
_QUEUES = _Group(
    labels={"queue": "name"},
    rows=attrgetter("queues"),
    gauges=(
        ("tiercel_queue_messages_ready", "ready", "Messages ready for delivery"),
        ("tiercel_queue_messages_unacked", "unacked", "Messages delivered but not settled"),
        ("tiercel_queue_messages_delayed", "delayed", "Failed messages waiting for their back-off"),
        ("tiercel_queue_messages_dead", "dead_lettered", "Messages in the dead-letter queue"),
        ("tiercel_queue_consumers", "consumers", "Consumers"),
    ),
)


class TiercelCollector(Collector):
    """Reads the servers when Prometheus scrapes.

    While a server does not answer, its figures are missing and its ``tiercel_up`` is 0.
    """

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def collect(self) -> Iterator[core.Metric]:
        looks, up = self._watcher.all()
        found = {
            name: look.overview
            for name, look in looks.items()
            if look.overview is not None and not look.problems.unreadable
        }
        servers = core.GaugeMetricFamily(
            "tiercel_up", "1 while a server answers", labels=["server"]
        )
        for server, answers in up.items():
            servers.add_metric([server], float(answers))
        yield servers
        yield _orders(found)
        yield _healths(looks)
        if up["redis"]:
            for group in (*_GROUPS, _EXECUTORS):
                yield from group.metrics(found)
            yield _latencies(found)
        if up["redis"] and up.get("rabbitmq"):
            yield from _QUEUES.metrics(found)


class Scrape:
    """The text of ``/metrics``. Concurrent scrapes share one reading."""

    def __init__(self, collector: TiercelCollector) -> None:
        self._collector = collector
        self._look: asyncio.Task[bytes] | None = None

    async def text(self) -> bytes:
        """Read in a thread, or wait for the reading that is under way."""
        if self._look is None or self._look.done():
            self._look = asyncio.create_task(asyncio.to_thread(generate_latest, self._collector))
        return await asyncio.shield(self._look)


def _orders(found: Mapping[str, Overview]) -> core.Metric:
    family = core.GaugeMetricFamily(
        "tiercel_topology_ordered",
        "1 for the operator's order that stands, 0 for the others",
        labels=["topology", "order"],
    )
    for name, overview in found.items():
        for order in State:
            family.add_metric([name, order.value], float(order is overview.ordered))
    return family


def _healths(looks: Mapping[str, Look]) -> core.Metric:
    """Count the findings of each kind; kinds that cannot be judged while Redis is away are
    missing.
    """
    family = core.GaugeMetricFamily(
        "tiercel_health",
        "Number of findings of this kind: 0 if all is well",
        labels=["topology", "kind", "level"],
    )
    for name, look in looks.items():
        found = Counter(finding.kind for finding in look.health.findings)
        for kind in FindingKind if look.problems.redis is None else OF_SERVERS:
            family.add_metric([name, kind.value, kind.level.label], float(found[kind]))
    return family


def _latencies(found: Mapping[str, Overview]) -> core.Metric:
    family = core.HistogramMetricFamily(
        "tiercel_spout_complete_latency_seconds",
        "Time from emit to complete tree",
        labels=["topology", "spout"],
    )
    for name, overview in found.items():
        for row in overview.spouts:
            buckets = [
                (f"{bound / 1000:.6g}".replace("inf", "+Inf"), below)
                for bound, below in row.latencies
            ]
            family.add_metric(
                [name, row.name], buckets=buckets, sum_value=row.counts["complete_us"] / 1e6
            )
    return family
