"""The driver: starts Spark, and keeps one run of a topology going until it is stopped.

It holds the topology's lease. A second driver waits in reserve and takes over when the lease lapses.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import replace

from acker import LedgerUnavailableError, open_ledger
from acker.redis_client import connect_topology
from queues.inbox.contract import Inboxes
from queues.inbox.records import StaleAttemptError
from spark_jobs.errors import TopologyError
from spark_jobs.queue_sink import no_address, sinks_of
from spark_jobs.running.placement import bolt_tasks, check_has_bolts, spread
from spark_jobs.shape import shape_of
from spark_jobs.spark.context import SparkUnit
from spark_jobs.spark.long_tasks import LongTasks
from spark_jobs.spark.run import Run, ledger_spec_of
from spark_jobs.spark.stores import open_inboxes
from spark_jobs.state import draw_epoch
from spark_jobs.suspects.redis_book import RedisCaseBook
from spark_jobs.topology import Topology
from workers.control import State
from workers.driver.around import DriverAround
from workers.driver.entering import enter
from workers.driver.lease import LASTS, Holder, Lease
from workers.driver.redis_lease import RedisLease
from workers.driver.watch import Attendance, Ended
from workers.patience import patiently
from workers.redis_control import RedisControl
from workers.registry import Registry

log = logging.getLogger(__name__)

_LOOK_S = 0.2
_RENEW_S = LASTS.total_seconds() / 4
_RESERVE_S = 1.0
_GRACE_S = 5.0
"""How long the last steps may take when a run ends."""
_LONGEST_PAUSE_S = 10.0
_HEALTHY_S = 30.0
"""A run that lasted this long starts the pauses between runs anew."""


class Driver:
    """Keeps one run going until ``stop``."""

    def __init__(
        self,
        topology: Topology,
        redis_urls: tuple[str, ...],
        master: str,
        amqp_url: str | None = None,
        *,
        around: DriverAround | None = None,
    ) -> None:
        """``master`` in Spark's syntax: ``local[2]``, ``spark://host:7077``.

        ``amqp_url`` is for bolts that publish. Raises TopologyError if there is such a bolt and no address.
        """
        check_has_bolts(topology)
        sinks = sinks_of(topology)
        if sinks and not amqp_url:
            raise TopologyError(no_address(sinks[0]))
        self._topology = topology
        self._redis_urls = redis_urls
        self._master = master
        self._amqp_url = amqp_url
        self._around = around or DriverAround()
        self._control = RedisControl(redis_urls[0], topology.name)
        self._lease: Lease = RedisLease(redis_urls[0], topology.name)
        self._me = Holder(driver=secrets.token_hex(8), shape=shape_of(topology))
        self._stop = threading.Event()

    def stop(self) -> None:
        """Thread-safe and safe in a signal handler: end after the steps that are at work."""
        self._stop.set()

    def run(self) -> None:
        """Work until ``stop``. Raises SparkUnavailableError if Spark does not start."""
        if self._killed():
            log.info("tiercel activate %s lets it start again", self._topology.name, extra={"event": "start_refused"})
            return
        with suppress(LedgerUnavailableError):
            Registry(self._redis_urls[0]).announce(self._topology)
        if not self._take_lease():
            return
        renewing = threading.Thread(target=self._renew, name="lease", daemon=True)
        renewing.start()
        try:
            # What a killed driver left behind is released before Spark starts, which takes seconds.
            patiently(self._stop, self._enter, self._new_run(hosts=1))
            with SparkUnit(self._topology.name, self._master, self._topology.config.spark_options) as spark:
                spark.ship(self._around.module, self._master)
                self._runs(spark)
        finally:
            self._stop.set()
            with suppress(LedgerUnavailableError):
                self._lease.leave(self._me.driver)

    def _take_lease(self) -> bool:
        """Wait until no other driver has the lease; False after ``stop``."""
        said = False
        while not self._stop.is_set():
            if patiently(self._stop, self._lease.take, self._me):
                return not self._stop.is_set()
            if not said:
                log.info("another driver runs %s: waiting in reserve", self._topology.name, extra={"event": "in_reserve"})
            said = True
            self._around.heartbeat.beat()
            self._stop.wait(_RESERVE_S)
        return False

    def _renew(self) -> None:
        while not self._stop.wait(_RENEW_S):
            with suppress(LedgerUnavailableError):
                if not self._lease.take(self._me):
                    self._me = replace(self._me, run="")

    def _new_run(self, hosts: int) -> Run:
        topology = self._topology
        return Run(
            id=secrets.token_hex(6),
            topology=topology,
            hosts=spread(bolt_tasks(topology), hosts),
            ledger=ledger_spec_of(topology, self._redis_urls),
            amqp_url=self._amqp_url,
        )

    def _enter(self, run: Run) -> Run:
        """The run as it may begin, after what was left is released."""
        topology = run.topology
        with ExitStack() as stack:
            inboxes = stack.enter_context(closing(open_inboxes(run.ledger)))
            ledger = stack.enter_context(closing(open_ledger(run.ledger)))
            client = connect_topology(self._redis_urls[0], topology.name)
            book = stack.enter_context(closing(RedisCaseBook(client, topology.name)))
            released = enter(run.id, topology, inboxes, ledger, book)
        if released:
            log.info("released %d messages that were on their way", released, extra={"event": "messages_released"})
        return replace(run, epoch=draw_epoch(run.ledger))

    def _runs(self, spark: SparkUnit) -> None:
        failures = 0
        while not self._stop.is_set():
            began = time.monotonic()
            run = patiently(self._stop, self._enter, self._new_run(spark.slots))
            if run is None:
                return
            ended = self._one(spark, run)
            if ended is Ended.STOPPED:
                return
            failures = 0 if time.monotonic() - began > _HEALTHY_S else failures + 1
            pause_s = min(_LONGEST_PAUSE_S, 0.25 * 2 ** min(failures, 10))
            log.warning("a new run begins in %.1f s", pause_s, extra={"event": "run_restarting"})
            self._stop.wait(pause_s)

    def _one(self, spark: SparkUnit, run: Run) -> Ended:
        """Run it to its end."""
        tasks = LongTasks(spark.context, run)
        tasks.start()
        log.info(
            "run %s of %s: %d bolt tasks in %d Spark tasks on %s",
            run.id, self._topology.name, sum(map(len, run.hosts)), len(run.hosts), self._master,
            extra={"event": "run_started"},
        )  # fmt: skip
        with closing(open_inboxes(run.ledger)) as inboxes:
            # Spout workers may send as soon as the inboxes are the run's, while Python workers still start.
            self._me = replace(self._me, run=run.id)
            with suppress(LedgerUnavailableError):
                self._lease.take(self._me)
            ended = self._watch(run, tasks, inboxes)
            self._me = replace(self._me, run="")
            self._finish(spark, run, tasks)
        if ended is Ended.FAILED:
            log.error("the run ended: %s", tasks.fault, extra={"event": "run_failed"})
        return ended

    def _watch(self, run: Run, tasks: LongTasks, inboxes: Inboxes) -> Ended:
        began = time.monotonic()
        look_at = began
        every = [task for host in run.hosts for task in host]
        while not self._stop.wait(_LOOK_S):
            self._around.heartbeat.beat()
            now = time.monotonic()
            if not tasks.active:
                return Ended.FAILED
            if now < look_at:
                continue
            look_at = now + 1.0
            if self._killed():
                return Ended.STOPPED
            ended = self._looked(every, now - began, inboxes)
            if ended is not None:
                return ended
        return Ended.STOPPED

    def _looked(self, every: list[int], age_s: float, inboxes: Inboxes) -> Ended | None:
        """Whether the inboxes say that the run is over."""
        try:
            figures = inboxes.figures(every)
        except LedgerUnavailableError:
            return None
        if not self._me.run or not all(one.adopted for one in figures.values()):
            log.error("Redis lost its memory, or another run has taken over", extra={"event": "run_lost"})
            return Ended.LOST
        missing = Attendance.of(figures).missing(age_s)
        if missing:
            named = ", ".join(str(task) for task in missing[:10])
            log.error("no process runs the bolt tasks %s", named, extra={"event": "tasks_unattended"})
            return Ended.UNATTENDED
        return None

    def _finish(self, spark: SparkUnit, run: Run, tasks: LongTasks) -> None:
        """End the run's tasks between two steps if they can, and give back what they left."""
        spark.silence()
        with suppress(LedgerUnavailableError, StaleAttemptError):
            self._enter(replace(run, id=f"{run.id}-ended"))
        if not tasks.wait(_GRACE_S):
            tasks.cancel()
            tasks.wait(_GRACE_S)

    def _killed(self) -> bool:
        """Whether an operator ended the topology; a Redis that does not answer says nothing."""
        with suppress(LedgerUnavailableError):
            if self._control.state() is State.KILLED:
                log.info("%s was killed: ending", self._topology.name, extra={"event": "killed"})
                self._stop.set()
                return True
        return False
