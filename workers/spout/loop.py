"""The loop of one spout task: it sends the spout's tuples, tracks their trees, and tells the spout
each outcome. Also its pace, its orders, and the number of messages that the spout may hold.

Only the thread that calls ``run`` touches the spout, its trees and the collector. The outcome
reader's thread hands over outcomes, and a spout's own threads call ``wake``.

The test kit runs the same loop on simulated time, turn by turn: ``open``, ``turn``, ``close``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, NamedTuple

from tiercel.acker.errors import RedisUnavailableError
from tiercel.acker.inbox.chunk import PARCEL_BYTES
from tiercel.acker.ledger import Ledger
from tiercel.acker.metrics.contract import Tally
from tiercel.queues.spout import Spout, SpoutContext, overrides_last
from tiercel.spark_jobs.running.step import Spacing
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.workers.control.contract import Control, State
from tiercel.workers.control.presence import Presence
from tiercel.workers.spout.admission import Admission, Shape
from tiercel.workers.spout.collector import Emission, TaskCollector
from tiercel.workers.spout.outbox import Attendance, BatchFate, Outbox
from tiercel.workers.spout.outcomes import OutcomeSource
from tiercel.workers.spout.trees import OutcomeTeller, Trees

log = logging.getLogger(__name__)

_CHECK_SECONDS = 1.0
# A batch is sent when it is full or old enough, or when the spout has no more tuples.
_BATCH_TUPLES = 2_000
_BATCH_SECONDS = 0.02
# The spout is not asked for more tuples beyond this size, so that encoding a batch takes little
# memory.
_BATCH_BYTES = 4 * PARCEL_BYTES
# Shortest time from a refused batch to the next, which has its tuples.
_AFTER_REFUSED_S = 0.01
# Rest after a turn that had nothing to do, for spouts that do not call ``wake``.
_SHORTEST_REST_S = 0.02
_LONGEST_REST_S = 0.1


class Bell:
    """A bell that any thread rings and one thread waits for. A ring between waits ends the next.

    The bell is a bare lock, released to ring. A ``threading.Event`` creates and acquires locks in
    Python code for each wait, and a ``queue.SimpleQueue``, at least in Python 3.11, waits forever
    if its timeout ends while it acquires its lock.
    """

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()

    def ring(self) -> None:
        """Ring. Thread-safe, and safe in a signal handler at any point."""
        try:
            self._silent.release()
        except RuntimeError:
            return  # already rung

    def wait(self, timeout_s: float) -> None:
        """Return when the bell is rung, or after this time."""
        self._silent.acquire(timeout=timeout_s)


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Limits on how long a spout holds messages that cannot be emitted."""

    without_driver: timedelta = timedelta(minutes=1)
    # Far below RabbitMQ's consumer timeout of half an hour, and longer than most outages.
    without_redis: timedelta = timedelta(minutes=5)


class Holding:
    """Decides the number for ``Spout.expect``. One thread; times are monotonic seconds.

    The number is 0 when the spout is opened: the spout takes no messages until a driver runs,
    however long Spark takes to start, so that it has none to give back.
    """

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._told = 0
        self._idle_since: float | None = float("-inf")

    def look(self, now: float, *, bound: int, active: bool, attendance: Attendance) -> int | None:
        """Return the number to tell the spout now, or None to leave it unchanged.

        ``bound`` is the bound on the tuples in flight.
        """
        wanted = bound if active and self._is_worth_holding(attendance, now) else 0
        told = self._told
        # Each change may cost a round trip to the broker, so small changes are skipped.
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


class Pace:
    """Pace of one task: when its next batch may begin, and how long the task rests.

    Times are monotonic seconds.
    """

    def __init__(self, after_refused_s: float = _AFTER_REFUSED_S) -> None:
        self._after_refused_s = after_refused_s
        self._spacing = Spacing()
        # Time from which the next batch may begin.
        self._begin_at = float("-inf")
        self._rest_s = _SHORTEST_REST_S

    def may_begin(self, now: float) -> bool:
        """Return True if a batch may begin: at a low rate at once, else when the batches before it
        are paid for.
        """
        return now >= self._begin_at

    def sent(self, took_s: float, now: float, *, refused: bool = False) -> None:
        """Note that sending a batch took this time, until now."""
        self._rest_s = _SHORTEST_REST_S
        self._spacing.took(took_s, now)
        self._begin_at = self._spacing.paid_at
        if refused:
            self._begin_at = max(self._begin_at, now + self._after_refused_s)

    def worked(self) -> None:
        """Note that there was something to do."""
        self._rest_s = _SHORTEST_REST_S

    def rest_s(self, now: float) -> float:
        """Return how long to wait for a wake-up: until the next batch may begin, or, after that,
        longer with each idle turn.
        """
        if now < self._begin_at:
            return self._begin_at - now
        rest_s, self._rest_s = self._rest_s, min(2 * self._rest_s, _LONGEST_REST_S)
        return rest_s


class Orders:
    """The latest orders of the task. One thread.

    Orders stay valid while Redis is down, and when Redis comes back empty.
    """

    def __init__(
        self,
        control: Control,
        on_no_order: Callable[[], None] = lambda: None,
        attend: Callable[[Presence], bool] = lambda _presence: True,
        taker: Callable[[], str] = lambda: "another worker",
    ) -> None:
        """``on_no_order`` is called when Redis has no order: the topology is new, or Redis was
        emptied.

        ``attend`` is called once per second: it reports that the task is alive, and returns False
        if another worker has the task, which ``taker`` then names. All may raise
        RedisUnavailableError.
        """
        self._control = control
        self._on_no_order = on_no_order
        self._attend = attend
        self._taker = taker
        # True if another worker has the task now.
        self.dismissed = False
        # True if the spout may emit; False until the state is known.
        self.active = False
        # The bolts that an operator has paused.
        self.paused: AbstractSet[str] = frozenset()
        self._state: State | None = None
        self._over = False

    def obey(
        self,
        spout: Spout,
        pending: int,
        stop: Callable[[], None],
        oldest_s: float = 0.0,
        silent: str = "",
    ) -> None:
        """Report the task's presence, ask for orders and obey them; called about once per second.

        ``silent`` is the name of a spout that can send nothing. Raises RedisRefusedError.
        """
        try:
            presence = Presence(
                active=self.active,
                pending=pending,
                oldest_s=oldest_s,
                in_back_off=spout.in_back_off(),
            )
            if not self._attend(presence) and not self.dismissed:
                log.warning(
                    "%s has this task now: leaving it", self._taker(), extra={"event": "task_lost"}
                )
                self.dismissed = True
                stop()
            self._ask()
            if silent:
                self._control.note_silent(silent)
        except RedisUnavailableError as error:
            # Keeping the task is safe: no other worker can take it now either.
            log.debug(
                "could not read orders, keeping the last state: %s",
                error,
                extra={"event": "control_away"},
            )
        if not self._over and self._state is not None:
            self._carry_out(self._state, spout, stop)

    def _carry_out(self, state: State, spout: Spout, stop: Callable[[], None]) -> None:
        if state is State.KILLED:
            log.info("killed: ending", extra={"event": "killed"})
            stop()
        elif self.active != (state is State.ACTIVE):
            log.info("%s", state.value, extra={"event": f"spout_{state.value}"})
            self._switch(spout)

    def end(self, spout: Spout) -> None:
        """Start the shutdown: deactivate the spout if it is active.

        From now on, ``obey`` only reports and obeys no orders.
        """
        self._over = True
        if self.active:
            self._switch(spout)

    def leave(self) -> None:
        """Close the connection: the task has ended."""
        self._control.close()

    def _ask(self) -> None:
        # A kill applies only to workers that read it: it is not written to an emptied Redis.
        known = State.DEACTIVATED if self._state is State.DEACTIVATED else State.ACTIVE
        found = self._control.ask(known)
        self._state = found or known
        if found is None:
            self._on_no_order()
        self.paused = self._control.paused()

    def _switch(self, spout: Spout) -> None:
        self.active = not self.active
        if self.active:
            spout.activate()
        else:
            spout.deactivate()


@dataclass(frozen=True, kw_only=True)
class SpoutSettings:
    """Settings of a spout task."""

    message_timeout: timedelta | None
    admission: Admission
    # Grace time of the shutdown: trees that complete within it are acked, all others are released.
    grace: timedelta
    patience: Patience = field(default_factory=Patience)


@dataclass(frozen=True, kw_only=True)
class SpoutParts:
    """The parts of a spout task, each with its own contract."""

    teller: OutcomeTeller
    # Without root ids (``ackers=0``), a tuple counts as acked as soon as it is in an inbox.
    collector: TaskCollector
    ledger: Ledger
    outbox: Outbox
    outcomes: OutcomeSource
    orders: Orders
    tally: Tally
    pace: Pace = field(default_factory=Pace)
    # Monotonic seconds.
    clock: Callable[[], float] = time.monotonic


class LoopTurn(NamedTuple):
    """Result of one turn of the loop."""

    # True if the turn handled an outcome, a timeout, or a tuple to emit.
    worked: bool
    # True if the turn sent a batch.
    sent: bool


class SpoutTask:
    """One task of one spout.

    A spout may also emit from ``ack``, ``fail`` and ``release``, at any time: these tuples go into
    the next batch.
    """

    def __init__(self, parts: SpoutParts, settings: SpoutSettings) -> None:
        spout = parts.teller.spout
        self._spout: Spout = spout
        self._ask: Callable[[TaskCollector, int], None] = (
            spout.next_tuples
            if overrides_last(spout, "next_tuples", "next_tuple")
            else lambda collector, _limit: spout.next_tuple(collector)
        )
        self._teller = parts.teller
        self._outcomes = parts.outcomes
        self._collector = parts.collector
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
            parts.teller, parts.ledger, parts.tally, settings.admission, settings.message_timeout
        )
        self._pending = self._trees.pending
        self._holding = Holding(settings.patience)
        self._check_at = float("-inf")
        self._bell = Bell()
        self._stop = threading.Event()

    @property
    def wake(self) -> Callable[[], None]:
        """Function that ends the rest between two turns. Thread-safe."""
        return self._bell.ring

    @property
    def in_flight(self) -> int:
        """Number of trees in flight."""
        return len(self._pending)

    @property
    def next_timeout(self) -> float | None:
        """Time at which the next tree times out; None if no tree will time out."""
        return self._pending.next_timeout

    def stop(self) -> None:
        """Start the shutdown. Thread-safe, and safe in a signal handler."""
        self._stop.set()
        self._bell.ring()

    def run(self, config: Mapping[str, Any], context: SpoutContext) -> None:
        """Open the spout and work until ``stop``. Raises errors that need an operator."""
        if not self.open(config, context):
            return
        try:
            while not self._stop.is_set():
                if not self._may_go_on(self.turn()):
                    self._rest()
        finally:
            self.close()

    def open(self, config: Mapping[str, Any], context: SpoutContext) -> bool:
        """Open the spout; return False if ``stop`` was called first."""
        if self._tracked and not self._outcomes.open(self._stop, self._bell.ring):
            return False
        # The spout keeps this mapping; ``_follow`` updates it in place with each run's tasks.
        self._tasks.update(context.tasks)
        self._spout.open(config, replace(context, tasks=self._tasks))
        try:
            self._spout.expect(0)  # until a driver runs
        except BaseException:
            self.close()
            raise
        return True

    def turn(self, *, emitting: bool = True) -> LoopTurn:
        """Tell the spout its outcomes, expire trees, then fill and send a batch."""
        now = self._clock()
        worked = self._take_outcomes(now)
        if now >= self._outbox.look_at:
            self._outbox.look(now)
        attendance = self._outbox.attendance
        if self._outbox.topology is not self._topology:
            self._follow(self._outbox.topology)
        if (self._pending.working or self._pending.waiting) and not self._trees.held:
            worked |= self._trees.expire(now, attendance)
        if now >= self._check_at:
            self._check_at = now + _CHECK_SECONDS
            self._check(now)
        batch = self._outbox.held
        if emitting:
            self._tell_what_to_expect(now, attendance)
            # Without a driver, every tuple would time out, and each timeout counts as a failure:
            # after an hour, the messages would be in the dead-letter queue.
            may_fill = attendance is Attendance.DRIVER and batch is None
            if may_fill and self._orders.active and self._pace.may_begin(now):
                batch = self._fill(now)
                worked |= batch is not None
        if worked:
            self._pace.worked()
        sent = batch is not None and self._send(batch, now)
        if now >= self._tally.flush_at:
            self._tally.flush()
        return LoopTurn(worked, sent)

    def obey(self) -> None:
        """Ask for orders and obey them. ``turn`` does this once per second."""
        held = self._outbox.held
        outgoing = 0 if held is None else len(held.tuples)
        in_flight = len(self._pending) + outgoing + len(self._collector.tuples)
        oldest_s = self._pending.oldest_s(self._clock())
        # Windows must not close meanwhile: the messages that wait in the queue would be late.
        idle = self._pending.waiting or not self._pending.working
        silent = not self._orders.active or (idle and self._spout.is_full())
        name = self._collector.component if silent else ""
        self._orders.obey(self._spout, in_flight, self.stop, oldest_s, name)

    def close(self) -> None:
        """Ack trees that complete in the grace time, release all others, and close the spout."""
        deadline = self._clock() + self._settings.grace.total_seconds()
        self._orders.end(self._spout)
        while (self._pending or self._outbox.held) and self._clock() < deadline:
            goes_on = self._may_go_on(self.turn(emitting=False))
            if not goes_on and (self._pending or self._outbox.held):
                self._rest()
        self._give_back_unsent()
        self._trees.give_back_all("shutting down")
        self._spout.close(self._settings.grace)
        self._outcomes.close()
        self._tally.flush(now=True)
        self._orders.leave()

    # -- a turn's parts ----------------------------------------------------------------------------

    def _take_outcomes(self, now: float) -> bool:
        taken = self._outcomes.take()
        for outcomes in taken:
            held = self._outbox.held
            late = self._trees.take_outcomes(outcomes, now, () if held is None else held.roots)
            if outcomes.ledger_lost:
                self._outbox.lost()
                self._trees.give_back_all("Redis lost the ledger")
            # Once another worker has this task, its outcomes arrive here too; they are not late.
            if late and not self._orders.dismissed:
                self._tally.add("late_outcomes", late)
        return bool(taken)

    def _follow(self, topology: Topology) -> None:
        """Emit to the tasks of the driver's run from now on.

        Tuples that the spout has emitted since the last batch are released.
        """
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
        for _, msg_id in self._collector.follow(topology).tuples:
            if msg_id is not None:
                self._teller.release(msg_id)
        self._admission.follow(Shape.of(topology))

    def _check(self, now: float) -> None:
        self._spout.check()
        if not self._trees.paused:
            self._admission.look(now, len(self._pending.working), self._outbox.crowd)
        self.obey()
        paused = not self._collector.leads_to.isdisjoint(self._orders.paused)
        self._trees.hold(now, paused=paused, starting=self._outbox.starting)

    def _tell_what_to_expect(self, now: float, attendance: Attendance) -> None:
        # Untracked tuples are bounded only by the inboxes, and are sent in full batches.
        admitted = self._admission.bound + len(self._pending.waiting)
        bound = admitted if self._tracked else _BATCH_TUPLES
        expected = self._holding.look(
            now, bound=bound, active=self._orders.active, attendance=attendance
        )
        if expected is not None:
            self._spout.expect(expected)

    def _fill(self, now: float) -> Emission | None:
        """Ask the spout for the next batch: step 2 of docs/one-message.md. Return None if the spout
        has no tuples.

        The bound counts tracked tuples, except tuples that wait for a rate limit: the limited bolt
        bounds those itself. Untracked tuples are bounded only by the inboxes.
        """
        collector = self._collector
        room = self._admission.bound - len(self._pending.working)
        self._ask_for_tuples(room, now)
        if collector.tracked >= room:
            self._admission.reached(now)
        if not collector.tuples:
            return None
        batch = collector.take()
        if log.isEnabledFor(logging.DEBUG):
            _log("2. message %s is root %d", batch)
        return batch

    def _ask_for_tuples(self, room: int, now: float) -> None:
        """Ask the spout for tuples until it has no more, or the batch is full, old enough, or has
        ``room`` tracked tuples.
        """
        collector = self._collector
        count = len(collector.tuples)
        while (
            count < _BATCH_TUPLES
            and collector.size < _BATCH_BYTES
            and collector.tracked < room
            and self._clock() - now < _BATCH_SECONDS
        ):
            limit = _BATCH_TUPLES - count
            if self._tracked:
                limit = min(limit, room - collector.tracked)
            self._ask(collector, limit)
            if len(collector.tuples) == count:
                return
            count = len(collector.tuples)

    def _send(self, batch: Emission, began: float) -> bool:
        """Send the batch: step 3 of docs/one-message.md. Return False if Redis cannot take it.

        The tuples of a refused batch are released.
        """
        if batch is not self._outbox.held:
            self._outbox.put(batch)
        fate = self._outbox.send(began)
        if fate is BatchFate.LATER:
            return False
        if fate is BatchFate.DONE and log.isEnabledFor(logging.DEBUG):
            _log("3. message %s, root %d, is in the ledger and on its way", batch)
        wanted = [(root, msg_id) for root, msg_id in batch.tuples if msg_id is not None]
        tracked = [(root, msg_id) for root, msg_id in wanted if root is not None]
        # The timeout starts here, not while tuples wait for Redis.
        now = self._clock()
        self._pace.sent(now - began, now, refused=fate is BatchFate.REFUSED)
        if fate is BatchFate.REFUSED:
            self._trees.not_sent()
            for _, msg_id in wanted:
                self._teller.release(msg_id)
            return True
        self._trees.sent(tracked, now)
        counts = {"emitted": len(batch.tuples), "transferred": batch.transferred}
        if untracked := len(wanted) - len(tracked):
            counts["acked"] = untracked
            self._trees.tell_acked([msg_id for root, msg_id in wanted if root is None])
        self._tally.add_all(counts)
        return True

    def _give_back_unsent(self) -> None:
        """Release the tuples that are not in flight yet; called at shutdown.

        Tuples that the spout emits in ``release`` are dropped without another ``release``.
        """
        waiting = self._collector.take().tuples
        batch = self._outbox.held
        outgoing = [] if batch is None else batch.tuples
        held = [(root, msg_id) for root, msg_id in outgoing if msg_id is not None]
        tracked = [(root, msg_id) for root, msg_id in held if root is not None]
        decided = self._trees.split_early(tracked, self._clock())
        for root, msg_id in [*held, *waiting]:
            if msg_id is not None and (root is None or root not in decided):
                self._teller.release(msg_id)

    def _may_go_on(self, turn: LoopTurn) -> bool:
        """Return True if the next turn may have work without a wake-up."""
        # A turn asks the spout after it takes outcomes, so only a sent batch makes room.
        return turn.sent and self._pace.may_begin(self._clock())

    def _rest(self) -> None:
        """Wait for a wake-up, or until the pace's rest is over."""
        self._bell.wait(self._pace.rest_s(self._clock()))


def _log(step: str, batch: Emission) -> None:
    """Log a step of docs/one-message.md for each tracked tuple of a batch."""
    for root, msg_id in batch.tuples:
        if root is not None and msg_id is not None:
            log.debug(step, msg_id, root, extra={"event": "message_step"})
