"""Looks at what waits and what works, has the control law decide how many executors the topology
wants, and reports it beside the driver's lease.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass

from tiercel.acker.errors import AckerError
from tiercel.acker.metrics.contract import total_of
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.queues.broker.depths import DepthReader
from tiercel.queues.errors import QueuesError
from tiercel.queues.queue_spout import QueueSpout
from tiercel.spark_jobs.spark.session import SparkUnit
from tiercel.spark_jobs.topology.bolt_settings import concurrency_of
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.workers.control.presence import ExecutorReport, SpoutSeats
from tiercel.workers.control.redis_control import RedisPresences
from tiercel.workers.driver.scaling import ExecutorRange, Observation, Scaler

log = logging.getLogger(__name__)
_LOOK_S = 1.0
# The work of a message is a mean over this time, or over the last message that was done.
_WORK_S = 60.0


class Executors:
    """Decides once per second, in a thread, until ``close``."""

    def __init__(
        self,
        topology: Topology,
        range_: ExecutorRange,
        gauge: Gauge,
        spark: SparkUnit,
        tell: Callable[[ExecutorReport], bool],
    ) -> None:
        """``tell`` takes the report; it returns False while another driver has the topology."""
        self._name = topology.name
        self._range = range_
        self._gauge = gauge
        self._spark = spark
        self._tell = tell
        self._scaler = Scaler(range_)
        self._said: ExecutorReport | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="executors", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, after the look that is under way."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with closing(self._gauge):
            while not self._over.wait(_LOOK_S):
                # A server is away: the number stays. The driver's own thread reports outages.
                with suppress(AckerError, QueuesError):
                    try:
                        self._look()
                    except Exception:
                        if self._over.is_set():
                            return  # Spark ends
                        log.exception(
                            "could not decide the number of executors, will retry",
                            extra={"event": "executors_unknown"},
                        )

    def _look(self) -> None:
        found = self._spark.slots_by_executor()
        slots = max(found.values(), default=1)
        seen = self._gauge.look(time.monotonic(), len(found), slots)
        decision = self._scaler.look(seen)
        report = ExecutorReport(
            wanted=decision.wanted,
            present=len(found),
            refused=decision.refused,
            why=decision.why,
        )
        if self._tell(report):
            self._say(report)

    def _say(self, report: ExecutorReport) -> None:
        said, self._said = self._said, report
        if said is None or said.wanted != report.wanted:
            log.info(
                "%s wants %d executors and has %d: %s",
                self._name, report.wanted, report.present, report.why,
                extra={"event": "executors_wanted"},
            )  # fmt: skip
        if report.refused and not (said and said.refused):
            log.warning(
                "Spark has not given %d of the %d executors that %s wants: is the cluster full, or "
                "does a quota refuse them? The topology goes on with %d",
                report.refused, report.wanted, self._name, report.present,
                extra={"event": "executors_refused"},
            )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class _Count:
    """Messages that were done and the slot-seconds of the bolts, up to a moment."""

    at: float
    done: int
    worked_s: float


class Gauge:
    """Reads what waits and what a message takes. For one thread."""

    def __init__(self, topology: Topology, redis_url: str, amqp_url: str | None) -> None:
        self._topology = topology
        self._queues = queues_of(topology)
        self._stack = ExitStack()
        self._metrics = self._stack.enter_context(closing(RedisMetrics(redis_url, topology.name)))
        self._seats = self._stack.enter_context(
            closing(SpoutSeats(RedisPresences(redis_url, topology.name)))
        )
        self._depths = self._stack.enter_context(closing(DepthReader(amqp_url or "")))
        self._work = Work()

    def look(self, now: float, present: int, slots: int) -> Observation:
        """Read the servers. Raises AckerError, QueuesError."""
        ready = sum(depth.ready for depth in self._depths.look(self._queues))
        tasks = range(1, self._topology.spout_tasks + 1)
        pending = sum(one.pending for one in self._seats.present(tasks).values())
        totals = self._metrics.totals()
        done = sum(total_of(totals, spout)["acked"] for spout in self._topology.spouts)
        worked_s = sum(
            total_of(totals, name)["execute_ns"] / 1e9 / (concurrency_of(spec) or 1)
            for name, spec in self._topology.bolts.items()
        )
        executing = min(pending, present * slots)
        return Observation(
            now=now,
            waiting=ready + pending - executing,
            executing=executing,
            done=done,
            work_s=self._work.after(now, done, worked_s),
            present=present,
            slots=slots,
        )

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._stack.close()


class Work:
    """The slot-seconds that one message takes, as a mean over the last minute or message. Pure."""

    def __init__(self) -> None:
        self._counts: deque[_Count] = deque()
        self._work_s = 0.0

    def after(self, now: float, done: int, worked_s: float) -> float:
        """Return the mean after one more look; 0 until a message was done.

        >>> work = Work()
        >>> [work.after(now, now // 2, float(now)) for now in range(4)]
        [0.0, 0.0, 2.0, 3.0]
        """
        counts = self._counts
        counts.append(_Count(at=now, done=done, worked_s=worked_s))
        first = counts[0]
        if done < first.done or worked_s < first.worked_s:  # Redis lost the counts
            counts.clear()
        elif done > first.done:
            self._work_s = (worked_s - first.worked_s) / (done - first.done)
        elif not self._work_s and done:
            self._work_s = worked_s / done
        while len(counts) > 1 and counts[1].at <= now - _WORK_S and counts[1].done < done:
            counts.popleft()
        return self._work_s


def queues_of(topology: Topology) -> Sequence[str]:
    """Return the queues that the spouts of a topology read, each once."""
    return list(
        dict.fromkeys(
            spec.spout.queue.name
            for spec in topology.spouts.values()
            if isinstance(spec.spout, QueueSpout)
        )
    )
