"""One attempt at the task of a bolt with calls under way: an ``AsyncBolt``, or a ``BasicBolt``
with threads.

It takes tuples, lets the flight begin them, and does steps over those whose calls have ended: a
step plays them back, and all that follows is as for every bolt.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tiercel.acker.inbox.chunk import Chunk
from tiercel.acker.inbox.records import Claims, Covered
from tiercel.spark_jobs.bolts.tuples import tuples_of
from tiercel.spark_jobs.emitting.outputs import Outputs
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.attempt import LONGEST_WAIT_S, Attempt
from tiercel.spark_jobs.running.backlog import OpenEntry, Share
from tiercel.spark_jobs.running.calling_copy import CallingCopy
from tiercel.spark_jobs.running.calls.call import Call, calls_of, rows_of
from tiercel.spark_jobs.running.calls.flight import Flight
from tiercel.spark_jobs.running.calls.gates import FlightGate
from tiercel.spark_jobs.running.calls.playback import Playback
from tiercel.spark_jobs.running.copy import WorkingCopy
from tiercel.spark_jobs.running.hanging_call import HangingCall
from tiercel.spark_jobs.running.limited import line_of
from tiercel.spark_jobs.running.renewals import Renewals
from tiercel.spark_jobs.running.step import Done, May, Step
from tiercel.spark_jobs.suspects.watchdog import WatchedStep
from tiercel.spark_jobs.topology.concurrency import concurrency_of

# Between two looks into the inbox while calls are under way.
_LOOK_S = 0.01


class CallingAttempt(Attempt):
    """``Attempt`` with calls under way. One thread only, but ``wake`` and ``executing``."""

    def __init__(self, around: Around, task: int, stop: threading.Event) -> None:
        super().__init__(around, task, stop)
        self._flight = Flight(self._caller, self._places, self._gates())
        self._line = line_of(around, task)
        self._renewals = Renewals(around, task)
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
        if self._hanging is None or self._hanging.call is not call:
            component = self._setup.component
            self._hanging = HangingCall(call, component, self._outputs, self.doing)
        return self._hanging

    def turn(self, wait_s: float = 0.0) -> bool:
        """Take what is there, begin what may begin, and do a step over what has ended; wait
        where there is nothing of that.

        Returns whether there was a step.
        """
        self._receive(wait_s)
        self._renewals.look(at_work=not self._flight.idle)
        if self._makes_calls():
            return self._make_calls(wait_s)
        self._feed()
        self._start()
        self._renewals.look(at_work=not self._flight.idle)
        self._pause(wait_s)
        if self._flight.has_ended and wait_s:
            # Those that end meanwhile share the commit.
            self._stop.wait(self._until(self._slices.rest_s()))
        self._start()
        return self._play_back()

    def give_back(self) -> None:
        """Give nothing back: what it has claimed is under way, or waits for a permit."""

    def close(self) -> None:
        """Cancel the calls, and clean the bolt up if none of them goes on.

        Their tuples stay in the inbox, for the next attempt.
        """
        if self._caller.cancel():
            self._copy.end()
        self._flight.close()
        self._line.close()
        self._caller.close()
        super().close()

    # -- before the calls ------------------------------------------------------------------------

    def _receive(self, wait_s: float) -> None:
        """Take more where few wait for their place, and wait for it where nothing is under way."""
        if not self._takes_more():
            return
        before = self._backlog.entries
        wanted = 2 * self._places - self._crowd
        # What waits for a permit waits here; all else that is claimed begins at once.
        free = self._places - self._flight.under_way - self._crowd
        claims = Claims(wanted if self._line.limited else max(0, free))
        if self._waits_for_more:
            if wait_s:
                self._stop.wait(self._until(self._slices.rest_s()))
            self._fetch(wanted, self._until(wait_s), claims)
        elif not wait_s or self._caller.time() >= self._look_at:
            self._fetch(wanted, 0.0, claims)
            self._look_at = self._caller.time() + _LOOK_S
        self._new += self._backlog.latest(self._backlog.entries - before)

    def _takes_more(self) -> bool:
        """Return True if few wait for nothing but a place, and not too many for anything else."""
        return not (self._line.full or self._flight.full or 2 * self._crowd > self._places)

    @property
    def _crowd(self) -> int:
        """Number of tuples for which a place may be all that is missing."""
        return self._flight.queued + self._line.crowd + sum(one.rows.size for one in self._new)

    @property
    def _waits_for_more(self) -> bool:
        """True if nothing is to be done before more tuples come, or a permit."""
        flight = self._flight
        if self._new or self._line.full or flight.full:
            return False
        idle = flight.idle and (self._line.held > 0 or not self._backlog)
        return idle or flight.stands_still

    def _until(self, wait_s: float) -> float:
        """Return so long, or until there is something to do in the line or at a gate."""
        at = self.next_at
        return wait_s if at is None else min(wait_s, max(0.0, at - self._around.loop.time()))

    @property
    def next_at(self) -> float | None:
        moments = [one.next_at for one in (self._line, self._flight, self._renewals)]
        return min((moment for moment in moments if moment is not None), default=None)

    def _makes_calls(self) -> bool:
        """Return True if the next step makes its calls itself, or has none to make.

        So it is with tuples that were under way when a process died, and while ``prepare`` raises.
        """
        if not self._flight.idle:
            return False
        backlog = self._backlog
        without_flight = self._retaken_waits() or backlog.must_leave
        works = without_flight or self._new or self._due()
        # Once per turn: a step then has what came of it.
        return bool(works) and (isinstance(self._copy.begin(), BaseException) or without_flight)

    def _make_calls(self, wait_s: float) -> bool:
        """Do a step that makes its calls itself; returns whether there was one."""
        retaken = self._retaken
        together = retaken is None or retaken.goes_together()
        alone = retaken.suspect(self._backlog) if retaken is not None else None
        if alone is not None:
            shares = [alone]
        elif self._line.limited and self._backlog.tuples and self._copy.works:
            calls = self._in_turn(self._permitted(self._places if together else 1))
            if not calls:
                self._pause(wait_s)
            played = self._play_back()
            if not calls:
                return played
            shares = self._backlog.of(rows_of(calls))
        else:
            shares = self._backlog.first(self._places if together else self._slices.size)
        self._slices.begin()
        self._copy.load((), together=together)
        self._commit_calls(shares, self._due(), together=together)
        return True

    def _permitted(self, most: int) -> list[Call]:
        """Return those that may begin, of all that was taken."""
        self._feed_tuples()
        for call in self._line.over():
            self._flight.refuse(call)
        return self._line.leave(most)

    def _comes_first(self, call: Call) -> bool:  # noqa: ARG002 - of those with an order
        """Return True if other tuples wait for this one."""
        return False

    def _in_turn(self, calls: list[Call]) -> list[Call]:
        """Return those that may be under way at once; the flight has the others."""
        return calls

    def _feed(self) -> None:
        """Give the flight the tuples that have come, and the tick that is due."""
        self._feed_tuples()
        if self._tick is None:
            for chunk in self._due():
                self._tick = Call(tup=tuples_of(chunk)[0], lineage=chunk.lineage)
                self._flight.add(self._tick)

    def _feed_tuples(self) -> None:
        for entry in self._new:
            for call in calls_of(entry.chunk, entry.rows.tolist(), entry.position):
                self._flight.number(call)
                self._line.add(call, first=self._comes_first(call))
        self._new.clear()

    def _start(self) -> None:
        for call in self._permitted(self._places - self._flight.under_way - self._flight.queued):
            self._flight.add(call)
        if self._flight.waiting:
            playback = self._copy.begin()
            # Prepared before anything was fed.
            if isinstance(playback, Playback):
                self._flight.start(playback.bolt.execute)

    # -- while they are under way ----------------------------------------------------------------

    def _longest_wait(self) -> float:
        # A tick that is under way is due until its step.
        return super()._longest_wait() if self._tick is None else LONGEST_WAIT_S

    def _pause(self, wait_s: float) -> None:
        """Wait for a call to end, if one is under way or no more tuples are taken."""
        if not self._flight.has_ended and not self._waits_for_more:
            self._flight.pause(self._longest_pause(wait_s))

    def _longest_pause(self, wait_s: float) -> float:
        """Return how long to wait for a call to end: until there may be more to begin."""
        wait_s = self._until(wait_s)
        if self._takes_more():
            wait_s = min(wait_s, _LOOK_S)
        elif self._committer.unfinished is not None:
            # No look into the inbox will finish it soon.
            self._patiently(self._committer.finish)
        return wait_s

    # -- after them ------------------------------------------------------------------------------

    def _play_back(self) -> bool:
        """Do a step over the calls that have ended; returns whether there are any."""
        calls = self._flight.take_ended()
        if not calls:
            return False
        ticks: list[Chunk] = []
        ordered = [call for call in calls if call.position is not None]
        rows = rows_of(ordered)
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
        self._commit(shares, ticks, None)
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

    def _gates(self) -> Sequence[FlightGate]:
        """Return what decides which tuples may begin."""
        return ()

    def _due(self) -> list[Chunk]:
        return self._ticks.due(self._around.clock()) if self._ticks is not None else []

    def _working_copy(self, snapshot: bytes | None) -> WorkingCopy:  # noqa: ARG002 - as the base has it
        """Make what the calls need, too: before the rest of the attempt."""
        around = self._around
        topology = around.topology
        self._places = concurrency_of(topology.bolts[topology.component_of(self.task)]) or 1
        self._outputs = Outputs(topology, self.task)
        self._caller = around.caller(self.task, self._outputs)
        self._copy = CallingCopy(topology, self.task, around.config, self._caller, self._places)
        return self._copy
