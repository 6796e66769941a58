"""The driver's loop: one run after the other while it holds the topology's lease."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from tiercel.acker.errors import RedisUnavailableError
from tiercel.acker.inbox.contract import StaleAttemptError
from tiercel.queues.nouns import counted
from tiercel.spark_jobs.spark.executors import Readiness
from tiercel.spark_jobs.spark.job import LongTasks
from tiercel.spark_jobs.spark.run import Run
from tiercel.spark_jobs.spark.session import SparkUnit
from tiercel.spark_jobs.topology.bolt_settings import spreads_by_run
from tiercel.spark_jobs.topology.graph import bolt_tasks, shape_of
from tiercel.workers.control.contract import NO_REBALANCE, Rebalance, State
from tiercel.workers.control.presence import ExecutorReport, Keeper
from tiercel.workers.driver.executors import Fleet
from tiercel.workers.driver.joining import Joining
from tiercel.workers.driver.run_watch import (
    Ended,
    RunContext,
    RunWatch,
    Width,
    healthy,
    pause_s,
    unfit_pause_s,
)
from tiercel.workers.errors import RunsFailedError
from tiercel.workers.lifecycle import patiently

log = logging.getLogger(__name__)

T = TypeVar("T")
_RESERVE_S = 1.0
# Time for the last steps of a run that ends; less if its processes are gone.
_GRACE_S = 5.0
_GRACE_OF_THE_GONE_S = 1.0
# Executors that come within this time are not missed. After that the log says so, again and again.
_ABSENT_S = 10.0
_ABSENT_AGAIN_S = 60.0
# Until they are cancelled, Spark retries unfit tasks hundreds of times per second.
_GRACES_S = {Ended.UNATTENDED: _GRACE_OF_THE_GONE_S, Ended.UNFIT: 0.0}
# Give up after this many runs in a row that failed at once: the next would fail too, and each run
# gives back all messages in flight.
_HOPELESS = 8


class Runs:
    """Keeps one run going. For one thread, except ``stop``."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._name = context.topology.name
        self._keeper = Keeper(context.lease, context.topology.code)
        # The order that the newest run obeys.
        self._order = NO_REBALANCE
        self._width = Width()
        # Number of times in a row that no executor could run bolts.
        self._unfit = 0
        # Set when the driver must end.
        self.stopped = threading.Event()
        # Shows the executors of the run to the thread that decides their number.
        self.fleet = Fleet()
        self._watch = RunWatch(context, self._keeper, self.stopped, self._is_ended)

    def stop(self) -> None:
        """End the run and the loop. Thread-safe, and safe in a signal handler."""
        self.stopped.set()

    def tell(self, executors: ExecutorReport) -> bool:
        """Report the executors beside the lease; False if another driver has it. Thread-safe."""
        return self._keeper.tell(executors)

    def close(self) -> None:
        """Give up the lease, so that a driver in reserve can take over at once. Idempotent."""
        self.stopped.set()
        self._keeper.close()

    def wait_for_turn(self) -> bool:
        """Wait in reserve until this driver holds the lease; False if it must end instead.

        It must end after ``stop``, or when the topology is killed.
        """
        said = False
        while not self._is_over():
            if self._answered(self._keeper.take):
                return not self.stopped.is_set()
            if not said and not self.stopped.is_set():
                log.info(
                    "another driver already runs %s; standing by",
                    self._name,
                    extra={"event": "in_reserve"},
                )
            said = True
            self._context.heartbeat.beat()
            self.stopped.wait(_RESERVE_S)
        return False

    def begin(self, slots: int) -> Run | None:
        """Begin a run, and release the messages of the previous one.

        Returns None if the lease is lost, and after ``stop``.
        """
        number = self._answered(self._keeper.draw)
        if number is None:
            return None
        # An order given after this call ends the run.
        order = self._newest_order()
        if order is None:
            return None
        with suppress(RedisUnavailableError):
            self._watch.keep_pauses()
        run = self._context.make(
            number, slots, self._context.topology.with_parallelism(order.parallelism)
        )
        try:
            released = self._answered(lambda: self._context.enter(run))
        except StaleAttemptError as error:
            log.warning("%s", error, extra={"event": "run_refused"})
            return None
        if released is None:
            return None
        if released:
            log.info(
                "released %s that were in flight",
                counted(released, "message"),
                extra={"event": "messages_released"},
            )
        return run

    def _newest_order(self) -> Rebalance | None:
        """Take the order that the next run obeys; None after ``stop``."""
        order = self._answered(lambda: self._context.control.rebalanced(self._order))
        if order is not None:
            self._order = order
        return order

    def go(self, hosts: SparkUnit) -> None:
        """Run one run after the other until ``stop`` or ``tiercel kill``.

        Raises RunsFailedError after several runs in a row that failed at once, SparkEndedError when
        Spark has ended.
        """
        failures = 0
        trouble = ""
        while not self._is_over():
            if not self._keeper.held and not self.wait_for_turn():
                return
            ready = self._ready(hosts, trouble)
            if ready is None:
                continue
            began = time.monotonic()
            ended, fault = self._one(hosts, ready)
            trouble = ""
            if ended is Ended.UNFIT:
                trouble = fault or ""
                continue
            self._unfit = 0
            if ended is Ended.STOPPED:
                return
            failures = 0 if healthy(ended, time.monotonic() - began) else failures + 1
            if ended is Ended.FAILED and failures >= _HOPELESS:
                raise RunsFailedError(
                    f"{failures} runs of {self._name} in a row failed, the last with: {fault}; "
                    "spout workers send nothing until a driver runs again"
                )
            if self._keeper.held:
                rest_s = pause_s(failures)
                log.log(
                    logging.INFO if ended is Ended.REBALANCED else logging.WARNING,
                    "a new run begins in %.1f s", rest_s,
                    extra={"event": "run_restarting"},
                )  # fmt: skip
                self.stopped.wait(rest_s)

    def _ready(self, hosts: SparkUnit, trouble: str) -> Readiness | None:
        """Wait until an executor can run bolts; None if the lease is lost, and after ``stop``.

        ``trouble`` is why executors could not run the previous run; empty if they could.
        """
        say_at = time.monotonic() + _ABSENT_S
        while not self._is_over() and self._keeper.held:
            self._context.heartbeat.beat()
            # Another order may come while no executor does.
            order = self._newest_order()
            if order is None:
                return None
            topology = self._context.topology.with_parallelism(order.parallelism)
            ready = hosts.ready(len(bolt_tasks(topology)))
            if ready.absent:
                say_at = self._say_absent(ready.trouble, say_at)
                continue
            if ready.slots and ready.trouble:
                log.error(
                    "%s; the other executors work", ready.trouble, extra={"event": "executor_unfit"}
                )
            elif trouble or not ready.slots:
                self._rest_unfit(ready.trouble or trouble)
            if ready.slots:
                return self._on_the_least(hosts, ready)
            trouble = ""
        return None

    def _say_absent(self, trouble: str, say_at: float) -> float:
        """Say at this time or later that Spark has no slot; return when to say it again."""
        now = time.monotonic()
        if now < say_at:
            return say_at
        log.error(
            "no executor can run bolts: %s; messages wait until one comes", trouble,
            extra={"event": "no_executor_fit"},
        )  # fmt: skip
        self._keeper.attend_none(trouble)
        return now + _ABSENT_AGAIN_S

    def _on_the_least(self, hosts: SparkUnit, ready: Readiness) -> Readiness:
        """Leave out the slots of executors that may leave: they get extra tasks only."""
        least = self._context.least
        if not least:
            return ready
        most = least * max((one.slots for one in hosts.executors()), default=1)
        slots = min(ready.slots, most)
        return replace(ready, slots=slots, unfit=min(ready.unfit, most - slots))

    def _rest_unfit(self, trouble: str) -> None:
        """Stop spout workers from sending, and wait before trying executors again."""
        self._unfit += 1
        rest_s = unfit_pause_s(self._unfit)
        log.error(
            "no executor can run bolts: %s; trying again in %.0f s, messages wait meanwhile",
            trouble, rest_s,
            extra={"event": "no_executor_fit"},
        )  # fmt: skip
        self._keeper.attend_none(trouble)
        end = time.monotonic() + rest_s
        while (left_s := end - time.monotonic()) > 0 and self._keeper.held:
            self._context.heartbeat.beat()
            if self.stopped.wait(min(_RESERVE_S, left_s)):
                return

    def _one(self, hosts: SparkUnit, ready: Readiness) -> tuple[Ended, str | None]:
        """Run one run to its end; return why it ended and its fault."""
        run = self.begin(ready.slots)
        if run is None:
            return (Ended.STOPPED if self.stopped.is_set() else Ended.LOST), None
        tasks = hosts.start(run)
        log.info(
            "run %s of %s: %s in %s", run.id, self._name,
            counted(sum(map(len, run.hosts)), "bolt task"), counted(len(run.hosts), "Spark task"),
            extra={"event": "run_started"},
        )  # fmt: skip
        self._say_what_was_ordered()
        if not spreads_by_run(run.topology):
            self._width = Width()  # executors that come back join the run
        self.fleet.begin(run)
        self._width.began(len(run.hosts), of=sum(map(len, run.hosts)), unfit=ready.unfit)
        joins = not self._width.lacks
        joining = Joining(self._context, hosts, run, tasks, ready, joins=joins)
        ended = Ended.STOPPED
        try:
            # The run owns the inboxes, so spout workers may send while Python workers start.
            self._keeper.attend(run.id, shape_of(run.topology), run.topology.parallelism)
            ended = self._watch.until_end(
                run, tasks, self._order, partial(self._may_widen, hosts, joining), joining.is_due
            )
        finally:
            self._keeper.attend_none()
            joining.close()
            self._finish(hosts, run, tasks, _GRACES_S.get(ended, _GRACE_S))
        if ended is Ended.FAILED:
            hosts.check_alive()
            log.error("the run ended: %s", tasks.fault, extra={"event": "run_failed"})
        return ended, tasks.unfit if ended is Ended.UNFIT else tasks.fault

    def _may_widen(self, hosts: SparkUnit, joining: Joining, now: float) -> bool:
        """Follow the executors; True if Spark has slots that only a new run can use."""
        joining.look(now)
        if self._context.least:
            self.fleet.look(joining)
        return joining.is_used_up or self._width.may_return(hosts, now)

    def _say_what_was_ordered(self) -> None:
        said = self._context.topology.parallelism
        for bolt, number in self._order.parallelism.items():
            if bolt in said:
                log.info(
                    "%s has %d tasks by order of tiercel rebalance, and %d by its code", bolt,
                    number, said[bolt],
                    extra={"event": "parallelism_ordered"},
                )  # fmt: skip

    def _finish(self, hosts: SparkUnit, run: Run, tasks: LongTasks, grace_s: float) -> None:
        """End the run's tasks, and release the messages that they leave behind.

        Uses the run's own number, so it changes nothing if a later run has begun.
        """
        with hosts.silenced():
            with suppress(RedisUnavailableError, StaleAttemptError):
                self._context.enter(replace(run, id=f"{run.id}-ended"))
            if not tasks.wait(grace_s):
                tasks.cancel()
                tasks.wait(max(grace_s, _GRACE_OF_THE_GONE_S))

    def _is_over(self) -> bool:
        """Return True if a signal or an operator ended the topology.

        An operator's order cannot be seen while Redis does not answer.
        """
        with suppress(RedisUnavailableError):
            return self._is_ended()
        return self.stopped.is_set()

    def _is_ended(self) -> bool:
        """As ``_is_over``, but raises RedisUnavailableError."""
        if not self.stopped.is_set() and self._context.control.state() is State.KILLED:
            log.info("%s was killed: ending", self._name, extra={"event": "killed"})
            self.stopped.set()
        return self.stopped.is_set()

    def _answered(self, call: Callable[[], T]) -> T | None:
        """Call until Redis answers; None after ``stop``.

        Heartbeats only while it does not: one before Spark starts would end Docker's start period.
        """

        def beating() -> T:
            try:
                return call()
            except RedisUnavailableError:
                self._context.heartbeat.beat()
                raise

        return patiently(self.stopped, beating)
