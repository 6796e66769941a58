"""The driver: starts Spark, and keeps a topology running until it is stopped."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tiercel.acker.errors import BadChunkError, RedisUnavailableError
from tiercel.acker.ids import is_extra
from tiercel.acker.inbox.chunk import Chunk, decode
from tiercel.acker.inbox.contract import (
    DRAINED_BYTES,
    DRAINED_TUPLES,
    Claims,
    Inboxes,
    StaleAttemptError,
)
from tiercel.acker.inbox.redis import open_inboxes
from tiercel.acker.ledger import Failure, Ledger
from tiercel.acker.metrics.contract import DRIVER_TASK, STATE_LOST_AT, total_of
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.acker.redis.clients import check_eviction, connect_topology
from tiercel.acker.redis.errors import REFUSALS
from tiercel.acker.redis_ledger import open_ledger
from tiercel.queues import outage
from tiercel.spark_jobs.bolts.queue_sink import QueueSink, no_address
from tiercel.spark_jobs.errors import (
    SparkEndedError,
    SparkUnavailableError,
    StaleTurnError,
    TopologyError,
)
from tiercel.spark_jobs.logs.relay import WorkerLogs
from tiercel.spark_jobs.running.attempt import fenced
from tiercel.spark_jobs.running.backlog import Backlog, part_of
from tiercel.spark_jobs.running.copy import body_of, held_roots
from tiercel.spark_jobs.running.kind import parted
from tiercel.spark_jobs.spark.run import Run
from tiercel.spark_jobs.spark.session import SparkUnit
from tiercel.spark_jobs.spark.settings import is_local
from tiercel.spark_jobs.state.redis_store import RedisStateStore, check_layout
from tiercel.spark_jobs.suspects.redis_book import RedisCaseBook
from tiercel.spark_jobs.topology.bolt_settings import stateful_bolts
from tiercel.spark_jobs.topology.graph import (
    Topology,
    bolt_tasks,
    check_has_bolts,
    inboxes_of,
    ledger_spec_of,
    spread,
)
from tiercel.workers.config import Settings, otel_settings
from tiercel.workers.control.contract import State
from tiercel.workers.control.presence import Lease
from tiercel.workers.control.redis_control import RedisControl, RedisPresences
from tiercel.workers.control.registry import Registry
from tiercel.workers.driver.deletion_cost import WorkerPods
from tiercel.workers.driver.executors import Gauge, least_of, options_of, scaled
from tiercel.workers.driver.run_watch import RunContext, pause_s
from tiercel.workers.driver.runs import Runs
from tiercel.workers.lifecycle import Heartbeat

log = logging.getLogger(__name__)
T = TypeVar("T")
# A JVM that lived for this long is no sign of lasting trouble.
_LONG_LIFE_S = 60.0
_HOPELESS = 8  # JVMs in a row that ended sooner: the supervisor may know more
_STOP_LOOK_S, _AGAIN_S = 0.05, 1.0
_JVM_GRACE_S = 5.0  # for its temporary files


@dataclass(frozen=True, kw_only=True)
class DriverOptions:
    """Settings of a driver besides its topology and servers."""

    # Module of the topology, sent to executors with the files beside it. None: they have it.
    module: str | None = None
    # How Spark's Python workers log. None: as they are set up.
    logs: WorkerLogs | None = None
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    pods: WorkerPods | None = None  # those of Spark's workers, if their number may change


def worker_logs(settings: Settings, mark: str) -> WorkerLogs:
    """Return how Spark's Python workers log; ``mark`` begins each record in our stderr."""
    return WorkerLogs(
        level=settings.log_level,
        form=settings.log,
        mark=mark if is_local(settings.master) else None,
    )


class Driver:
    """Keeps one topology running until ``stop``."""

    def __init__(
        self,
        topology: Topology,
        redis_urls: tuple[str, ...],
        master: str,
        amqp_url: str | None = None,
        *,
        options: DriverOptions | None = None,
    ) -> None:
        """``master`` is in Spark's syntax: ``local[2]``, ``spark://host:7077``.

        ``amqp_url`` is for bolts that publish. Raises TopologyError if one does and it is missing.
        """
        check_has_bolts(topology)
        if not amqp_url and (sinks := sinks_of(topology)):
            raise TopologyError(no_address(sinks[0]))
        self._topology = topology
        self._redis_url = redis_urls[0]
        self._spec = ledger_spec_of(topology, redis_urls)
        self._master = master
        self._amqp_url = amqp_url
        self._options = options or DriverOptions()
        self._control = RedisControl(self._redis_url, topology.name)
        self._context = RunContext(
            topology=topology,
            lease=Lease(RedisPresences(self._redis_url, topology.name)),
            control=self._control,
            inboxes=open_inboxes(self._spec),
            make=self._make,
            enter=self._enter,
            age=self._age,
            heartbeat=self._options.heartbeat,
            end_extra=self._end_extra,
            least=least_of(topology, master, amqp_url),
        )
        self._runs = Runs(self._context)
        # Connects on its first call. It writes no state, so the run number does not matter.
        self._states = RedisStateStore(self._spec, run_number=0)
        self._lost: list[str] = []

    def stop(self) -> None:
        """Begin to stop. Thread-safe, and safe in a signal handler."""
        self._runs.stop()

    def run(self) -> None:
        """Work until ``stop``. Raises errors on which an operator must act."""
        outage.name_process("the driver")
        with ExitStack() as stack:
            for part in (
                self._context.inboxes, self._context.lease, self._control, self._states, self._runs,
            ):  # fmt: skip
                stack.callback(part.close)
            if self._is_killed():
                log.info(
                    "the topology was killed: tiercel activate %s lets it start again",
                    self._topology.name,
                    extra={"event": "start_refused"},
                )
                return
            if self._runs.wait_for_turn():
                REFUSALS.begin()
                self._keep_spark()

    def _keep_spark(self) -> None:
        """Work on Spark, and start another one whenever its JVM has ended.

        Raises SparkEndedError after several JVMs in a row that ended soon.
        """
        deaths = 0
        while True:
            began = time.monotonic()
            # Release the messages of a killed driver or JVM now, because Spark takes seconds to
            # start.
            self._runs.begin(slots=1)
            try:
                self._on_spark()
            except (SparkEndedError, SparkUnavailableError) as error:
                if isinstance(error, SparkUnavailableError) and not deaths:
                    raise
                if self._runs.stopped.is_set():
                    return
                deaths = 1 if time.monotonic() - began > _LONG_LIFE_S else deaths + 1
                if deaths >= _HOPELESS:
                    raise
                log.error("%s; starting another one", error, extra={"event": "spark_ended"})
                self._runs.stopped.wait(pause_s(deaths))
            else:
                return

    def _on_spark(self) -> None:
        """Start Spark, and work until ``stop``. Raises SparkEndedError if its JVM ends."""
        options = options_of(self._topology.config)
        start = partial(SparkUnit, self._topology.name, self._master, options)
        unit = start_unless(self._runs.stopped, start)
        if unit is None:
            return
        with unit as spark:
            try:
                spark.ship(self._options.module, self._master)
                gauge = partial(Gauge, self._topology, self._redis_url, self._amqp_url)
                with scaled(self._topology, gauge, spark, self._runs, pods=self._options.pods):
                    self._runs.go(spark)
            except Exception:
                spark.check_alive()
                raise
            finally:
                # Python workers print meaningless tracebacks when they are cut off.
                spark.silence()

    def _is_killed(self) -> bool:
        with suppress(RedisUnavailableError):
            return self._control.state() is State.KILLED
        return False

    def _make(self, number: int, slots: int, topology: Topology) -> Run:
        return Run(
            id=str(number),
            topology=topology,
            hosts=spread(bolt_tasks(topology), slots),
            ledger=self._spec,
            run_number=number,
            amqp_url=self._amqp_url,
            logs=self._options.logs,
            otel=otel_settings(),
        )

    def _age(self) -> None:
        self._report_lost_states()
        for name in stateful_bolts(self._topology):
            bolt: Any = self._topology.bolts[name].bolt
            if bolt.once:
                self._states.age(name, int(bolt.once_retention.total_seconds()))

    def _report_lost_states(self) -> None:
        """Log which bolts begin with an empty state, and leave the time for monitors.

        ``_lost`` keeps them until that has been done.
        """
        self._lost += [one for one in stateful_bolts(self._topology) if self._states.has_lost(one)]
        if not self._lost:
            return
        with closing(RedisMetrics(self._redis_url, self._topology.name)) as metrics:
            totals, now = metrics.totals(), int(time.time())
            more = {name: now - total_of(totals, name)[STATE_LOST_AT] for name in self._lost}
            metrics.add_all({(name, DRIVER_TASK): {STATE_LOST_AT: by} for name, by in more.items()})
        log.error(
            "Redis lost the state of %s: it begins again with what Redis still has",
            " and ".join(dict.fromkeys(self._lost)),
            extra={"event": "states_lost"},
        )
        self._lost.clear()

    @contextmanager
    def _opened(self, run: Run) -> Iterator[tuple[Ledger, RedisCaseBook]]:
        client = connect_topology(self._redis_url, run.topology.name)
        with (
            closing(open_ledger(run.ledger)) as ledger,
            closing(RedisCaseBook(client, run.topology.name)) as book,
        ):
            yield ledger, book

    def _end_extra(self, run: Run, tasks: Sequence[int]) -> int:
        with self._opened(run) as (ledger, book):
            released = sum(
                end_extra(run.id, run.topology, task, self._context.inboxes, ledger, book)
                for task in tasks
            )
        self._retire(set(tasks).__contains__)
        return released

    def _retire(self, is_over: Callable[[int], bool]) -> None:
        with closing(RedisMetrics(self._redis_url, self._topology.name)) as metrics:
            metrics.retire(is_over)

    def _enter(self, run: Run) -> int:
        topology = run.topology
        stateful = stateful_bolts(topology)
        # Check before releasing anything: otherwise the tasks of each run would fail on it.
        spec = run.ledger
        check_layout(spec, stateful)
        check_eviction(spec.urls, spec.topology, spec.shards, stateful)
        with self._opened(run) as (ledger, book), closing(Registry(self._redis_url)) as registry:
            released = enter(run.id, topology, self._context.inboxes, ledger, book)
            _take_back_half_done(run, stateful)
            registry.announce(topology)
            # A server that is full takes no note, and has lost nothing.
            with suppress(RedisUnavailableError):
                self._report_lost_states()
                self._retire(is_extra)
            return released


def sinks_of(topology: Topology) -> list[str]:
    """Return the components that publish to the topology's RabbitMQ, because their own settings
    have no ``amqp_url``.
    """
    return [
        component
        for component, spec in topology.bolts.items()
        if isinstance(spec.bolt, QueueSink)
        and not topology.config_of(component).extra.get("amqp_url")
    ]


def start_unless(stopped: threading.Event, start: Callable[[], T]) -> T | None:
    """Return the result of ``start``; None if ``stopped`` is set before it returns.

    Starting Spark takes seconds, far longer on a busy machine, and holds nothing that must be given
    back. So once ``stopped`` is set, the child processes of ``start`` are terminated, which makes
    it fail. Nothing else may start child processes meanwhile.
    """
    others = _children()
    breaker = _Breaker(stopped, others)
    breaker.start()
    try:
        started = start()
    except Exception:
        breaker.end()
        if not stopped.is_set():
            raise
        _wait_for_the_end_of(others)
        return None
    breaker.end()
    if breaker.has_broken:
        _wait_for_the_end_of(others)
        return None
    return started


class _Breaker(threading.Thread):
    """Terminates new child processes as soon as ``stopped`` is set, until ``end``."""

    def __init__(self, stopped: threading.Event, others: set[int]) -> None:
        super().__init__(name="start-breaker", daemon=True)
        self.has_broken = False
        self._stopped = stopped
        self._others = others
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            if self._stopped.wait(_STOP_LOOK_S):
                # Repeatedly: another process may be about to start, and a child ignores the
                # signal before its exec.
                self._break_off()
                self._over.wait(_AGAIN_S)

    def end(self) -> None:
        self._over.set()
        self.join()

    def _break_off(self) -> None:
        for pid in _children() - self._others:
            if not self._over.is_set():
                self.has_broken = True
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)


def _wait_for_the_end_of(others: set[int]) -> None:
    give_up = time.monotonic() + _JVM_GRACE_S
    while _running(_children() - others) and time.monotonic() < give_up:
        time.sleep(_STOP_LOOK_S)


def _children() -> set[int]:
    """Return the children of this process, zombies included."""
    found: set[int] = set()
    for listed in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            found.update(map(int, listed.read_text().split()))
    return found


def _running(pids: set[int]) -> bool:
    """Return True if one of these children still runs; leave zombies to their owner."""
    for pid in pids:
        with suppress(ChildProcessError):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return True
    return False


def enter(
    run: str, topology: Topology, inboxes: Inboxes, ledger: Ledger, book: RedisCaseBook
) -> int:
    """Take over the inboxes and the ledger for ``run``; return the number of released messages.

    Released messages are redelivered, which does not count as a failure. The order matters: writes
    of older runs are refused first; then their tuples are read, released, and only then deleted, so
    that a driver that dies in between loses none. May be repeated. Raises StaleAttemptError if a
    later run has begun.
    """
    inboxes.adopt(run, inboxes_of(topology))
    if not ledger.begin(run):
        raise StaleAttemptError(f"run {run} is over: a later one has begun")
    # Before they are released without blame.
    if deadly := _deadly(book):
        ledger.fail(deadly)
    book.forget()
    return _release_waiting(run, inboxes, ledger) + _release_held(run, inboxes, ledger)


def end_extra(  # noqa: PLR0913, PLR0917 - the same parts as for ``enter``
    run: str,
    topology: Topology,
    task: int,
    inboxes: Inboxes,
    ledger: Ledger,
    book: RedisCaseBook,
) -> int:
    """Take over an extra task that has no process; return the number of released messages.

    Its older attempts are fenced off first. May be repeated. Raises StaleAttemptError if a later
    run has begun.
    """
    attempt = fenced(run, topology, task, inboxes, ledger).attempt
    ledger.fail([each for each in _deadly(book) if each.task == task])
    inbox = inboxes.open(run, task, attempt)
    released = 0
    while entries := inbox.take(DRAINED_TUPLES, DRAINED_BYTES, timedelta(0), None, Claims(0)):
        backlog = Backlog(inbox.opened.done)
        backlog.add(entries, _chunk_of)
        released += ledger.release(
            sorted(
                {
                    root
                    for entry in backlog
                    for root in part_of(entry.chunk, entry.rows).lineage.roots.tolist()
                }
            )
        )
        inboxes.discard(run, task, [entry.position for entry in entries])
    if inbox.opened.snapshot is not None:
        released += ledger.release(_held_in(task, inbox.opened.snapshot))
    return released


def _chunk_of(payload: bytes) -> tuple[Chunk | None, list[int]]:
    with suppress(BadChunkError):
        return decode(payload), []
    return None, []


def _deadly(book: RedisCaseBook) -> list[Failure]:
    """Return the failures of the tuples that killed processes."""
    return [each for case in book.cases() for each in case.after_death().failures]


def _release_waiting(run: str, inboxes: Inboxes, ledger: Ledger) -> int:
    released = 0
    while found := inboxes.drain(run):
        for task, entries in found:
            released += ledger.release(_readable_roots(task, [entry.payload for entry in entries]))
            inboxes.discard(run, task, [entry.position for entry in entries])
    return released


def _release_held(run: str, inboxes: Inboxes, ledger: Ledger) -> int:
    released = 0
    for task, snapshot in inboxes.snapshots(run):
        released += ledger.release(_held_in(task, snapshot))
        inboxes.forget_snapshot(run, task)
    return released


def _held_in(task: int, snapshot: bytes) -> Sequence[int]:
    """Return the roots of the tuples in a snapshot; none if it is unreadable."""
    _, signed = parted(snapshot)
    try:
        # A snapshot that has only an order holds no tuples.
        return held_roots(body_of(signed)) if signed or not snapshot else ()
    except ValueError as error:
        log.warning(
            "skipping the snapshot of task %d: %s; its messages will time out", task, error,
            extra={"event": "snapshot_unreadable"},
        )  # fmt: skip
        return ()


def _readable_roots(task: int, payloads: Sequence[bytes]) -> list[int]:
    roots: set[int] = set()
    for payload in payloads:
        try:
            roots.update(decode(payload).lineage.roots.tolist())
        except BadChunkError as error:
            log.warning(
                "skipping %d bytes in the inbox of task %d: %s; their messages will time out",
                len(payload), task, error,
                extra={"event": "chunk_unreadable"},
            )  # fmt: skip
    return sorted(roots)


def _take_back_half_done(run: Run, components: Sequence[str]) -> None:
    # The run's own tasks may still be in a turn when it ends; a later run takes back the rest.
    with closing(RedisStateStore(run.ledger, run.run_number)) as store, suppress(StaleTurnError):
        for component in components:
            store.begin_run(component, len(run.topology.task_ids(component)))
