"""The driver: runs a topology's Spark query, and begins a new run whenever one ends by a fault.

A run never continues another. What the relay still holds when a run begins was perhaps half processed: those roots are
released, so that the broker delivers their messages again at once and not after the timeout.
"""

from __future__ import annotations

import logging
import re
import secrets
import tempfile
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from acker import Ledger, LedgerUnavailableError, open_ledger
from queues import Relay
from queues.chunk import roots_in
from spark_jobs.errors import TopologyError
from spark_jobs.job import Job, ledger_spec_of
from spark_jobs.levels import Plan, plan_topology
from spark_jobs.query import RunningQuery
from spark_jobs.queue_sink import no_address, sinks_of
from spark_jobs.session import SparkUnit
from spark_jobs.shipping import pack_code
from spark_jobs.snapshots.packing import held_roots
from spark_jobs.snapshots.sealing import body_of
from spark_jobs.snapshots.store import SnapshotStore
from spark_jobs.state import draw_epoch
from spark_jobs.suspects.book import CaseBook
from spark_jobs.ticks import Ticks
from spark_jobs.topology import Topology
from workers.control import State
from workers.errors import SupersededError
from workers.heartbeat import Heartbeat
from workers.patience import patiently
from workers.redis_control import RedisControl
from workers.registry import Registry
from workers.stalls import StallWatch
from workers.ticker import Ticker

log = logging.getLogger(__name__)

_LOOK = 0.2
_ASK_S = 0.5
"""How often Spark is asked how its query is: that costs Python and the JVM more than all else that an idle driver does."""
_ATTENDANCE = timedelta(seconds=10)
"""How long spout workers go on sending after a driver was killed."""
_KEEP_WARM_S = 20.0
_PATIENCE_S = 3.0
_LONGEST_PAUSE_S = 10.0
_SUPERSEDED = "another driver runs this topology now; this one ends"
_HEALTHY_S = 30.0
"""A run that lasted this long starts the pauses between runs anew."""


@dataclass(frozen=True, kw_only=True)
class DriverAround:
    """What a driver needs to know beside its topology and servers."""

    module: str | None = None
    """Where the topology came from: on a cluster it is sent to the executors, with what lies beside it. None: it is there."""
    heartbeat: Heartbeat = field(default_factory=Heartbeat)


class Driver:
    """Keeps one query running until ``stop``."""

    def __init__(
        self,
        topology: Topology,
        redis_urls: tuple[str, ...],
        master: str,
        amqp_url: str | None = None,
        *,
        around: DriverAround | None = None,
    ) -> None:
        """``master`` in Spark's syntax: ``local[2]``, ``spark://host:7077``. ``amqp_url`` is for bolts that publish.

        Raises TopologyError if there is such a bolt and no address.
        """
        sinks = sinks_of(topology)
        if sinks and not amqp_url:
            raise TopologyError(no_address(sinks[0]))
        self._topology, self._redis_urls, self._master = topology, redis_urls, master
        self._amqp_url = amqp_url
        self._around = around or DriverAround()
        self._control = RedisControl(redis_urls[0], topology.name)
        self._stop = threading.Event()

    def stop(self) -> None:
        """Thread-safe and safe in a signal handler: end after the micro-batch that runs."""
        self._stop.set()

    def run(self) -> None:
        """Start Spark and work until ``stop``. Raises SparkUnavailableError if Spark does not start."""
        if self._killed():
            log.info("tiercel activate %s lets it start again", self._topology.name, extra={"event": "start_refused"})
            return
        with suppress(LedgerUnavailableError):
            Registry(self._redis_urls[0]).announce(self._topology)
        # Spark takes seconds to start. What a killed driver left behind need not wait for that, nor time out meanwhile.
        self._begin(self._job(plan_topology(self._topology, max_lanes=1)))
        spark = SparkUnit(self._topology.name, self._master, self._topology.config.spark_options)
        plan = plan_topology(self._topology, max_lanes=spark.cores)
        try:
            with tempfile.TemporaryDirectory(prefix="tiercel-checkpoints-", ignore_cleanup_errors=True) as scratch:
                self._ship(spark, Path(scratch))
                self._runs(spark, plan, scratch)
        finally:
            spark.stop()

    def _ship(self, spark: SparkUnit, scratch: Path) -> None:
        module = self._around.module
        if module is None or re.match(r"local(\[|$)", self._master):
            return
        archive = scratch / "tiercel.zip"
        pack_code(module, archive)
        spark.ship(archive)

    def _runs(self, spark: SparkUnit, plan: Plan, scratch: str) -> None:
        failures = 0
        while not self._stop.is_set():
            began = time.monotonic()
            job = self._begin(self._job(plan))
            if job is None:
                return
            query = spark.start(job, f"{scratch}/{job.run}")
            log.info(
                "run %s of %s: %d levels on %s", job.run, plan.topology.name, plan.levels, self._master,
                extra={"event": "run_started"},
            )  # fmt: skip
            self._watch(spark, query, job)
            failures = 0 if time.monotonic() - began > _HEALTHY_S else failures + 1
            if not self._stop.is_set():
                pause = min(_LONGEST_PAUSE_S, 0.25 * 2 ** min(failures, 10))
                log.warning("a new run begins in %.1f s", pause, extra={"event": "run_restarting"})
                self._stop.wait(pause)

    def _job(self, plan: Plan) -> Job:
        ledger = ledger_spec_of(plan, self._redis_urls)
        return Job(run=secrets.token_hex(6), plan=plan, ledger=ledger, amqp_url=self._amqp_url)

    def _begin(self, job: Job) -> Job | None:
        """Give back what the run before left in the relay, and return the job with the run's epoch; None after ``stop``.

        Waits for Redis as long as it is away.
        """
        began = patiently(self._stop, _enter, job)
        return None if self._stop.is_set() else began

    def _attend(self, spark: SparkUnit, query: RunningQuery, job: Job, relay: Relay, stalls: StallWatch) -> None:
        """While the query runs: say so, and keep Spark's Python workers, which it ends after an idle minute."""
        attend_at = warm_at = ask_at = began = time.monotonic()
        ticker = Ticker(Ticks(job.plan, began), relay)
        while not self._stop.wait(_LOOK):
            now = time.monotonic()
            stalls.look(now)
            self._around.heartbeat.beat()
            if now >= attend_at:
                attend_at = now + _ATTENDANCE.total_seconds() / 4
                if not stalls.given_up:
                    _take_turns(relay, job.attendance)
                if self._killed():
                    self._stop.set()
                    return
            ticker.look(now)
            if now < ask_at:
                continue
            ask_at = now + _ASK_S
            if not query.active:
                return
            if not query.idle:
                warm_at = now + _KEEP_WARM_S
            elif now >= warm_at:
                warm_at = now + _KEEP_WARM_S
                spark.keep_warm(job)

    def _killed(self) -> bool:
        """Whether somebody wants the topology to end; a Redis that does not answer says nothing."""
        with suppress(LedgerUnavailableError):
            if self._control.state() is State.KILLED:
                log.info("%s was killed: ending", self._topology.name, extra={"event": "killed"})
                return True
        return False

    def _watch(self, spark: SparkUnit, query: RunningQuery, job: Job) -> None:
        """Return when the query has ended: by ``stop`` after the running micro-batch, or by a fault."""
        relay = job.open_relay()
        try:
            with suppress(LedgerUnavailableError):
                relay.attend(job.attendance, _ATTENDANCE)
            with closing(open_ledger(job.ledger)) as ledger:
                stalls = StallWatch(relay, ledger, job.plan.relay_lanes, job.ledger.message_timeout, time.monotonic())
                self._attend(spark, query, job, relay, stalls)
                if not self._stop.is_set():
                    _check_run(ledger, job.run)
            with suppress(LedgerUnavailableError):
                relay.leave()
        finally:
            relay.close()
        if self._stop.is_set():
            spark.silence()
            query.finish(_PATIENCE_S)
            with suppress(LedgerUnavailableError):
                _release(job)
            return
        log.error("the run ended: %s", query.fault(), extra={"event": "run_failed"})


def _take_turns(relay: Relay, attendance: str) -> None:
    """Tell the spout workers to go on; when Redis is away they cannot anyway. Two drivers of one topology would cancel each
    other's work out (every tree would time out), so the one that came first gives way.
    """
    with suppress(LedgerUnavailableError):
        if relay.attendant() not in (None, attendance):
            raise SupersededError(_SUPERSEDED)
        relay.attend(attendance, _ATTENDANCE)


def _begin_run(ledger: Ledger, run: str) -> None:
    """Make it the ledger's run. A repeat changes nothing, unless another driver has begun a run since."""
    if not ledger.begin(run):
        raise SupersededError(_SUPERSEDED)


def _check_run(ledger: Ledger, run: str) -> None:
    """Find out why a run ended by itself.

    When another driver begins a run, the ledger refuses this one's work and its query ends by that
    fault. This driver must not begin one in turn, or the two would go on like that for ever.
    """
    with suppress(LedgerUnavailableError):
        _begin_run(ledger, run)


def _enter(job: Job) -> Job:
    """The job as it may run.

    Its run begins in the ledger before anything is released: what tasks of an earlier run still
    apply from here on is refused.
    """
    with closing(open_ledger(job.ledger)) as ledger:
        _begin_run(ledger, job.run)
    _release(job)
    return replace(job, epoch=draw_epoch(job.ledger))


def _release(job: Job) -> None:
    """Give back whatever is in the relay, and what bolts hold."""
    with (
        closing(job.open_relay()) as relay,
        closing(open_ledger(job.ledger)) as ledger,
        closing(job.open_snapshots()) as held,
        closing(job.open_book()) as book,
    ):
        relay.leave()
        fail_guilty(book, ledger)
        released = release_leftovers(relay, ledger) + release_held(held, ledger)
    if released:
        log.info("released %d messages that were on their way", released, extra={"event": "messages_released"})


def fail_guilty(book: CaseBook, ledger: Ledger) -> None:
    """Fail the tuples that killed the run's processes, before they could be released without blame."""
    failures = [failure for case in book.drain() for failure in case.after_death().failures]
    if failures:
        ledger.fail(failures)


def release_leftovers(relay: Relay, ledger: Ledger) -> int:
    """Empty the relay and release the roots of everything in it; returns how many were pending."""
    released = 0
    while payloads := relay.drain():
        released += ledger.release(roots_in(payloads))
    return released


def release_held(snapshots: SnapshotStore, ledger: Ledger) -> int:
    """Forget the bolts' state and release the roots of the tuples that they held; returns how many were pending.

    What cannot be read is passed over: the messages of the tuples in it time out and come again.
    """
    released = 0
    for name, sealed in snapshots.drain():
        try:
            roots = held_roots(body_of(sealed))
        except ValueError as error:
            log.warning(
                "passing over the bolt's state %r: %s; whatever it held times out and is delivered again", name, error,
                extra={"event": "snapshot_unreadable"},
            )  # fmt: skip
            continue
        released += ledger.release(roots)
    return released
