"""``/metrics``: figures over all time for Prometheus, in seconds and bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from tiercel.queues.broker.depths import QueueDepth
from tiercel.workers.monitoring.overview import AckerRow, Overview, Own, SpoutRow
from tiercel.workers.monitoring.rows import BoltRow, OnceRow, TaskRow
from tiercel.workers.monitoring.watcher import Watcher

# Name and help.
_Figure = tuple[str, str]
_Labels = tuple[str, ...]
Row = TypeVar("Row")

_SPOUT: dict[_Figure, Callable[[SpoutRow], float]] = {
    ("tiercel_spout_emitted", "Tuples that spouts emitted"): lambda row: row.emitted,
    ("tiercel_spout_transferred", "Tuples sent, one per receiving task"): lambda row: (
        row.transferred
    ),
    ("tiercel_spout_acked", "Trees that completed"): lambda row: row.acked,
    ("tiercel_spout_failed", "Trees that a bolt failed, without timeouts"): lambda row: (
        row.failed - row.timeouts
    ),
    ("tiercel_spout_timeouts", "Trees that timed out"): lambda row: row.timeouts,
    ("tiercel_spout_released", "Trees released, which does not count as a failure"): lambda row: (
        row.released
    ),
}
_SPOUT_NOW: dict[_Figure, Callable[[SpoutRow], float]] = {
    ("tiercel_spout_pending", "Trees in flight"): lambda row: row.pending,
    ("tiercel_spout_oldest_pending_seconds", "Age of the oldest tree in flight"): lambda row: (
        row.oldest_s
    ),
    (
        "tiercel_spout_messages_in_back_off",
        "Failed messages that a spout holds until their back-off is over",
    ): lambda row: row.in_back_off,
    ("tiercel_spout_tasks", "Tasks of a spout"): lambda row: row.tasks,
    ("tiercel_spout_tasks_running", "Tasks of a spout that have a worker"): lambda row: row.running,
}
_BOLT: dict[_Figure, Callable[[BoltRow], float]] = {
    ("tiercel_bolt_executed", "Tuples that bolts executed"): lambda row: row.executed,
    ("tiercel_bolt_emitted", "Tuples that bolts emitted"): lambda row: row.emitted,
    ("tiercel_bolt_transferred", "Tuples sent, one per receiving task"): lambda row: (
        row.transferred
    ),
    ("tiercel_bolt_acked", "Tuples that bolts acked"): lambda row: row.acked,
    ("tiercel_bolt_failed", "Tuples that bolts failed"): lambda row: row.failed,
    ("tiercel_bolt_execute_seconds", "Time in execute and flush, over all tasks"): lambda row: (
        row.execute_s
    ),
    ("tiercel_bolt_process_seconds", "Time from execute to ack, over all tuples"): lambda row: (
        row.process_s
    ),
}
_TASK: dict[_Figure, Callable[[TaskRow], float]] = {
    ("tiercel_task_executed", "Tuples that a bolt task executed"): lambda row: row.executed,
    (
        "tiercel_task_execute_seconds",
        "Time in execute and flush: its rate is the capacity",
    ): lambda row: row.execute_s,
    ("tiercel_task_steps", "Steps that a bolt task committed"): lambda row: row.steps,
    ("tiercel_task_step_seconds", "Time of its steps, commits included"): lambda row: row.step_s,
}
_TASK_NOW: dict[_Figure, Callable[[TaskRow], float | None]] = {
    ("tiercel_inbox_tuples", "Tuples in the inbox of a bolt task"): lambda row: row.waiting,
    ("tiercel_inbox_bytes", "Bytes in the inbox of a bolt task"): lambda row: row.waiting_bytes,
    ("tiercel_inbox_oldest_seconds", "Age of the oldest tuple in the inbox"): lambda row: (
        row.oldest_s
    ),
    (
        "tiercel_task_attempts",
        "Attempts at a bolt task in this run, including the first",
    ): lambda row: row.attempts,
    ("tiercel_task_attended", "1 while a process runs the bolt task"): lambda row: row.attended,
    (
        "tiercel_task_seen_seconds",
        "Time since a process last reported that it runs the bolt task",
    ): lambda row: row.seen_s,
    (
        "tiercel_task_call_seconds",
        "Time that a bolt task has spent in its current call, if the call takes long",
    ): lambda row: row.doing_s,
}
_ONCE: dict[_Figure, Callable[[OnceRow], float]] = {
    (
        "tiercel_no_identity",
        "Messages without the identity that the spout looks for",
    ): lambda row: row.no_identity,
    ("tiercel_once_repeated", "Tuples that a bolt had applied before"): lambda row: row.repeated,
    ("tiercel_once_unkeyed", "Tuples without a key"): lambda row: row.unkeyed,
    ("tiercel_once_unsure", "Tuples older than the keys that a bolt remembers"): lambda row: (
        row.unsure
    ),
}
_ONCE_NOW: dict[_Figure, Callable[[OnceRow], float]] = {
    ("tiercel_once_marks", "Tuples that a bolt remembers"): lambda row: row.remembered,
}
_ACKER: dict[_Figure, Callable[[AckerRow], float]] = {
    ("tiercel_acker_updates", "Updates of roots by bolts"): lambda row: row.updates,
    ("tiercel_acker_completed", "Trees that updates completed"): lambda row: row.completed,
    ("tiercel_acker_late", "Updates of trees that were over"): lambda row: row.late,
}
_ACKER_NOW: dict[_Figure, Callable[[AckerRow], float]] = {
    ("tiercel_acker_pending", "Roots in the ledger"): lambda row: row.pending,
    ("tiercel_acker_memory_bytes", "Memory of the roots in the ledger"): lambda row: (
        row.memory_bytes
    ),
}
_OWN: dict[_Figure, Callable[[Own], float]] = {
    (
        "tiercel_feed_entries",
        "Entries of outcomes that no spout worker has taken yet",
    ): lambda own: own.feed_entries,
    ("tiercel_feed_lag_seconds", "Age of the oldest entry in a feed"): lambda own: own.feed_lag_s,
}
_TOPOLOGY: dict[_Figure, Callable[[Overview], float]] = {
    ("tiercel_driver_up", "1 while the topology has a driver"): lambda each: each.driver,
    (
        "tiercel_executors_fit",
        "0 while the driver reports that no executor can run bolts",
    ): lambda each: not each.trouble,
    ("tiercel_topology_active", "1 while the spouts may emit"): lambda each: each.state == "active",
    ("tiercel_topology_message_timeout_seconds", "Time after which a message fails"): lambda each: (
        each.message_timeout_s
    ),
}
_QUEUE: dict[_Figure, Callable[[QueueDepth], float | None]] = {
    ("tiercel_queue_messages_ready", "Messages ready for delivery"): lambda depth: depth.ready,
    (
        "tiercel_queue_messages_unacked",
        "Messages delivered but not settled",
    ): lambda depth: depth.unacked,
    (
        "tiercel_queue_messages_delayed",
        "Failed messages waiting for their back-off to end",
    ): lambda depth: depth.delayed,
    ("tiercel_queue_messages_dead", "Messages in the dead-letter queue"): lambda depth: (
        depth.dead_lettered
    ),
    ("tiercel_queue_consumers", "Consumers"): lambda depth: depth.consumers,
}


class TiercelCollector(Collector):
    """Reads the servers when Prometheus scrapes.

    While a server does not answer, its figures are missing and its ``tiercel_up`` is 0.
    """

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def collect(self) -> Iterator[Metric]:
        found, up = self._watcher.all()
        servers = GaugeMetricFamily("tiercel_up", "1 while a server answers", labels=["server"])
        for server, answers in up.items():
            servers.add_metric([server], float(answers))
        yield servers
        if up["redis"]:
            yield from _families(found)
        if up["redis"] and up.get("rabbitmq"):
            queues: dict[_Labels, QueueDepth] = {
                (name, q.name): q for name, each in found.items() for q in each.queues
            }
            yield from _gauges(_QUEUE, queues, "queue")


class Scrape:
    """The text of ``/metrics``. Concurrent scrapes share one reading."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._look: asyncio.Task[bytes] | None = None

    async def text(self) -> bytes:
        """Read in a thread, or wait for the reading that is under way."""
        if self._look is None or self._look.done():
            self._look = asyncio.create_task(asyncio.to_thread(generate_latest, self._registry))
        return await asyncio.shield(self._look)


def registry_of(watcher: Watcher) -> CollectorRegistry:
    """Return the registry behind ``/metrics``."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(TiercelCollector(watcher))
    return registry


def _families(found: Mapping[str, Overview]) -> Iterator[Metric]:
    spouts: dict[_Labels, SpoutRow] = {
        (name, row.name): row for name, each in found.items() for row in each.spouts
    }
    bolts: dict[_Labels, BoltRow] = {
        (name, row.name): row for name, each in found.items() for row in each.bolts
    }
    ackers: dict[_Labels, AckerRow] = {(name,): each.acker for name, each in found.items()}
    yield from _counters(_SPOUT, spouts, "spout")
    yield from _gauges(_SPOUT_NOW, spouts, "spout")
    yield _latencies(spouts)
    yield from _counters(_BOLT, bolts, "bolt")
    tasks: dict[_Labels, TaskRow] = {
        (name, row.component, str(row.task)): row
        for name, each in found.items()
        for row in each.tasks
    }
    yield from _counters(_TASK, tasks, "component", "task")
    yield from _gauges(_TASK_NOW, tasks, "component", "task")
    once: dict[_Labels, OnceRow] = {
        (name, row.name): row for name, each in found.items() for row in each.once
    }
    yield from _counters(_ONCE, once, "component")
    yield from _gauges(_ONCE_NOW, once, "component")
    yield from _counters(_ACKER, ackers)
    yield from _gauges(_ACKER_NOW, ackers)
    owns: dict[_Labels, Own] = {(name,): each.own for name, each in found.items()}
    yield from _gauges(_OWN, owns)
    yield from _gauges(_TOPOLOGY, {(name,): each for name, each in found.items()})


def _latencies(spouts: Mapping[_Labels, SpoutRow]) -> Metric:
    family = HistogramMetricFamily(
        "tiercel_spout_complete_latency_seconds",
        "Time from emit to complete tree",
        labels=["topology", "spout"],
    )
    for labels, row in spouts.items():
        buckets = [
            (f"{bound / 1000:.6g}".replace("inf", "+Inf"), below) for bound, below in row.latencies
        ]
        family.add_metric(labels, buckets=buckets, sum_value=row.complete_s)
    return family


def _counters(
    figures: Mapping[_Figure, Callable[[Row], float]], rows: Mapping[_Labels, Row], *labels: str
) -> Iterator[Metric]:
    for (name, help_), value in figures.items():
        family = CounterMetricFamily(name, help_, labels=["topology", *labels])
        for names, row in rows.items():
            family.add_metric(names, value(row))
        yield family


def _gauges(
    figures: Mapping[_Figure, Callable[[Row], float | None]],
    rows: Mapping[_Labels, Row],
    *labels: str,
) -> Iterator[Metric]:
    for (name, help_), value in figures.items():
        family = GaugeMetricFamily(name, help_, labels=["topology", *labels])
        for names, row in rows.items():
            found = value(row)
            if found is not None:
                family.add_metric(names, float(found))
        yield family
