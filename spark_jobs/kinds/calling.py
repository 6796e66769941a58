"""Bolts with concurrent calls: an ``AsyncBolt``, or a ``BasicBolt`` with threads or a rate limit.

The kind takes tuples, lets the flight begin their calls, and makes steps of the calls that have
ended. A step plays its calls back, so groupings, ids, counters, the commit and recovery work as for
every other bolt. The calls and the copy of the bolt outlive the steps.
"""

from __future__ import annotations

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
from tiercel.spark_jobs.bolts.verdicts import Reject, RetryLater
from tiercel.spark_jobs.emitting.fold import roots_of
from tiercel.spark_jobs.emitting.outputs import Outputs
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.kinds.calls.call import Call, Caller, Execute, calls_of, rows_of
from tiercel.spark_jobs.kinds.calls.coroutines import Coroutines
from tiercel.spark_jobs.kinds.calls.flight import Flight
from tiercel.spark_jobs.kinds.lines import line_of
from tiercel.spark_jobs.kinds.plain import BASIC, execute_basic
from tiercel.spark_jobs.kinds.task_order import OrderGate
from tiercel.spark_jobs.reasons import raised
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.attempt import Attempt
from tiercel.spark_jobs.running.backlog import OpenEntry, waiting_roots
from tiercel.spark_jobs.running.copy import WorkingCopy, copied
from tiercel.spark_jobs.running.kind import StepInput
from tiercel.spark_jobs.running.step import Slices, Step
from tiercel.spark_jobs.running.suspicion import place
from tiercel.spark_jobs.suspects.watchdog import WatchedStep
from tiercel.spark_jobs.topology.bolt_settings import concurrency_of, threads_of
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.spark_jobs.tracing.task import TaskTracing

log = logging.getLogger(__name__)

# Events in the span of a call.
_VERDICTS = {Reject: "rejected", RetryLater: "retry_later"}
# Interval between polls of the inbox while calls are running.
_LOOK_S = 0.01


class Calls:
    """``BoltKind`` with concurrent calls. Only ``wake`` and ``under_way`` are thread-safe."""

    # Claimed tuples are running or wait for a permit.
    gives_back = False
    # True if as many tuples wait for a retry as the task may hold.
    is_full = False

    def __init__(
        self,
        attempt: Attempt,
        snapshot: bytes | None,
        gate: OrderGate | None = None,
        *,
        retries: bool = False,
    ) -> None:
        """``gate`` is set if the bolt has an order; ``retries`` is True if calls are made again.

        ``snapshot`` is ignored, as it would include the effects of unfinished calls.
        """
        del snapshot
        around = attempt.around
        topology = around.topology
        self._attempt = attempt
        self._gate = gate
        self._retries = retries
        # The calls that the next step plays back; True if the step may make missing calls
        # concurrently. The first step may repeat a sealed one, for which all calls are missing.
        self._next: tuple[Sequence[Call], bool] = ((), self._go_together())
        self._places = concurrency_of(topology.bolts[topology.component_of(attempt.task)]) or 1
        self._outputs = Outputs(topology, attempt.task)
        self._caller = _caller_of(around, attempt.task, self._outputs)
        self._tracing = around.tracing_of(attempt.task)
        self.execution = replace(BASIC, execute=self._execute)
        if self._tracing is not None:
            self.execution = self._tracing.traced(self.execution, calls=True)
        self.copy = CallingCopy(
            topology, attempt.task, around.config, self._caller, self._places, self._tracing
        )
        self.slices = Slices(around.clock, arrow=False)
        self.flight = Flight(self._caller, self._places, gate)
        self.line = line_of(around, attempt.task)
        self._renewals = Renewals(around, attempt.task)
        self._new: list[OpenEntry] = []  # entries whose tuples are not in the line yet
        self._tick: Call | None = None
        self._look_at = 0.0
        self._watched: WatchedCall | None = None

    @property
    def next_at(self) -> float | None:
        moments = [one.next_at for one in (self.line, self.flight, self._renewals)]
        return min((moment for moment in moments if moment is not None), default=None)

    @property
    def at_work(self) -> bool:
        return self.flight.under_way > 0 or self.flight.has_ended

    def wake(self) -> None:
        self.flight.wake()

    def under_way(self) -> WatchedStep | None:
        hanging = self._caller.hanging()
        call = hanging or self._caller.oldest()
        if call is None:
            return None
        known, waits = self._watched, hanging is None
        if known is None or known.call is not call or known.waits != waits:
            attempt = self._attempt
            known = self._watched = WatchedCall(
                call, attempt.task, self.copy.component, self._outputs, attempt.doing, waits=waits
            )
        return known

    def takes(self, wait_s: float) -> StepInput | None:
        """Take tuples, begin calls, and return a step of the calls that have ended.

        Blocks for at most ``wait_s`` if there is nothing to do.
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
            # Wait a little, so that calls that end soon share the commit.
            self._attempt.stop.wait(self._until(self.slices.rest_s()))
        self._start()
        return self._over()

    def ends(self, wait_s: float) -> StepInput | None:
        self._renewals.look(at_work=not self.flight.idle)
        if not self.flight.has_ended:
            if self.flight.under_way:
                self.flight.pause(wait_s)
            else:
                self._attempt.stop.wait(wait_s)
        return self._over()

    def close(self) -> None:
        """Cancel the calls, and clean the bolt up if none is still running."""
        if self._caller.cancel():
            self.copy.end()
        self.line.close()
        self._caller.close()

    def call_again(self, places: Sequence[tuple[OpenEntry, int]]) -> None:
        """Queue failed tuples again that stayed in the backlog."""
        rows: dict[str, tuple[OpenEntry, list[int]]] = {}
        for entry, row in places:
            # Tuples of new entries are still to be queued: their step made the call itself.
            if not any(one is entry for one in self._new):
                rows.setdefault(entry.position, (entry, []))[1].append(row)
        for entry, again in rows.values():
            for call in calls_of(entry.chunk, again, entry.position):
                self.flight.number(call)
                self.line.add(call, first=True)

    # -- before the calls ------------------------------------------------------------------------

    def _receive(self, wait_s: float) -> None:
        """Fetch tuples if few wait for a place; block if there is nothing else to do."""
        if not self._takes_more():
            return
        before = self._attempt.backlog.entries
        wanted = 2 * self._places - self._crowd
        # With a rate limit, claimed tuples may wait here. Without one, claim only for free places.
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
        """Return True if few tuples wait for a place, and the line and the gate have room."""
        is_full = self.is_full or self.line.full or self.flight.full
        return not (is_full or 2 * self._crowd > self._places)

    @property
    def _crowd(self) -> int:
        """Number of tuples that may need nothing but a free place."""
        return self.flight.queued + self.line.crowd + sum(one.rows.size for one in self._new)

    @property
    def _waits_for_more(self) -> bool:
        """True if there is nothing to do before a tuple or a permit arrives."""
        flight = self.flight
        if self._new or self.is_full or self.line.full or flight.full:
            return False
        idle = flight.idle and (self.line.held > 0 or not self._attempt.backlog)
        return idle or flight.stands_still

    def _until(self, wait_s: float) -> float:
        """Shorten a wait so that it ends when the line or the gate has work to do."""
        at = self.next_at
        if at is None:
            return wait_s
        return min(wait_s, max(0.0, at - self._attempt.around.loop.time()))

    def _makes_calls(self) -> bool:
        """Return True if the next step makes its calls itself, or has none to make.

        This applies to tuples that were running when a process died, and while ``prepare`` raises.
        """
        if not self.flight.idle:
            return False
        backlog = self._attempt.backlog
        without_flight = self.retakes() or backlog.must_leave
        new = any(backlog.may_begin(entry).size for entry in self._new)
        works = without_flight or new or self._attempt.due()
        # Call ``begin`` once per turn: the step uses its result.
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
        """Return the calls that may run concurrently; add the others to the flight."""
        if self._gate is None:
            return calls
        chosen, others = self._gate.in_turn(calls)
        for call in others:
            self.flight.add(call)
        return sorted(chosen, key=_place_of)

    def _go_together(self) -> bool:
        retaken = self._attempt.retaken
        return retaken is None or retaken.goes_together()

    def retakes(self) -> bool:
        """Return True if the next step takes tuples that an earlier attempt had taken."""
        attempt = self._attempt
        if attempt.retaken is None:
            return False
        waits = attempt.retaken.waits(attempt.backlog)
        if attempt.retaken.is_over:
            attempt.retaken = None
        return waits

    def _feed(self) -> None:
        """Queue the tuples that have arrived and the tick that is due."""
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
            if self._tracing is not None:
                self._tracing.feed(entry.chunk.lineage.contexts)
            rows = self._attempt.backlog.may_begin(entry).tolist()
            for call in calls_of(entry.chunk, rows, entry.position):
                self.flight.number(call)
                self.line.add(call, first=gate is not None and gate.comes_first(call))
        self._new.clear()

    def _refuse(self) -> None:
        """End the calls for which the line has no room; their tuples are redelivered."""
        for call in self.line.over():
            self.flight.refuse(call)

    def _start(self) -> None:
        self._feed_tuples()
        self._refuse()
        for call in self.line.leave(self._places - self.flight.under_way - self.flight.queued):
            self.flight.add(call)
        if self.flight.waiting:
            playback = self.copy.begin()
            # Always true: the bolt was prepared before any tuple was queued.
            if isinstance(playback, Playback):
                self.flight.start(playback.call)

    # -- while calls are running -----------------------------------------------------------------

    def _pause(self, wait_s: float) -> None:
        """Wait for a call to end, if one is running or no more tuples are fetched."""
        if not self.flight.has_ended and not self._waits_for_more:
            self.flight.pause(self._longest_pause(wait_s))

    def _longest_pause(self, wait_s: float) -> float:
        """Return how long to wait for a call to end before the task must look for more work."""
        wait_s = self._until(wait_s)
        if self._takes_more():
            wait_s = min(wait_s, _LOOK_S)
        else:
            # No poll of the inbox will finish the last step soon.
            self._attempt.finish()
        return wait_s

    # -- after the calls -------------------------------------------------------------------------

    def _over(self) -> StepInput | None:
        """Return a step of the calls that have ended; None if there are none."""
        calls = self.flight.take_ended()
        if not calls:
            return None
        ticks: list[Chunk] = []
        ordered = [call for call in calls if call.position is not None]
        if self._retries:
            # Sort by place in the inbox: a retried call has a new number.
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
        """Play the calls of the step back, or make them if they are missing."""
        calls, together = self._next
        bolt.load(calls, together=together)
        return execute_basic(bolt, step)


def _caller_of(around: Around, task: int, outputs: Outputs) -> Caller:
    """Create the caller of one task."""
    component = around.topology.component_of(task)
    spec = around.topology.bolts[component]
    if isinstance(spec.bolt, AsyncBolt):
        return Coroutines(around.loop, component, outputs, around.call_lasts(task))
    return around.threads(component, outputs, threads_of(spec))


def _place_of(call: Call) -> tuple[tuple[int, int], int]:
    return place(call.position or ""), call.tup.row


def _wake_no_task() -> None:
    """Do nothing: no thread keeps a collector after its call, so no answer can arrive."""


class Playback(BasicBolt):
    """Replays the ended calls of one copy of a bolt. The task's thread only.

    It makes a missing call when the tuple's turn comes, and waits for it. Calls are missing in a
    repeated step, and in a step that searches for the tuple that kills the process.
    """

    def __init__(
        self,
        bolt: AsyncBolt | BasicBolt,
        caller: Caller,
        places: int,
        tracing: TaskTracing | None = None,
    ) -> None:
        """Make at most ``places`` missing calls at once."""
        self.bolt = bolt
        self.call: Execute = bolt.execute
        if tracing is not None:
            awaits = isinstance(bolt, AsyncBolt)
            self.call = tracing.around_call(bolt.execute, awaits=awaits, verdicts=_VERDICTS)
        self._caller = caller
        self._places = places
        # Calls by row in the step's input.
        self._calls: dict[int, Call] = {}
        self._together = False

    def load(self, calls: Sequence[Call], *, together: bool) -> None:
        """Load the calls of the next step, in the order of its tuples, or none of them.

        If ``together``, missing calls may be made concurrently.
        """
        self._calls = dict(enumerate(calls))
        self._together = together

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:
        record = cast("Record", tup.origin.record)
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
        return {call.tup.row: call for call in flight.finish(self.call)}


class CallingCopy(WorkingCopy):
    """``WorkingCopy`` that lives as long as the attempt, as calls outlive steps.

    It has no snapshots, which would include the effects of unfinished calls. One thread only.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - those of the base, and of the calls
        self,
        topology: Topology,
        task: int,
        config: Mapping[str, Any],
        caller: Caller,
        places: int,
        tracing: TaskTracing | None = None,
    ) -> None:
        super().__init__(topology, task, config, b"", None, _wake_no_task)
        self._caller = caller
        self._places = places
        self._tracing = tracing
        self._playback: Playback | BaseException | None = None

    def begin(self) -> Playback | BaseException:
        """Create and prepare the copy if there is none.

        Returns the playback that steps execute, or the error of ``prepare``.
        """
        if not isinstance(self._playback, Playback):
            try:
                self._playback = self._prepared()
            except raised() as error:
                self._playback = error
        return self._playback

    @property
    def works(self) -> bool:
        """True if ``prepare`` did not raise in the last ``begin``."""
        return isinstance(self._playback, Playback)

    def ready(self) -> Playback | BaseException:
        """Return the last result of ``begin``."""
        return self.begin() if self._playback is None else self._playback

    def snapshot(self, record: Record, lineage: Lineage) -> bytes | None:  # noqa: ARG002 - signature of the base
        return None

    def drop(self) -> None:
        """Keep the copy, since running calls still use it."""

    def end(self) -> None:
        """Clean the copy up. Call this only when no call is running."""
        playback = self._playback
        self._playback = None
        if isinstance(playback, Playback):
            self._clean_up(lambda: self._caller.do(playback.bolt.cleanup))

    def _prepared(self) -> Playback:
        bolt = cast("AsyncBolt | BasicBolt", copied(self._topology.bolts[self.component].bolt))
        self._caller.do(bolt.prepare, self._settings(), self._topology.context_of(self._task))
        return Playback(bolt, self._caller, self._places, self._tracing)


class WatchedCall:
    """``WatchedStep`` of one call."""

    def __init__(  # noqa: PLR0913 - all that the watchdog asks about a call
        self,
        call: Call,
        task: int,
        component: str,
        outputs: Outputs,
        step: WatchedStep | None,
        *,
        waits: bool,
    ) -> None:
        """``step`` contains the tuple if the call does not know its lineage."""
        self.call = call
        self._waits = waits
        self.task = task
        self.record = Record(component, outputs)
        self.record.doing = call.tup
        lineage = call.lineage
        self._roots: Callable[[int], list[int]] = (
            (lambda row: roots_of(lineage, row))
            if lineage is not None
            else (step.roots if step is not None else lambda row: [])  # noqa: ARG005 - no root is known
        )

    @property
    def waits(self) -> bool:
        return self._waits and not self.call.ended

    def roots(self, row: int) -> list[int]:
        """Return the roots of the tuple."""
        return self._roots(row)


class Renewals:
    """Resets message timeouts if calls may outlast them (``execute_timeout_secs``).

    One object per bolt task, one thread only. The watchdog resets the timeouts for bolts that
    execute one tuple at a time.
    """

    def __init__(self, around: Around, task: int) -> None:
        limit = around.call_limit(task)
        self._around = around
        self._task = task
        self._renew_s = None if limit is None else limit.renew_s
        self._next_at = float("inf")

    @property
    def next_at(self) -> float | None:
        """Time on the loop's clock of the next renewal; None while no call is running."""
        return None if self._next_at == float("inf") else self._next_at

    def look(self, *, at_work: bool) -> None:
        """Reset the timeouts of the tuples in the inbox if that is due.

        ``at_work`` is True if calls are running. Call this before and after calls begin, so that
        ``next_at`` is set while the task waits for new calls. Raises StaleAttemptError.
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
                log.debug("could not renew timeouts: %s", error, extra={"event": "redis_away"})
