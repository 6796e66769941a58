"""Looks at what waits and what works, has the control law decide how many executors the topology
wants, asks Spark for them, gives back those that are empty, and reports beside the driver's lease.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

from tiercel.acker.errors import AckerError
from tiercel.acker.metrics.contract import total_of
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.queues.broker.depths import DepthReader
from tiercel.queues.errors import QueuesError
from tiercel.queues.queue_spout import QueueSpout
from tiercel.spark_jobs.errors import TopologyError
from tiercel.spark_jobs.spark.run import Run
from tiercel.spark_jobs.spark.session import SparkUnit
from tiercel.spark_jobs.spark.settings import is_local
from tiercel.spark_jobs.topology.bolt_settings import concurrency_of, takes_extra_tasks
from tiercel.spark_jobs.topology.config import Config
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.workers.control.presence import ExecutorReport, SpoutSeats
from tiercel.workers.control.redis_control import RedisPresences
from tiercel.workers.driver.deletion_cost import WorkerPods, costs_of
from tiercel.workers.driver.joining import Joining
from tiercel.workers.driver.scaling import (
    ExecutorRange,
    FleetOrders,
    Lives,
    Observation,
    Present,
    Scaler,
    orders,
)

log = logging.getLogger(__name__)
_LOOK_S = 1.0
# The work of a message is a mean over this time, or over the last message that was done.
_WORK_S = 60.0
# The executors of a run were seen at most this long ago; otherwise there is no run.
_FRESH_S = 5.0
# A master that restarts forgets the number.
_AGAIN_S = 30.0


class Fleet:
    """The executors of the current run, for the thread that decides their number.

    Thread-safe. The thread of the run calls ``look`` about once per second, and it alone talks to
    the tasks; the other methods are for the thread that decides.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: Sequence[Present] = ()
        self._at = -inf
        self._per_slot: Mapping[str, float] = {}
        # Number of tasks of the run's own.
        self._own = 0
        # Executors to retire that are not seen to leave yet.
        self._leaving: set[str] = set()

    def begin(self, run: Run) -> None:
        """Note that a run begins."""
        parallelism = run.topology.parallelism
        with self._lock:
            self._per_slot = {bolt: n / len(run.hosts) for bolt, n in parallelism.items()}
            self._own = sum(map(len, run.hosts))
            self._at = -inf

    @property
    def per_slot(self) -> Mapping[str, float]:
        """The tasks of each bolt in one Spark task."""
        with self._lock:
            return self._per_slot

    def look(self, members: Joining) -> None:
        """Retire the executors that should leave, and note who is there.

        None is there while one of the run's own tasks has no executor: Spark may start it on any.
        """
        with suppress(AckerError):  # the next look tries again
            found = members.present()
            if sum(one.own for one in found) < self._own:
                return
            staying = {one.id for one in found if not one.retiring}
            with self._lock:
                leaving = self._leaving & staying
            fixed = {one for one in leaving if not members.retire(one)}
            with self._lock:
                # An order stays until the executor is seen to leave, so none gets it in its place.
                self._leaving &= staying - fixed
                self._found = found
                self._at = time.monotonic()

    def present(self) -> Sequence[Present]:
        """Return the executors of the current run; none between two runs, and while it begins."""
        with self._lock:
            if time.monotonic() - self._at > _FRESH_S:
                return ()
            return [
                replace(one, retiring=True, idle=False) if one.id in self._leaving else one
                for one in self._found
            ]

    def retire(self, executors: Sequence[str]) -> None:
        """Have the run's thread retire executors at its next look. Idempotent."""
        with self._lock:
            self._leaving.update(executors)


class Topside(Protocol):
    """The part of the driver that holds the lease and has the run; ``Runs`` is one."""

    fleet: Fleet

    def tell(self, executors: ExecutorReport) -> bool:
        """Report the executors beside the lease; False if another driver has it."""


class Executors:
    """Decides once per second, in a thread, until ``close``, and gives the orders."""

    def __init__(  # noqa: PLR0913 - one that decides, and the parts that it looks at
        self,
        topology: Topology,
        range_: ExecutorRange,
        gauge: Gauge,
        spark: SparkUnit,
        runs: Topside,
        *,
        pods: WorkerPods | None = None,
    ) -> None:
        """``pods`` are the workers of a Spark whose number follows the executors wanted."""
        self._topology = topology
        self._range = range_
        self._gauge = gauge
        self._spark = spark
        self._runs = runs
        self._pods = pods
        # None until a run has executors.
        self._scaler: Scaler | None = None
        self._lives = Lives()
        self._held = False
        # The total that Spark was asked for, and when.
        self._asked: tuple[float, float] = (inf, -inf)
        # Executors that were leaving at the last look, and all that ever did.
        self._leaving: set[str] = set()
        self._left: set[str] = set()
        self._said: ExecutorReport | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="executors", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop, after the look that is under way."""
        self._over.set()
        self._thread.join()
        if self._pods:
            self._pods.close()

    def _run(self) -> None:
        with closing(self._gauge):
            while not self._over.wait(_LOOK_S):
                try:
                    self.look(time.monotonic())
                except (AckerError, QueuesError):
                    pass  # a server is away: the number stays, and the driver's thread reports it
                except Exception:
                    if self._over.is_set():
                        return  # Spark ends
                    log.exception(
                        "could not decide the number of executors, will retry",
                        extra={"event": "executors_unknown"},
                    )

    def look(self, now: float) -> None:
        """Look once, report, and give the orders of this driver if it has the lease and a run."""
        executors = self._spark.executors()
        found = self._runs.fleet.present()
        if self._scaler is None:
            if not found:
                return
            # Executors above the least that a standalone Spark started late leave again.
            self._scaler = Scaler(self._range)
        slots = max((one.slots for one in executors), default=1)
        per_slot = self._runs.fleet.per_slot
        seen = self._gauge.look(now, len(executors), slots, per_slot)
        if not any(takes_extra_tasks(self._topology, bolt) for bolt in self._topology.bolts):
            seen = replace(seen, useful=self._range.least * slots)
        report = self._scaler.look(seen)
        if self._runs.tell(report):
            self._say(report)
            if found:
                self._order(now, orders(report.wanted, self._range.most, found), found)
            if self._pods:
                self._pods.look(now, costs_of(executors, found))

    def _order(self, now: float, next_: FleetOrders, found: Sequence[Present]) -> None:
        """Give the orders to Spark and to the executors."""
        leaving = {one.id for one in found if one.retiring}
        self._left |= leaving
        held = self._lives.held(now, found, self._left)
        if held and not self._held:
            log.error(
                "executors of %s end soon after they come: none is asked for now, the topology "
                "goes on with %d; the logs of Spark's workers say why they end",
                self._topology.name, len(found),
                extra={"event": "executors_end_at_once"},
            )  # fmt: skip
        self._held = held
        total = min(next_.total, len(found)) if held else next_.total
        asked, at = self._asked
        if total != asked or now - at >= _AGAIN_S:
            if self._spark.ask_for(total):
                self._asked = total, now
            elif total != asked:
                log.warning(
                    "Spark refuses %d executors for %s, will ask again", total,
                    self._topology.name,
                    extra={"event": "executors_refused"},
                )  # fmt: skip
        # Spark has a lower total by now, so it replaces none.
        if self._asked[0] <= total:
            self._runs.fleet.retire(next_.retire)
        if next_.end:
            self._spark.end(next_.end)
        if gone := sorted(self._leaving - {one.id for one in found}):
            log.info(
                "%s gave back the executors %s, on which nothing ran", self._topology.name,
                ", ".join(gone),
                extra={"event": "executors_given_back"},
            )  # fmt: skip
        self._leaving = leaving

    def _say(self, report: ExecutorReport) -> None:
        said, self._said = self._said, report
        name = self._topology.name
        if said is None or said.wanted != report.wanted:
            log.info(
                "%s wants %d executors and has %d: %s",
                name, report.wanted, report.present, report.why,
                extra={"event": "executors_wanted"},
            )  # fmt: skip
        if report.refused and not (said and said.refused):
            log.warning(
                "Spark has not given %d of the %d executors that %s wants: is the cluster full, or "
                "does a quota refuse them? The topology goes on with %d",
                report.refused, report.wanted, name, report.present,
                extra={"event": "executors_refused"},
            )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class _Count:
    """Messages that were done and the slot-seconds of the bolts, up to a moment; and the messages
    that were in execution then.
    """

    at: float
    done: int
    worked_s: float
    executing: int


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

    def look(
        self, now: float, present: int, slots: int, per_slot: Mapping[str, float]
    ) -> Observation:
        """Read the servers; ``per_slot`` has the tasks of each bolt in one Spark task.

        These tasks execute side by side. Tasks that compute share a core, and their tuples take
        longer together. Raises AckerError, QueuesError.
        """
        ready = sum(depth.ready for depth in self._depths.look(self._queues))
        tasks = range(1, self._topology.spout_tasks + 1)
        pending = sum(one.pending for one in self._seats.present(tasks).values())
        totals = self._metrics.totals()
        spouts = [total_of(totals, spout) for spout in self._topology.spouts]
        done = sum(counts["acked"] for counts in spouts)
        failed = sum(counts["failed"] for counts in spouts)
        worked_s = sum(
            total_of(totals, name)["execute_ns"]
            / 1e9
            / (concurrency_of(spec) or 1)
            / max(1.0, per_slot.get(name, 1.0))
            for name, spec in self._topology.bolts.items()
        )
        executing = min(pending, present * slots)
        return Observation(
            now=now,
            waiting=ready + pending - executing,
            executing=executing,
            done=done,
            work_s=self._work.after(now, done, worked_s, failed=failed, executing=executing),
            present=present,
            slots=slots,
        )

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._stack.close()


class Work:
    """The slot-seconds that one message takes, as a mean over the last minute or message. Pure."""

    def __init__(self) -> None:
        # Looks at which messages had ended since the look before; the first begins the mean.
        self._counts: deque[_Count] = deque()
        self._work_s = 0.0
        # Messages that had ended, and the slot-seconds when the last of them did.
        self._ended = 0
        self._since_s = 0.0

    def after(
        self, now: float, done: int, worked_s: float, *, failed: int = 0, executing: int = 0
    ) -> float:
        """Return the mean after one more look; 0 while it is unknown.

        Messages of ten minutes need executors before the first of them is done: the mean is at
        least the work so far of the messages that are ``executing``.

        >>> work = Work()
        >>> [work.after(now, now // 2, float(now)) for now in range(5)]
        [0.0, 0.0, 2.0, 2.0, 2.0]
        """
        counts = self._counts
        count = _Count(at=now, done=done, worked_s=worked_s, executing=executing)
        # Redis may lose the counts.
        if not counts or done < counts[-1].done or worked_s < counts[-1].worked_s:
            counts.clear()
            counts.append(count)
            self._work_s = self._work_s or (worked_s / done if done else 0.0)
            self._ended, self._since_s = done + failed, worked_s
        elif done > counts[-1].done:
            counts.append(count)
            while len(counts) > 2 and counts[1].at <= now - _WORK_S:
                counts.popleft()
            self._work_s = _work_between(counts[0], count)
        if done + failed != self._ended:
            self._ended, self._since_s = done + failed, worked_s
        under_way_s = (worked_s - self._since_s) / executing if executing else 0.0
        return max(self._work_s, under_way_s)


def _work_between(first: _Count, last: _Count) -> float:
    """Return the slot-seconds of one message between two looks.

    A message in execution counts as half done: when the first of sixteen is done, all have worked.
    """
    done = last.done - first.done
    more = (last.executing - first.executing) / 2
    return (last.worked_s - first.worked_s) / max(done + more, done / 2)


def queues_of(topology: Topology) -> Sequence[str]:
    """Return the queues that the spouts of a topology read, each once."""
    return list(
        dict.fromkeys(
            spec.spout.queue.name
            for spec in topology.spouts.values()
            if isinstance(spec.spout, QueueSpout)
        )
    )


def range_of(config: Config) -> ExecutorRange | None:
    """Return the range of executors; None if their number is the operator's."""
    match config.executors:
        case None:
            return None
        case int(number):
            least = most = number
        case least, most:
            pass
    return ExecutorRange(least=least, most=most, target_s=config.executors_target_secs)


def least_of(topology: Topology, master: str, amqp_url: str | None) -> int:
    """Return the executors that always stay; 0 if all do.

    Raises TopologyError if the driver cannot see the messages that wait; warns in local mode.
    """
    range_ = range_of(topology.config)
    if range_ is None:
        return 0
    if is_local(master):
        log.warning(
            "executors=%d..%d has no effect with %s, which has one: name a cluster with --master",
            range_.least, range_.most, master,
            extra={"event": "executors_fixed"},
        )  # fmt: skip
        return 0
    if queues_of(topology) and not amqp_url:
        raise TopologyError(
            f"executors={range_.least}..{range_.most} depends on the messages that wait, and "
            "the driver has no address of RabbitMQ: set --amqp or TIERCEL_AMQP"
        )
    return range_.least


def options_of(config: Config) -> dict[str, str]:
    """Return the options of Spark; YARN and Kubernetes begin with the least executors."""
    range_ = range_of(config)
    first = {"spark.executor.instances": str(range_.least)} if range_ else {}
    return {**first, **config.spark_options}


@contextmanager
def scaled(
    topology: Topology,
    gauge: Callable[[], Gauge],
    spark: SparkUnit,
    runs: Topside,
    *,
    pods: WorkerPods | None = None,
) -> Iterator[None]:
    """Decide within the block how many executors the topology wants, if they have a range."""
    range_ = range_of(topology.config)
    if range_ is None or not spark.grows:
        yield
        return
    spark.begin_with(range_.least)
    executors = Executors(topology, range_, gauge(), spark, runs, pods=pods)
    executors.start()
    with closing(executors):
        yield
