"""Bolts in a row: a task executes its emissions for the next bolts within its own step.

If quick bolts are shuffled to each other, a step, a seal and a commit for each of them cost more
than their work. So a task executes the tuples that it emits for the next bolt itself, with a copy
of that bolt, *as* the task with the same index of it; then the tuples that these emit for the bolt
after that, and so on (``chain_of`` has the bolts). Ids, types, reasons and counters are those that
the tuples would have had in the next bolt's line. All effects leave with one commit.

This is a choice of one task in one step. Whatever it does not execute goes to the next bolt's line,
where that bolt's own tasks take it:

* all tuples while input is executed that may have killed a process, and for a minute afterwards: so
  that a deadly tuple is found at the bolt that it kills;
* the tuples that are left when the step has lasted its time;
* all tuples for a while if the next bolt is slow: free tasks then help;
* all tuples while the next bolt is paused: they wait there;
* all tuples of a bolt whose attributes change: they outlive the process only in its own tasks.

A seal notes how many tuples each bolt executed, and a repeated step executes exactly as many.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tiercel.acker.ids import EXTRA, task_of
from tiercel.acker.inbox.chunk import Chunk, Route
from tiercel.acker.inbox.contract import Covered
from tiercel.spark_jobs.emitting.fold import Departure, select
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.logs.relay import speaking_as
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.backlog import OpenEntry, Share, first_of
from tiercel.spark_jobs.running.copy import WorkingCopy
from tiercel.spark_jobs.running.counting import Counting
from tiercel.spark_jobs.running.kind import StepInput
from tiercel.spark_jobs.running.step import Beyond, Done, Execution, Slices, Step, StepSetup
from tiercel.spark_jobs.topology.bolt_settings import chain_of, keeps_nothing
from tiercel.spark_jobs.topology.graph import Topology, extra_task

log = logging.getLogger(__name__)

# Within this time an inner bolt is never slow; later, it is slow if its tuples take longer each.
_QUICK_S = 0.02
_SLOW_S = 0.002
# The time after which a step executes no further inner tuples: twice what a step of quick tuples is
# sized for (``Slices``), so that it ends a step only where the estimate was wrong.
_LONGEST_S = 0.4
# How long the tuples of a slow bolt go to its line: at first, and at most. If it is slow again soon
# afterwards, the time doubles.
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_SOON = 10
# Tuples of the first step after such a time.
_TRIED = 8
_AFTER_DEATH_S = 60.0


def tasks_in_row(topology: Topology, task: int) -> list[int]:
    """Return the tasks of the next bolts in a row as which this task may execute tuples."""
    component = topology.component_of(task)
    index = task_of(task) - topology.task_ids(component)[0]
    return [
        extra_task(topology.task_ids(bolt)[index], task // EXTRA)
        for bolt in chain_of(topology, component)
    ]


def chain_at(
    around: Around, head: StepSetup, slices: Slices, show: Callable[[Step | None], None]
) -> Chain | None:
    """Return the chain of a bolt task; None if no bolt may execute in its steps.

    ``show`` is called with the step whose bolt is executing.
    """
    tasks = tasks_in_row(around.topology, head.task)
    if not tasks:
        return None
    links = [_Link(around, head.task, task, head.execution) for task in tasks]
    return Chain(around, links, slices, show)


class Chain:
    """The bolts in a row behind one bolt task. One thread only."""

    def __init__(
        self,
        around: Around,
        links: Sequence[_Link],
        slices: Slices,
        show: Callable[[Step | None], None],
    ) -> None:
        self._around = around
        self._links = links
        self._slices = slices
        self._show = show
        self._rests_until = float("-inf")
        # Of the current step: its number, the head's record, when its first inner bolt began, the
        # numbers of inner tuples if it repeats a sealed step, and the inner steps by the place of
        # their bolts.
        self._number = 0
        self._head: Record | None = None
        self._began: float | None = None
        self._exactly: Sequence[int] | None = None
        self._inner: dict[int, Inner] = {}

    def limited(self, taken: StepInput) -> StepInput:
        """Shorten the input of a step if it is unknown whether an inner bolt is slow."""
        now = self._around.clock()
        if now < self._rests_until or not any(link.tries(now) for link in self._links):
            return taken
        return replace(taken, shares=first_of(taken.shares, _TRIED))

    def begin(self, step: Step, number: int, sealed: Covered | None, *, may_kill: bool) -> None:
        """Begin a step of the head.

        ``may_kill`` is True while the head executes input that may have killed a process.
        """
        now = self._around.clock()
        if may_kill:
            self._rests_until = now + _AFTER_DEATH_S
        self._inner = {}
        self._began = None
        self._number = number
        self._exactly = None if sealed is None else sealed.inner
        if sealed.inner if sealed is not None else now >= self._rests_until:
            step.beyond = Beyond()
            step.onward = partial(self._follow, 0, step)
        self._head = step.record

    @property
    def executed(self) -> Sequence[int]:
        """Numbers of tuples that the inner bolts executed in the step; empty if none did."""
        if self._head is not None and self._head.aborted:
            self._inner = {}
        return [inner.done.executed for _, inner in sorted(self._inner.items())]

    def committed(self, counting: Counting) -> None:
        """Count the inner steps, which are committed with the head's."""
        now_ns = time.perf_counter_ns()
        for inner in self._inner.values():
            link = inner.link
            step_ns = now_ns - inner.began_ns
            counting.inner_step(link.task, inner.done, step_ns=step_ns, at=link.head)
            inner.done.record.let_go()
        now = self._around.clock()
        for link in self._links:
            link.trying = link.trying and not link.chains(now)

    def close(self) -> None:
        """Clean up the inner bolts."""
        for link in self._links:
            link.copy.drop()

    # -- one inner bolt --------------------------------------------------------------------------

    def _follow(
        self, at: int, source: Step, departures: Sequence[Departure]
    ) -> Sequence[Departure]:
        """Execute emissions of ``source`` for the next bolt, add the effects to ``source.beyond``,
        and return the emissions that leave the step.
        """
        link = self._links[at]
        mine = [one for one in departures if one.target in link.targets]
        offered = self._offered(link, at, _rows(mine))
        if not offered or not self._ready(link):
            return departures
        began_ns = time.perf_counter_ns()
        given, _ = _split(mine, offered)
        step = _inner_step(link, self._number, [_chunk(source, one) for one in given])
        if at + 1 < len(self._links):
            step.onward = partial(self._follow, at + 1, step)
        done = self._executed(link, step, source)
        if done.snapshot is not None:
            self._unchain(link, at)
            return departures
        executed, left = _split(mine, done.executed)
        if left:
            done = replace(done, chunks=[_chunk(source, one) for one in executed])
        self._inner[at] = Inner(link, done, began_ns)
        _add(source, step, done)
        return [*(one for one in departures if one.target not in link.targets), *left]

    def _offered(self, link: _Link, at: int, waiting: int) -> int:
        """Return how many of the waiting tuples the inner bolt may execute."""
        exactly = self._exactly
        if exactly is not None:
            return min(waiting, exactly[at]) if at < len(exactly) else 0
        return waiting if link.chains(self._around.clock()) else 0

    def _ready(self, link: _Link) -> bool:
        """Prepare the inner bolt before its first tuple; False if its attributes may change."""
        if not link.prepared:
            # ``prepare`` may take long: the watchdog must not take it for a call.
            self._show(None)
            link.prepare()
        return not link.closed

    def _executed(self, link: _Link, step: Step, source: Step) -> Done:
        clock = self._around.clock
        now = clock()
        if self._began is None:
            self._began = now
        time_left = _TimeLeft(clock, self._slices, now, self._began + _LONGEST_S)
        executing = self._around.counting.executing
        executing.pop(source.record, None)
        executing[step.record] = link.task
        self._show(step)
        try:
            with speaking_as(link.component, link.task):
                done = step.execute(None if self._exactly is not None else time_left)
        finally:
            executing.pop(step.record, None)
            self._show(source)
        link.took(step.record.executed, time_left.lasted_s, clock())
        if log.isEnabledFor(logging.DEBUG):
            step.log("5. task %d of %s executed tuples of root %d")
        return done

    def _unchain(self, link: _Link, at: int) -> None:
        """Forget what a bolt whose attributes have changed, and the bolts behind it, did in this
        step: nothing of it has left the process. From now on the bolt's own tasks do it.
        """
        link.close()
        self._inner = {place: inner for place, inner in self._inner.items() if place < at}


@dataclass(frozen=True, slots=True)
class Inner:
    """The step of one inner bolt."""

    link: _Link
    done: Done
    began_ns: int


class _Link:
    """One inner bolt of a task's chain."""

    def __init__(self, around: Around, head: int, task: int, execution: Execution) -> None:
        topology = around.topology
        self.head = topology.component_of(head)
        self.task = task
        self.component = topology.component_of(task)
        self._paused = around.paused
        (subscription,) = topology.bolts[self.component].subscriptions
        tasks = topology.task_ids(self.component)
        self.targets = frozenset(subscription.grouping.receivers(tasks))
        self.copy = WorkingCopy(topology, task, around.config, around.key, None, _wake_nobody)
        # Tuples are emitted in the head's process: its tasks are the local ones.
        beside = around.beside(head)
        execution = around.traced(execution, task)
        self.setup = StepSetup(around.run, topology, task, execution, self.copy, beside)
        self.tell_raised = around.counting.noting(task, self.component)
        self.prepared = False
        # True if the bolt's own tasks do all its work, because its attributes may change.
        self.closed = False
        # True until a step has shown how long the bolt's tuples take.
        self.trying = True
        self._begins_at = self._since = float("-inf")
        self._pause_s = _FIRST_PAUSE_S

    def prepare(self) -> None:
        """Make the copy of the bolt, unless an attribute may change."""
        if isinstance(self.copy.ready(), BaseException):
            return  # the step fails its tuples
        self.prepared = True
        if not keeps_nothing(self.copy.attributes()):
            self.close()

    def close(self) -> None:
        """Leave all tuples to the bolt's own tasks from now on."""
        self.closed = True
        self.copy.drop()

    def chains(self, now: float) -> bool:
        """Return True if the head may execute tuples of the bolt now."""
        return not self.closed and now >= self._begins_at and self.component not in self._paused

    def tries(self, now: float) -> bool:
        """Return True if the next step should be small."""
        return self.trying and self.chains(now)

    def took(self, tuples: int, seconds: float, now: float) -> None:
        """Note the time of a step: a slow bolt goes back to its own tasks for a while."""
        if seconds < max(_QUICK_S, _SLOW_S * tuples):
            return
        was_long = now - self._since > _SOON * self._pause_s
        self._pause_s = _FIRST_PAUSE_S if was_long else min(2 * self._pause_s, _LONGEST_PAUSE_S)
        self._begins_at = self._since = now + self._pause_s
        self.trying = True


class _TimeLeft:
    """The time of one inner step."""

    def __init__(
        self, clock: Callable[[], float], slices: Slices, now: float, until: float
    ) -> None:
        self.clock = clock
        self._slices = slices
        self._began = self._now = now
        self._until = until
        self._quick_until = min(until, now + _QUICK_S)
        self.begun = 0
        self.asked_back = False

    @property
    def lasted_s(self) -> float:
        """Time from the first call of ``may`` to the last."""
        return self._now - self._began

    def may(self) -> bool:
        """Return True if the step may execute another tuple."""
        # The time counts as that of the head's tuples, and the head's watchers see it.
        self._now = self._slices.asked_at = now = self.clock()
        if self._slices.gave_back:
            return False
        if now < self._quick_until:
            return True
        return now < self._until and now - self._began < _SLOW_S * self.begun


def _inner_step(link: _Link, number: int, chunks: Sequence[Chunk]) -> Step:
    shares = [
        Share(OpenEntry("", chunk, 0, rows), rows)
        for chunk in chunks
        for rows in [np.arange(chunk.values.num_rows)]
    ]
    step = Step(link.setup, number, shares, (), None)
    step.record.tell_raised = link.tell_raised
    step.inner = True
    step.beyond = Beyond()
    return step


def _chunk(source: Step, departure: Departure) -> Chunk:
    """Return emissions as the next bolt receives them."""
    route = Route(
        component=source.record.component,
        stream=departure.stream,
        source_task=source.task,
        target_task=departure.target,
    )
    return Chunk(route=route, values=departure.values, lineage=departure.lineage)


def _add(source: Step, step: Step, done: Done) -> None:
    """Add the effects of an inner step to the step around it."""
    if source.beyond is None:
        return
    effects = Beyond() if step.beyond is None else step.beyond
    effects.failures = list(done.failures)
    # Acked tuples cancel out of their trees; the others stay in them.
    tuples = len(step.lineage.counts)
    if len(done.record.acked) < tuples:
        rows = np.setdiff1d(np.arange(tuples), done.record.acked, assume_unique=True)
        effects.lineages.append(select(step.lineage, rows))
    source.beyond.add(effects)


def _rows(departures: Sequence[Departure]) -> int:
    return sum([one.values.num_rows for one in departures])


def _split(
    departures: Sequence[Departure], rows: int
) -> tuple[Sequence[Departure], Sequence[Departure]]:
    """Return the first rows, and the others."""
    if rows == _rows(departures):
        return departures, ()
    first: list[Departure] = []
    others: list[Departure] = []
    for one in departures:
        count = one.values.num_rows
        here = max(0, min(count, rows))
        rows -= here
        if here:
            first.append(_slice(one, 0, here))
        if here < count:
            others.append(_slice(one, here, count))
    return first, others


def _slice(departure: Departure, first: int, end: int) -> Departure:
    values = departure.values.slice(first, end - first)
    return replace(departure, values=values, lineage=departure.lineage.slice(first, end))


def _wake_nobody() -> None:
    """Do nothing: no thread acks or fails tuples of a ``BasicBolt``."""
