"""One attempt at the task of a bolt with calls under way: an ``AsyncBolt``, or a ``BasicBolt``
with threads.

It takes tuples, lets the flight begin them, and does steps over those whose calls have ended: a
step plays them back, and all that follows is as for every bolt.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tiercel.queues.inbox.chunk import Chunk
from tiercel.queues.inbox.records import Covered
from tiercel.spark_jobs.bolts.async_bolt import AsyncBolt
from tiercel.spark_jobs.bolts.tuples import tuples_of
from tiercel.spark_jobs.emitting.fold import roots_of, row_seeds
from tiercel.spark_jobs.emitting.outputs import Outputs
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.attempt import LONGEST_WAIT_S, Attempt
from tiercel.spark_jobs.running.backlog import OpenEntry, Share
from tiercel.spark_jobs.running.calling_copy import CallingCopy
from tiercel.spark_jobs.running.calls.call import Call
from tiercel.spark_jobs.running.calls.caller import Caller
from tiercel.spark_jobs.running.calls.coroutines import Coroutines
from tiercel.spark_jobs.running.calls.flight import Flight
from tiercel.spark_jobs.running.calls.gates import FlightGate
from tiercel.spark_jobs.running.calls.playback import Playback
from tiercel.spark_jobs.running.copy import WorkingCopy
from tiercel.spark_jobs.running.step import Done, May, Step
from tiercel.spark_jobs.suspects.watchdog import WatchedStep
from tiercel.spark_jobs.topology.concurrency import concurrency_of

# Between two looks into the inbox while calls are under way.
_LOOK_S = 0.01


class CallingAttempt(Attempt):
    """``Attempt`` with calls under way. One thread only, but ``wake`` and ``executing``."""

    def __init__(
        self, around: Around, task: int, stop: threading.Event, gates: Sequence[FlightGate] = ()
    ) -> None:
        """``gates`` decide which tuples may begin."""
        super().__init__(around, task, stop)
        self._flight = Flight(self._caller, self._places, gates)
        # Entries whose tuples the flight does not have yet.
        self._new: list[OpenEntry] = []
        self._tick: Call | None = None
        self._together = False
        self._look_at = 0.0
        self._hanging: HangingCall | None = None

    def wake(self) -> None:
        super().wake()
        self._flight.wake()

    def executing(self) -> WatchedStep | None:
        call = self._caller.hanging()
        if call is None:
            return super().executing()
        known = self._hanging
        if known is None or known.call is not call:
            known = self._hanging = HangingCall(
                call, self._setup.component, self._outputs, self.doing
            )
        return known

    def turn(self, wait_s: float = 0.0) -> bool:
        """Take what is there, begin what may begin, and do a step over what has ended; wait
        where there is nothing of that.

        Returns whether there was a step.
        """
        self._receive(wait_s)
        if self._makes_calls():
            self._make_calls()
            return True
        self._feed()
        self._start()
        if not self._flight.has_ended and not self._flight.idle:
            self._flight.pause(self._longest_pause(wait_s))
        if self._flight.has_ended and wait_s:
            # Those that end meanwhile share the commit.
            self._stop.wait(self._slices.rest_s())
        self._start()
        return self._play_back()

    def close(self) -> None:
        """Cancel the calls, and clean the bolt up if none of them goes on.

        Their tuples stay in the inbox, for the next attempt.
        """
        if self._caller.cancel():
            self._copy.end()
        self._flight.close()
        self._caller.close()
        super().close()

    # -- before the calls ------------------------------------------------------------------------

    def _receive(self, wait_s: float) -> None:
        """Take more where few wait for their place, and wait for it where nothing is under way."""
        flight = self._flight
        waiting = flight.waiting + sum(entry.rows.size for entry in self._new)
        if 2 * waiting > self._places:
            return
        before = self._backlog.entries
        wanted = 2 * self._places - waiting
        if flight.idle and not self._backlog:
            if wait_s:
                self._stop.wait(self._slices.rest_s())
            self._fetch(wanted, wait_s)
        elif not wait_s or self._caller.time() >= self._look_at:
            self._fetch(wanted, 0.0)
            self._look_at = self._caller.time() + _LOOK_S
        self._new += self._backlog.latest(self._backlog.entries - before)

    def _makes_calls(self) -> bool:
        """Return True if the next step makes its calls itself, or has none to make.

        So it is with tuples that were under way when a process died, and while ``prepare`` raises.
        """
        if not self._flight.idle:
            return False
        backlog = self._backlog
        without_flight = self._retaken_waits() or (bool(backlog) and not backlog.tuples)
        works = without_flight or self._new or self._due()
        # Once per turn: a step then has what came of it.
        return bool(works) and (isinstance(self._copy.begin(), BaseException) or without_flight)

    def _make_calls(self) -> None:
        retaken = self._retaken
        together = retaken is None or retaken.goes_together()
        most = self._places if together else self._slices.size
        self._slices.begin()
        self._copy.load((), together=together)
        shares = (
            self._backlog.first(most) if retaken is None else retaken.shares(self._backlog, most)
        )
        self._commit_calls(shares, self._due(), together=together)

    def _feed(self) -> None:
        """Give the flight the tuples that have come, and the tick that is due."""
        for entry in self._new:
            lineage = entry.chunk.lineage
            tuples = tuples_of(entry.chunk, 0, row_seeds(lineage).tolist())
            for row in entry.rows.tolist():
                self._flight.add(Call(tup=tuples[row], lineage=lineage, position=entry.position))
        self._new.clear()
        if self._tick is None:
            for chunk in self._due():
                [tick] = tuples_of(chunk)
                self._tick = Call(tup=tick, lineage=chunk.lineage)
                self._flight.add(self._tick)

    def _start(self) -> None:
        if self._flight.waiting:
            playback = self._copy.begin()
            # Prepared before anything was fed.
            if isinstance(playback, Playback):
                self._flight.start(playback.bolt.execute)

    # -- while they are under way ----------------------------------------------------------------

    def _longest_wait(self) -> float:
        # A tick that is under way is due until its step.
        return super()._longest_wait() if self._tick is None else LONGEST_WAIT_S

    def _longest_pause(self, wait_s: float) -> float:
        """Return how long to wait for a call to end: until there may be more to begin."""
        if 2 * self._flight.waiting <= self._places:
            wait_s = min(wait_s, _LOOK_S)
        elif self._committer.unfinished is not None:
            # No look into the inbox will finish it soon.
            self._patiently(self._committer.finish)
        if self._flight.next_at is not None:
            wait_s = min(wait_s, max(0.0, self._flight.next_at - self._caller.time()))
        return wait_s

    # -- after them ------------------------------------------------------------------------------

    def _play_back(self) -> bool:
        """Do a step over the calls that have ended; returns whether there are any."""
        calls = self._flight.take_ended()
        if not calls:
            return False
        rows: dict[str, list[int]] = {}
        ticks: list[Chunk] = []
        ordered = [call for call in calls if call.position is not None]
        for call in ordered:
            rows.setdefault(call.position or "", []).append(call.tup.row)
        if self._tick is not None and self._ticks is not None and self._tick in calls:
            ordered.append(self._tick)
            ticks = [self._ticks.tick()]
            self._tick = None
        self._slices.begin()
        self._copy.load(ordered, together=False)
        self._commit_calls(self._backlog.of(rows), ticks, together=True)
        return True

    def _commit_calls(
        self, shares: Sequence[Share], ticks: Sequence[Chunk], *, together: bool
    ) -> None:
        """One step; calls that are made ``together`` are not cut by the clock."""
        self._together = together
        try:
            self._commit(shares, ticks, None)
        finally:
            self._together = False

    def _repeat(self, sealed: Covered) -> None:
        self._copy.load((), together=self._retaken is None or self._retaken.goes_together())
        super()._repeat(sealed)

    def _execute(self, shares: Sequence[Share], step: Step, may: May | None) -> Done:
        if not self._together:
            return super()._execute(shares, step, may)
        if self._retaken is None:
            return step.execute()
        return self._retaken.execute_together(shares, step)

    def _retaken_waits(self) -> bool:
        """Return True if the next step takes some of what an earlier attempt had taken."""
        if self._retaken is None:
            return False
        waits = self._retaken.waits(self._backlog)
        if self._retaken.is_over:
            self._retaken = None
        return waits

    def _due(self) -> list[Chunk]:
        return self._ticks.due(self._around.clock()) if self._ticks is not None else []

    def _working_copy(self, snapshot: bytes | None) -> WorkingCopy:  # noqa: ARG002 - as the base has it
        """Make what the calls need, too: before the rest of the attempt."""
        around = self._around
        topology = around.topology
        component = topology.component_of(self.task)
        spec = topology.bolts[component]
        self._places = concurrency_of(spec) or 1
        self._outputs = Outputs(topology, self.task)
        self._caller: Caller = (
            Coroutines(around.loop, component, self._outputs, around.longest_call)
            if isinstance(spec.bolt, AsyncBolt)
            else around.threads(component, self._outputs)
        )
        self._copy = CallingCopy(topology, self.task, around.config, self._caller, self._places)
        return self._copy


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
