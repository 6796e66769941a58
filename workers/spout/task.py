"""Runs one spout task: emits its tuples, tracks their trees, and tells the spout
what became of each.

Everything that touches the spout, its trees and the emitter happens on one thread, the one that
calls ``run``. Other threads only hand things over: the outcome reader its outcomes, a spout's own
threads their deliveries (through ``wake``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from tiercel.acker.ids import RootIds
from tiercel.acker.ledger import Ledger
from tiercel.queues.spout import Spout, SpoutContext
from tiercel.spark_jobs.emitting.emission import SpoutEmitter
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.workers.patience import patiently
from tiercel.workers.spout.admission import Admission
from tiercel.workers.spout.bell import Bell
from tiercel.workers.spout.collector import TaskCollector
from tiercel.workers.spout.filling import BATCH_TUPLES, Filling
from tiercel.workers.spout.holding import Holding, Patience
from tiercel.workers.spout.orders import Orders
from tiercel.workers.spout.outbox import Attendance, Outbox
from tiercel.workers.spout.outcomes import OutcomeReader
from tiercel.workers.spout.pace import Pace
from tiercel.workers.spout.tally import Tally
from tiercel.workers.spout.trees import Trees

log = logging.getLogger(__name__)

_CHECK_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class SpoutSettings:
    """Settings of a spout task."""

    message_timeout: timedelta | None
    admission: Admission
    # False with ``ackers=0``: a tuple counts as acked as soon as it is in an inbox.
    tracked: bool
    # Time for the shutdown: take what finishes within it, give the rest back.
    grace: timedelta
    patience: Patience = field(default_factory=Patience)


class SpoutTask:
    """One task of one spout."""

    def __init__(  # noqa: PLR0913 - the things it joins, each with a contract of its own
        self,
        *,
        spout: Spout,
        emitter: SpoutEmitter,
        ledger: Ledger,
        outbox: Outbox,
        tally: Tally,
        orders: Orders,
        settings: SpoutSettings,
    ) -> None:
        self._spout = spout
        self._ledger = ledger
        self._outbox = outbox
        self._topology = outbox.topology
        self._tasks: dict[str, Sequence[int]] = {}
        self._tally = tally
        self._orders = orders
        self._settings = settings
        self._admission = settings.admission
        self._trees = Trees(spout, ledger, tally, settings.admission, settings.message_timeout)
        root_ids = (
            RootIds(settings.message_timeout or timedelta(seconds=30)) if settings.tracked else None
        )
        self._pace = Pace()
        self._filling = Filling(
            spout=spout,
            collector=TaskCollector(emitter, tally, root_ids),
            outbox=outbox,
            trees=self._trees,
            admission=settings.admission,
            pace=self._pace,
            tally=tally,
        )
        self._holding = Holding(settings.patience)
        self._check_at = 0.0
        self._bell = Bell()
        self._stop = threading.Event()
        self._outcomes: OutcomeReader | None = None

    @property
    def wake(self) -> Callable[[], None]:
        """Thread-safe: something happened, look again now."""
        return self._bell.ring

    def stop(self) -> None:
        """Thread-safe and safe in a signal handler: begin to end."""
        self._stop.set()
        self._bell.ring()

    def run(self, config: Mapping[str, Any], context: SpoutContext) -> None:
        """Open the spout and work until ``stop``; raises what a person must act on."""
        if self._settings.tracked:
            self._outcomes = patiently(
                self._stop, OutcomeReader, self._ledger, context.task_id, self._bell.ring
            )
            if self._outcomes is None:
                return
            self._outcomes.start()
        # One mapping for good: a spout that asks it when it emits finds the tasks of
        # the driver's run.
        self._tasks.update(context.tasks)
        self._spout.open(config, replace(context, tasks=self._tasks))
        try:
            self._spout.expect(0)  # until a driver is there
            while not self._stop.is_set():
                if not self._turn(emitting=True):
                    self._rest()
        finally:
            self._end()

    def _turn(self, *, emitting: bool) -> bool:
        """Do what there is to do; returns whether there may be more already, of which
        nothing would tell.
        """
        now = time.monotonic()
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
            if self._pace.may_begin(now) and self._orders.active and self._outbox.may_fill(now):
                worked |= self._filling.fill(now)
        if self._outbox.due(now):
            sent = self._filling.send(now)
        self._tally.flush()
        if worked or sent:
            self._pace.worked()
        # The spout was asked after the outcomes were taken: only what was sent makes room for more.
        return sent and self._pace.may_begin(time.monotonic())

    def _rest(self) -> None:
        """Wait a moment for a wake-up."""
        self._bell.wait(self._pace.rest_s(time.monotonic()))

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

    def _check(self, now: float) -> None:
        self._spout.check()
        self._trees.look(now)
        in_flight = len(self._trees) + len(self._filling)
        self._orders.obey(self._spout, in_flight, self.stop, self._trees.oldest_s(now))

    def _tell_what_to_expect(self, now: float, attendance: Attendance) -> None:
        # Untracked tuples are bounded by the inboxes, and leave in full batches.
        bound = self._admission.bound if self._settings.tracked else BATCH_TUPLES
        expected = self._holding.look(
            now, bound=bound, active=self._orders.active, attendance=attendance
        )
        if expected is not None:
            self._spout.expect(expected)

    def _take_outcomes(self, now: float) -> bool:
        if self._outcomes is None:
            return False
        if self._outcomes.error is not None:
            raise self._outcomes.error
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

    def _end(self) -> None:
        deadline = time.monotonic() + self._settings.grace.total_seconds()
        self._orders.end(self._spout)
        while (self._trees or self._outbox.holds) and time.monotonic() < deadline:
            if not self._turn(emitting=False) and (self._trees or self._outbox.holds):
                self._rest()
        self._filling.give_back_unsent()
        self._trees.give_back_all("shutting down")
        self._spout.close(self._settings.grace)
        if self._outcomes is not None:
            self._outcomes.close()
        self._tally.flush(now=True)
        self._orders.leave()
