"""The loop of one spout task: emits its tuples, tracks their trees, and tells the spout
what became of each.

Everything that touches the spout, its trees and the emitter happens on one thread, the one that
calls ``run``. Other threads only hand things over: the outcome reader its outcomes, a spout's own
threads their deliveries (through ``wake``).

The test kit runs the same loop on simulated time, turn by turn: ``open``, ``turn``, ``close``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, NamedTuple

from tiercel.acker.ledger import Ledger
from tiercel.queues.spout import Spout, SpoutContext
from tiercel.spark_jobs.topology.bolt_settings import Shape
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.workers.spout.admission import Admission
from tiercel.workers.spout.collector import TaskCollector
from tiercel.workers.spout.filling import BATCH_TUPLES, Filling
from tiercel.workers.spout.orders import Orders
from tiercel.workers.spout.outbox import Attendance, Outbox
from tiercel.workers.spout.outcomes import OutcomeSource
from tiercel.workers.spout.pace import Pace
from tiercel.workers.spout.tally import Tally
from tiercel.workers.spout.telling import Telling
from tiercel.workers.spout.trees import Trees

log = logging.getLogger(__name__)

_CHECK_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Time for which a spout holds messages that cannot be emitted."""

    without_driver: timedelta = timedelta(minutes=1)
    # Far below a broker's consumer timeout, half an hour, and above most outages.
    without_redis: timedelta = timedelta(minutes=5)


@dataclass(frozen=True, kw_only=True)
class SpoutSettings:
    """Settings of a spout task."""

    message_timeout: timedelta | None
    admission: Admission
    # Time for the shutdown: take what finishes within it, give the rest back.
    grace: timedelta
    patience: Patience = field(default_factory=Patience)


@dataclass(frozen=True, kw_only=True)
class SpoutParts:
    """Parts that a spout task joins, each with a contract of its own."""

    telling: Telling
    # Without root ids, as with ``ackers=0``, a tuple counts as acked as soon as it is in an inbox.
    collector: TaskCollector
    ledger: Ledger
    outbox: Outbox
    outcomes: OutcomeSource
    orders: Orders
    tally: Tally
    pace: Pace = field(default_factory=Pace)
    # Seconds, never going back.
    clock: Callable[[], float] = time.monotonic


class LoopTurn(NamedTuple):
    """Result of one turn of the loop."""

    # There was something to hear, to expire or to emit.
    worked: bool
    # A batch has left.
    sent: bool


class SpoutTask:
    """One task of one spout."""

    def __init__(self, parts: SpoutParts, settings: SpoutSettings) -> None:
        self._spout: Spout = parts.telling.spout
        self._outcomes = parts.outcomes
        self._outbox = parts.outbox
        self._orders = parts.orders
        self._tally = parts.tally
        self._clock = parts.clock
        self._settings = settings
        self._admission = settings.admission
        self._pace = parts.pace
        self._tracked = parts.collector.tracks
        self._topology = parts.outbox.topology
        self._tasks: dict[str, Sequence[int]] = {}
        self._trees = Trees(
            parts.telling, parts.ledger, parts.tally, settings.admission, settings.message_timeout
        )
        self._filling = Filling(
            telling=parts.telling,
            collector=parts.collector,
            outbox=parts.outbox,
            trees=self._trees,
            admission=settings.admission,
            pace=parts.pace,
            tally=parts.tally,
            clock=parts.clock,
        )
        self._holding = Holding(settings.patience)
        self._check_at = float("-inf")
        self._bell = Bell()
        self._stop = threading.Event()

    @property
    def wake(self) -> Callable[[], None]:
        """Thread-safe: something happened, look again now."""
        return self._bell.ring

    @property
    def in_flight(self) -> int:
        """Trees in flight."""
        return len(self._trees)

    @property
    def next_timeout(self) -> float | None:
        """Time at which the next tree times out; None if none will."""
        return self._trees.next_timeout

    def stop(self) -> None:
        """Thread-safe and safe in a signal handler: begin to end."""
        self._stop.set()
        self._bell.ring()

    def run(self, config: Mapping[str, Any], context: SpoutContext) -> None:
        """Open the spout and work until ``stop``; raises what a person must act on."""
        if not self.open(config, context):
            return
        try:
            while not self._stop.is_set():
                if not self._may_go_on(self.turn()):
                    self._rest()
        finally:
            self.close()

    def open(self, config: Mapping[str, Any], context: SpoutContext) -> bool:
        """Open the spout; False if ``stop`` came first."""
        if self._tracked and not self._outcomes.open(self._stop, self._bell.ring):
            return False
        # One mapping for good: a spout that asks it when it emits finds the tasks of
        # the driver's run.
        self._tasks.update(context.tasks)
        self._spout.open(config, replace(context, tasks=self._tasks))
        try:
            self._spout.expect(0)  # until a driver is there
        except BaseException:
            self.close()
            raise
        return True

    def turn(self, *, emitting: bool = True) -> LoopTurn:
        """Do what there is to do now."""
        now = self._clock()
        sent = False
        worked = self._take_outcomes(now)
        attendance = self._outbox.look(now)
        self._follow(self._outbox.topology)
        # A tuple that times out while no driver runs is not to blame.
        worked |= self._trees.expire(now, blame=attendance is Attendance.DRIVER)
        if now >= self._check_at:
            self._check_at = now + _CHECK_SECONDS
            self._check(now)
        if emitting:
            self._tell_what_to_expect(now, attendance)
            # Without a driver every tuple could only time out, and each timeout counts against its
            # message: an hour without a driver would end in the dead-letter queue.
            may_fill = attendance is Attendance.DRIVER and not self._outbox.holds
            if may_fill and self._orders.active and self._pace.may_begin(now):
                worked |= self._filling.fill(now)
        if self._outbox.due(now):
            sent = self._filling.send(now)
        self._tally.flush()
        if worked or sent:
            self._pace.worked()
        return LoopTurn(worked, sent)

    def obey(self) -> None:
        """Ask for orders and obey them, as a turn does once per second."""
        in_flight = len(self._trees) + len(self._filling)
        oldest_s = self._trees.oldest_s(self._clock())
        self._orders.obey(self._spout, in_flight, self.stop, oldest_s)

    def close(self) -> None:
        """End what finishes within the grace time, give the rest back, close the spout."""
        deadline = self._clock() + self._settings.grace.total_seconds()
        self._orders.end(self._spout)
        while (self._trees or self._outbox.holds) and self._clock() < deadline:
            goes_on = self._may_go_on(self.turn(emitting=False))
            if not goes_on and (self._trees or self._outbox.holds):
                self._rest()
        self._filling.give_back_unsent()
        self._trees.give_back_all("shutting down")
        self._spout.close(self._settings.grace)
        self._outcomes.close()
        self._tally.flush(now=True)
        self._orders.leave()

    def _may_go_on(self, turn: LoopTurn) -> bool:
        """Return True if there may be more to do already, without a wake-up."""
        # The spout was asked after the outcomes were taken: only a sent batch makes room for more.
        return turn.sent and self._pace.may_begin(self._clock())

    def _rest(self) -> None:
        """Wait a moment for a wake-up."""
        self._bell.wait(self._pace.rest_s(self._clock()))

    def _follow(self, topology: Topology) -> None:
        """Emit to the tasks that bolts have in the driver's run."""
        if topology is self._topology:
            return
        self._topology = topology
        said = ", ".join(f"{bolt}: {number}" for bolt, number in topology.parallelism.items())
        log.info(
            "the driver runs these numbers of tasks: %s",
            said,
            extra={"event": "parallelism_changed"},
        )
        self._tasks.update(
            {each: topology.task_ids(each) for each in (*topology.spouts, *topology.bolts)}
        )
        self._filling.follow(topology)
        self._admission.follow(Shape.of(topology))

    def _check(self, now: float) -> None:
        self._spout.check()
        self._trees.look(now)
        self.obey()

    def _tell_what_to_expect(self, now: float, attendance: Attendance) -> None:
        # Untracked tuples are bounded by the inboxes, and leave in full batches.
        bound = self._admission.bound + len(self._trees.waiting) if self._tracked else BATCH_TUPLES
        expected = self._holding.look(
            now, bound=bound, active=self._orders.active, attendance=attendance
        )
        if expected is not None:
            self._spout.expect(expected)

    def _take_outcomes(self, now: float) -> bool:
        taken = self._outcomes.take()
        for outcomes in taken:
            late = self._trees.take_outcomes(outcomes, now)
            if outcomes.ledger_lost:
                self._outbox.register_again()
                self._trees.give_back_all("Redis lost the ledger")
            # The outcomes of the worker that has this task now are late here.
            if late and not self._orders.dismissed:
                self._tally.add("late_outcomes", late)
        return bool(taken)


class Bell:
    """Rung by any thread, waited for by one.

    A ring that comes while it does not wait ends its next wait.

    A bare lock that is released to ring. A ``threading.Event`` makes and takes locks in Python for
    each wait; and a ``queue.SimpleQueue``, of Python 3.11 at least, waits for ever if its timeout
    ends while it takes its lock.
    """

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()

    def ring(self) -> None:
        """Thread-safe, and safe in a signal handler at any point."""
        try:
            self._silent.release()
        except RuntimeError:
            return  # it was rung already

    def wait(self, timeout_s: float) -> None:
        """Return when it is rung, or after this time."""
        self._silent.acquire(timeout=timeout_s)


class Holding:
    """Decides what ``Spout.expect`` is told. One thread; times are seconds on one monotonic clock.

    The spout was told 0 when it was opened: it takes nothing before a driver is there, however long
    Spark takes to start, so that nothing has to be given back.
    """

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._told = 0
        self._idle_since: float | None = float("-inf")

    def look(self, now: float, *, bound: int, active: bool, attendance: Attendance) -> int | None:
        """Return what the spout should be told now; None if it knows.

        ``bound`` on the tuples in flight.
        """
        wanted = bound if active and self._is_worth_holding(attendance, now) else 0
        told = self._told
        # Each change may cost a round trip to the broker, so that small ones are left out.
        if (wanted == 0) == (told == 0) and told / 2 <= wanted <= told:
            return None
        self._told = wanted
        return wanted

    def _is_worth_holding(self, attendance: Attendance, now: float) -> bool:
        if attendance is Attendance.DRIVER:
            self._idle_since = None
            return True
        if self._idle_since is None:
            self._idle_since = now
        away = attendance is Attendance.REDIS_AWAY
        patience = self._patience.without_redis if away else self._patience.without_driver
        return now - self._idle_since < patience.total_seconds()
