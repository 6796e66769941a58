"""Bolts with calls under way: an ``AsyncBolt``, or a ``BasicBolt`` with threads or a rate limit.

The kind takes tuples, lets the flight begin their calls, and a step is made of calls that have
ended. The step plays them back, so groupings, ids, counts, the commit and what follows a death are
those of every bolt. The calls outlive steps, and so does the copy of the bolt.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from tiercel.acker.errors import RedisUnavailableError
from tiercel.acker.inbox.chunk import Chunk, Lineage
from tiercel.acker.inbox.contract import Claims
from tiercel.spark_jobs.bolts.bolt import AsyncBolt, BasicBolt
from tiercel.spark_jobs.bolts.collecting import BasicCollector
from tiercel.spark_jobs.bolts.tuples import OPEN, Tuple, tuples_of
from tiercel.spark_jobs.emitting.fold import roots_of
from tiercel.spark_jobs.emitting.outputs import Outputs
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.kinds.calls.call import Call, Caller, calls_of, rows_of
from tiercel.spark_jobs.kinds.calls.coroutines import Coroutines
from tiercel.spark_jobs.kinds.calls.flight import Flight
from tiercel.spark_jobs.kinds.lines import line_of
from tiercel.spark_jobs.kinds.plain import BASIC, execute_basic
from tiercel.spark_jobs.kinds.task_order import OrderGate
from tiercel.spark_jobs.reasons import RAISED, reason_of
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.attempt import Attempt
from tiercel.spark_jobs.running.backlog import OpenEntry, waiting_roots
from tiercel.spark_jobs.running.copy import WorkingCopy
from tiercel.spark_jobs.running.kind import StepInput
from tiercel.spark_jobs.running.step import Slices, Step
from tiercel.spark_jobs.running.suspicion import place
from tiercel.spark_jobs.suspects.watchdog import WatchedStep
from tiercel.spark_jobs.topology.bolt_settings import concurrency_of, threads_of
from tiercel.spark_jobs.topology.graph import Topology

log = logging.getLogger(__name__)

# Between two looks into the inbox while calls are under way.
_LOOK_S = 0.01


class Calls:
    """``BoltKind`` of calls under way. One thread only, but ``wake`` and ``hanging``."""

    # Tuples that were claimed are under way, or wait for a permit.
    gives_back = False

    def __init__(
        self, attempt: Attempt, snapshot: bytes | None, gate: OrderGate | None = None
    ) -> None:
        """``gate`` is that of a bolt with an order. There is no ``snapshot``: it would show calls
        that are not done.
        """
        del snapshot
        around = attempt.around
        topology = around.topology
        self._attempt = attempt
        self._gate = gate
        # The calls that the next step plays back, and whether calls that it lacks may be made at
        # once. The first step may be one that an earlier attempt had sealed: it lacks all.
        self._next: tuple[Sequence[Call], bool] = ((), self._go_together())
        self._places = concurrency_of(topology.bolts[topology.component_of(attempt.task)]) or 1
        self._outputs = Outputs(topology, attempt.task)
        self._caller = _caller_of(around, attempt.task, self._outputs)
        self.execution = replace(BASIC, execute=self._execute)
        self.copy = CallingCopy(topology, attempt.task, around.config, self._caller, self._places)
        self.slices = Slices(around.clock, arrow=False)
        self.flight = Flight(self._caller, self._places, gate)
        self.line = line_of(around, attempt.task)
        self._renewals = Renewals(around, attempt.task)
        # Entries whose tuples the flight does not have yet.
        self._new: list[OpenEntry] = []
        self._tick: Call | None = None
        self._look_at = 0.0
        self._hanging: HangingCall | None = None

    @property
    def next_at(self) -> float | None:
        moments = [one.next_at for one in (self.line, self.flight, self._renewals)]
        return min((moment for moment in moments if moment is not None), default=None)

    def wake(self) -> None:
        self.flight.wake()

    def hanging(self) -> WatchedStep | None:
        call = self._caller.hanging()
        if call is None:
            return None
        if self._hanging is None or self._hanging.call is not call:
            component = self.copy.component
            self._hanging = HangingCall(call, component, self._outputs, self._attempt.doing)
        return self._hanging

    def takes(self, wait_s: float) -> StepInput | None:
        """Take what is there, begin what may begin, and return the calls that have ended; wait
        where there is nothing to do.
        """
        self._receive(wait_s)
        self._renewals.look(at_work=not self.flight.idle)
        if self._makes_calls():
            return self._to_be_called(wait_s)
        self._feed()
        self._start()
        self._renewals.look(at_work=not self.flight.idle)
        self._pause(wait_s)
        if self.flight.has_ended and wait_s:
            # Calls that end meanwhile share the commit.
            self._attempt.stop.wait(self._until(self.slices.rest_s()))
        self._start()
        return self._over()

    def close(self) -> None:
        """Cancel the calls, and clean the bolt up if none of them goes on."""
        if self._caller.cancel():
            self.copy.end()
        self.line.close()
        self._caller.close()

    def call_again(self, places: Sequence[tuple[OpenEntry, int]]) -> None:
        """Let tuples wait once more that failed and stay in the backlog."""
        for entry, row in places:
            # Else the flight has not had it yet: its step made the call itself.
            if not any(one is entry for one in self._new):
                [call] = calls_of(entry.chunk, [row], entry.position)
                self.flight.number(call)
                self.line.add(call, first=True)

    # -- before the calls ------------------------------------------------------------------------

    def _receive(self, wait_s: float) -> None:
        """Take more where few wait for their place, and wait for it where nothing is under way."""
        if not self._takes_more():
            return
        before = self._attempt.backlog.entries
        wanted = 2 * self._places - self._crowd
        # What waits for a permit waits here; all else that is claimed begins at once.
        free = self._places - self.flight.under_way - self._crowd
        claims = Claims(wanted if self.line.limited else max(0, free))
        if self._waits_for_more:
            if wait_s:
                self._attempt.stop.wait(self._until(self.slices.rest_s()))
            self._attempt.fetch(wanted, self._until(wait_s), claims)
        elif not wait_s or self._caller.time() >= self._look_at:
            self._attempt.fetch(wanted, 0.0, claims)
            self._look_at = self._caller.time() + _LOOK_S
        self._new += self._attempt.backlog.latest(self._attempt.backlog.entries - before)

    def _takes_more(self) -> bool:
        """Return True if few wait for nothing but a place, and not too many for anything else."""
        return not (self.line.full or self.flight.full or 2 * self._crowd > self._places)

    @property
    def _crowd(self) -> int:
        """Number of tuples for which a place may be all that is missing."""
        return self.flight.queued + self.line.crowd + sum(one.rows.size for one in self._new)

    @property
    def _waits_for_more(self) -> bool:
        """True if nothing is to be done before more tuples come, or a permit."""
        flight = self.flight
        if self._new or self.line.full or flight.full:
            return False
        idle = flight.idle and (self.line.held > 0 or not self._attempt.backlog)
        return idle or flight.stands_still

    def _until(self, wait_s: float) -> float:
        """Return so long, or until there is something to do in the line or at a gate."""
        at = self.next_at
        if at is None:
            return wait_s
        return min(wait_s, max(0.0, at - self._attempt.around.loop.time()))

    def _makes_calls(self) -> bool:
        """Return True if the next step makes its calls itself, or has none to make.

        So it is with tuples that were under way when a process died, and while ``prepare`` raises.
        """
        if not self.flight.idle:
            return False
        backlog = self._attempt.backlog
        without_flight = self._retaken_waits() or backlog.must_leave
        works = without_flight or self._new or self._attempt.due()
        # Once per turn: a step then has what came of it.
        return bool(works) and (isinstance(self.copy.begin(), BaseException) or without_flight)

    def _to_be_called(self, wait_s: float) -> StepInput | None:
        """Return the input of a step that makes its calls itself."""
        attempt = self._attempt
        backlog = attempt.backlog
        together = self._go_together()
        alone = attempt.retaken.suspect(backlog) if attempt.retaken is not None else None
        if alone is not None:
            shares = [alone]
        elif self.line.limited and backlog.tuples and self.copy.works:
            self._feed_tuples()
            self._refuse()
            if self.flight.has_ended:
                return self._over()
            calls = self._in_turn(self.line.leave(self._places if together else 1))
            if not calls:
                self._pause(wait_s)
                return None
            shares = backlog.of(rows_of(calls))
        else:
            shares = backlog.first(self._places if together else self.slices.size)
        self._next = ((), together)
        return StepInput(shares=shares, ticks=attempt.due(), together=together)

    def _in_turn(self, calls: list[Call]) -> list[Call]:
        """Return the calls that may be under way at once; the flight has the others."""
        if self._gate is None:
            return calls
        chosen, others = self._gate.in_turn(calls)
        for call in others:
            self.flight.add(call)
        return sorted(chosen, key=_place_of)

    def _go_together(self) -> bool:
        retaken = self._attempt.retaken
        return retaken is None or retaken.goes_together()

    def _retaken_waits(self) -> bool:
        """Return True if the next step takes some of what an earlier attempt had taken."""
        attempt = self._attempt
        if attempt.retaken is None:
            return False
        waits = attempt.retaken.waits(attempt.backlog)
        if attempt.retaken.is_over:
            attempt.retaken = None
        return waits

    def _feed(self) -> None:
        """Give the flight the tuples that have come, and the tick that is due."""
        self._feed_tuples()
        ticks = self._attempt.ticks
        for chunk in self._attempt.due():
            self._tick = Call(tup=tuples_of(chunk)[0], lineage=chunk.lineage)
            self.flight.add(self._tick)
            if ticks is not None:
                ticks.under_way = True

    def _feed_tuples(self) -> None:
        gate = self._gate
        for entry in self._new:
            for call in calls_of(entry.chunk, entry.rows.tolist(), entry.position):
                self.flight.number(call)
                self.line.add(call, first=gate is not None and gate.comes_first(call))
        self._new.clear()

    def _refuse(self) -> None:
        """End what the line has no room for: it comes again."""
        for call in self.line.over():
            self.flight.refuse(call)

    def _start(self) -> None:
        self._feed_tuples()
        self._refuse()
        for call in self.line.leave(self._places - self.flight.under_way - self.flight.queued):
            self.flight.add(call)
        if self.flight.waiting:
            playback = self.copy.begin()
            # Prepared before anything was fed.
            if isinstance(playback, Playback):
                self.flight.start(playback.bolt.execute)

    # -- while they are under way ----------------------------------------------------------------

    def _pause(self, wait_s: float) -> None:
        """Wait for a call to end, if one is under way or no more tuples are taken."""
        if not self.flight.has_ended and not self._waits_for_more:
            self.flight.pause(self._longest_pause(wait_s))

    def _longest_pause(self, wait_s: float) -> float:
        """Return how long to wait for a call to end: until there may be more to begin."""
        wait_s = self._until(wait_s)
        if self._takes_more():
            wait_s = min(wait_s, _LOOK_S)
        else:
            # No look into the inbox will finish the last step soon.
            self._attempt.finish()
        return wait_s

    # -- after them ------------------------------------------------------------------------------

    def _over(self) -> StepInput | None:
        """Return the calls that have ended; None if there are none."""
        calls = self.flight.take_ended()
        if not calls:
            return None
        ticks: list[Chunk] = []
        ordered = [call for call in calls if call.position is not None]
        if self._gate is not None:
            # One that was called again has come behind others.
            ordered.sort(key=_place_of)
        rows = rows_of(ordered)
        clock = self._attempt.ticks
        if self._tick is not None and clock is not None and self._tick in calls:
            ordered.append(self._tick)
            ticks = [clock.tick()]
            clock.under_way = False
            self._tick = None
        self._next = (ordered, False)
        return StepInput(shares=self._attempt.backlog.of(rows), ticks=ticks, together=True)

    def _execute(self, bolt: Playback, step: Step) -> bool:
        """Play back the calls that have ended, or make the calls of the step."""
        calls, together = self._next
        bolt.load(calls, together=together)
        return execute_basic(bolt, step)


def _caller_of(around: Around, task: int, outputs: Outputs) -> Caller:
    """Make what runs the calls of one task."""
    component = around.topology.component_of(task)
    spec = around.topology.bolts[component]
    if isinstance(spec.bolt, AsyncBolt):
        return Coroutines(around.loop, component, outputs, around.call_lasts(task))
    return around.threads(component, outputs, threads_of(spec))


def _place_of(call: Call) -> tuple[tuple[int, int], int]:
    return place(call.position or ""), call.tup.row


def _wake_no_task() -> None:
    """Do nothing: a bolt with calls under way has no collector that threads may keep."""


class Playback(BasicBolt):
    """Stands for one copy of a bolt. The task's thread only.

    A tuple whose call was not given is called when its turn comes, and waited for: a step that is
    repeated, and one that looks for the tuple that kills the process.
    """

    def __init__(self, bolt: AsyncBolt | BasicBolt, caller: Caller, places: int) -> None:
        """At most ``places`` of the calls that it makes itself are under way at once."""
        self.bolt = bolt
        self._caller = caller
        self._places = places
        # By row of the step's input.
        self._calls: dict[int, Call] = {}
        self._together = False

    def load(self, calls: Sequence[Call], *, together: bool) -> None:
        """Take the calls of the next step, in the order of its tuples, or none of them.

        ``together``: calls that are not given may be made at once.
        """
        self._calls = dict(enumerate(calls))
        self._together = together

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:
        record = cast("Record", tup.record)
        if not self._calls and self._together:
            self._calls = self._called([one for one in record.fresh if one.state == OPEN])
        call = (self._calls or self._called([tup]))[tup.row]
        for report in call.reports:
            collector.report_error(report)
        for emitted in call.emissions:
            if emitted.task is None:
                collector.emit(emitted.values, emitted.stream)
            else:
                collector.emit_direct(emitted.task, emitted.values, emitted.stream)
        if call.error is not None:
            raise call.error
        record.returned_ns += call.took_ns

    def flush(self, collector: BasicCollector) -> None:
        recorder = self._caller.recorder(None)
        try:
            self._caller.do(self.bolt.flush, recorder)
        finally:
            for report in recorder.reports:
                collector.report_error(report)

    def _called(self, tuples: Sequence[Tuple]) -> dict[int, Call]:
        flight = Flight(self._caller, self._places)
        for tup in tuples:
            flight.add(Call(tup=tup))
        return {call.tup.row: call for call in flight.finish(self.bolt.execute)}


class CallingCopy(WorkingCopy):
    """Lives as long as the attempt: other calls are using it when a step ends, or fails.

    So it has no snapshots, which would show calls that are not done. One thread only.
    """

    def __init__(
        self,
        topology: Topology,
        task: int,
        config: Mapping[str, Any],
        caller: Caller,
        places: int,
    ) -> None:
        super().__init__(topology, task, config, b"", None, _wake_no_task)
        self._caller = caller
        self._places = places
        self._playback: Playback | BaseException | None = None

    def begin(self) -> Playback | BaseException:
        """Make the copy if there is none; returns what steps execute, or what ``prepare`` raised
        this time.
        """
        if not isinstance(self._playback, Playback):
            try:
                self._playback = self._prepared()
            except RAISED as error:
                self._playback = error
        return self._playback

    @property
    def works(self) -> bool:
        """True if ``prepare`` did not raise when it was begun last."""
        return isinstance(self._playback, Playback)

    def ready(self) -> Playback | BaseException:
        """The same as ``begin`` returned last."""
        return self.begin() if self._playback is None else self._playback

    def snapshot(self, record: Record, lineage: Lineage) -> bytes | None:  # noqa: ARG002 - as the base has it
        return None

    def drop(self) -> None:
        """Keep the copy: its attributes are not the step's alone."""

    def end(self) -> None:
        """Clean it up. No call is under way."""
        playback = self._playback
        self._playback = None
        if not isinstance(playback, Playback):
            return
        try:
            self._caller.do(playback.bolt.cleanup)
        except RAISED as error:
            log.warning(
                "%s[%d]: cleanup raised %s", self.component, self._task, reason_of(error),
                extra={"event": "bolt_cleanup_failed"},
            )  # fmt: skip

    def _prepared(self) -> Playback:
        prototype = self._topology.bolts[self.component].bolt
        bolt = cast("AsyncBolt | BasicBolt", copy.deepcopy(prototype))
        self._caller.do(bolt.prepare, self._settings(), self._topology.context_of(self._task))
        return Playback(bolt, self._caller, self._places)


class HangingCall:
    """``WatchedStep`` of one call."""

    def __init__(
        self, call: Call, component: str, outputs: Outputs, step: WatchedStep | None
    ) -> None:
        """``step`` has the tuple where the call does not know its trees."""
        self.call = call
        self.record = Record(component, outputs)
        self.record.doing = call.tup
        lineage = call.lineage
        self._roots: Callable[[int], list[int]] = (
            (lambda row: roots_of(lineage, row))
            if lineage is not None
            else (step.roots if step is not None else lambda row: [])  # noqa: ARG005 - none is known
        )

    def roots(self, row: int) -> list[int]:
        """The roots of its tuple."""
        return self._roots(row)


class Renewals:
    """Of one bolt task, where a call may last longer than a message (``execute_timeout_secs``).

    One thread only. The watchdog does it for bolts that execute one tuple after the other.
    """

    def __init__(self, around: Around, task: int) -> None:
        limit = around.call_limit(task)
        self._around = around
        self._task = task
        self._renew_s = None if limit is None else limit.renew_s
        self._next_at = float("inf")

    @property
    def next_at(self) -> float | None:
        """Time on the loop's clock at which to look again; None: when calls are under way."""
        return None if self._next_at == float("inf") else self._next_at

    def look(self, *, at_work: bool) -> None:
        """Renew what is in the inbox if that is due; ``at_work`` says that calls are under way.

        Look before and after calls begin: what has just begun is to be renewed while the task waits
        for it, until ``next_at``. Raises StaleAttemptError.
        """
        ledger = self._around.ledger
        if self._renew_s is None or ledger is None:
            return
        now = self._around.loop.time()
        if not at_work:
            self._next_at = float("inf")
        elif self._next_at == float("inf"):
            self._next_at = now + self._renew_s
        elif now >= self._next_at:
            self._next_at = now + self._renew_s
            try:
                around = self._around
                roots = waiting_roots(around.inboxes, around.run, around.topology, self._task)
                ledger.reset_timeout(sorted(roots))
            except RedisUnavailableError as error:
                log.debug("timeouts were not renewed: %s", error, extra={"event": "redis_away"})
