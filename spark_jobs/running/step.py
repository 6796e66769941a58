"""One step of a bolt task: tuples in, the bolt, and all that leaves at the commit.

Nothing here talks to Redis, but for the state of a stateful bolt, which begins with the step and is
read while the bolt works. ``Slices`` says how large a step is, and when the next one may begin.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Any

import numpy as np

from tiercel.acker.ids import mix, mix_array
from tiercel.acker.inbox.chunk import (
    PARCEL_BYTES,
    Chunk,
    Lineage,
    Parcel,
    Route,
    encode_parts,
    parcels_of,
)
from tiercel.acker.ledger import Failure, Ids, Updates
from tiercel.spark_jobs.emitting.fold import (
    Departure,
    fold,
    join_lineages,
    roots_of,
    select,
    without_trees,
)
from tiercel.spark_jobs.emitting.outputs import Outputs
from tiercel.spark_jobs.emitting.record import Item, Record
from tiercel.spark_jobs.running.backlog import Share, chunks_of
from tiercel.spark_jobs.running.copy import WorkingCopy
from tiercel.spark_jobs.running.states import TaskStates
from tiercel.spark_jobs.suspects.notes import Watch
from tiercel.spark_jobs.topology.graph import Topology, cycle_of

# Asked before each tuple: True if the step goes on with it.
May = Callable[[], bool]
# Returns the rows that failed and are tried again where they are.
Again = Callable[[Record, Lineage], Sequence[int]]

# After this long no further tuple is begun; later where a step costs much itself, so that this
# takes one part in ten of the time.
_STEP_S = 0.02
_TIMES = 9
_LONGEST_STEP_S = 0.5
_FIRST = 64
_LARGEST = 8_000
# Steps of a task to which several chunks come at a time begin no sooner: chunks that come
# meanwhile share one commit. Where each comes alone it would wait for nothing.
_BETWEEN_S = 0.01
_LONGEST_BETWEEN_S = 0.05
_ALONE = 1
# Commits take one part in this many of a task's time, where nothing waits: on a busy machine
# steps are larger.
_OF_THE_TIME = 3
# Part of a step's time per tuple by which a quicker one lowers the expected time of the next.
_NEWS = 0.25
# Sizes of steps are told apart from this factor on.
_ANOTHER_SIZE = 1.5
# Full steps after which a larger claim is tried that should not fit: at first, and in the end.
_FIRST_TRY = 4
_RAREST_TRY = 256
# An inbox that was empty is not looked at again sooner, while there is other work.
_LOOK_S = 0.01


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Runs the bolts of one kind over the input of a step.

    All else about a step is the same for all bolts: its input, the seeds of its tuples, what leaves
    and in which order. ``BoltKind`` (kind.py) says where the input comes from.
    """

    # Has the input of a step, as tuples or as rows, and all that the bolt did.
    record: type[Record]
    # ``execute(bolt, step)`` gives the input to the bolt, then flushes it, and returns whether the
    # copy of the bolt can still be trusted. Errors of the bolt fail tuples, and are never raised
    # here. ``Step.may`` is asked before each tuple, and ``Step.noting`` sees each before the bolt
    # does: ``Step.input`` sees to both for a bolt that is called for each tuple.
    execute: Callable[[Any, Step], bool]
    # ``departures(record, lineage, seeds)`` returns which emissions leave.
    departures: Callable[[Any, Lineage, Ids], Sequence[Departure]]
    # True if the bolt is given its whole input in one call, which no clock can cut.
    at_once: bool = False
    # Of a bolt with a state: makes the states of one step.
    states: type[TaskStates] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """Effects of a step, ready to be committed."""

    record: Record
    lineage: Lineage
    # Numbers of tuples: of the shares, and of the first ones of them, which were executed.
    offered: int
    executed: int
    # True if the tick was executed, which comes last.
    ticked: bool
    # Parcels of one target in the order of their parts.
    parcels: Sequence[Parcel]
    updates: Updates
    failures: Sequence[Failure]
    # None: it is as it was.
    snapshot: bytes | None
    # Time from the beginning of ``execute`` to the ack, summed over the acked tuples.
    process_ns: int = 0
    # The input, with the tuples that were not executed.
    chunks: Sequence[Chunk] = ()
    # Numbers of the tuples that failed and are tried again where they are: the step does not cover
    # them.
    again: Sequence[int] = ()

    def roots(self, row: int) -> list[int]:
        """The roots of one tuple of the input."""
        return roots_of(self.lineage, row)


class StepSetup:
    """Everything that the steps of one bolt task share: its outputs, its copy, the
    places of the targets.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - everything that steps share
        self,
        run: str,
        topology: Topology,
        task: int,
        execution: Execution,
        copy: WorkingCopy,
        local: AbstractSet[int],
    ) -> None:
        """``local`` are the bolt tasks in the process of this one."""
        self.salt = zlib.crc32(run.encode())
        self.task = task
        self.component = topology.component_of(task)
        self.execution = execution
        self.copy = copy
        self.outputs = Outputs(topology, task, local)
        # Tasks that this one must never wait for: they lie on a cycle with it.
        self.unbounded = cycle_of(topology, task)


class Step:
    """The work of one step: made of its input, executed once. One thread only."""

    # Ends the step before the tuple for which it says no; None: all tuples are executed.
    may: May | None = None
    # Sees each tuple before the bolt does; None: nothing is noted.
    noting: Watch | None = None
    # Returns the rows that failed and are tried again where they are; None: there are none.
    _again: Again | None = None

    def __init__(
        self,
        setup: StepSetup,
        number: int,
        shares: Sequence[Share],
        ticks: Sequence[Chunk],
        states: TaskStates | None,
    ) -> None:
        self._setup = setup
        self.task = setup.task
        self.states = states
        self._bolt = setup.copy.ready()
        self._chunks, self._offered = chunks_of(shares)
        self._chunks += ticks
        kept = setup.copy.held
        held = [kept.lineage] if kept.tuples else []
        self.lineage = join_lineages([*held, *map(attrgetter("lineage"), self._chunks)])
        self._seeds = self.lineage.seeds
        salt = mix(mix(setup.salt ^ self.task) ^ number)
        untracked = (self.lineage.counts == 0).nonzero()[0]
        seeds = self._seeds
        if untracked.size:
            seeds = seeds.copy()
            seeds[untracked] = mix_array(untracked.astype(np.uint64) + np.uint64(salt))
        setup.outputs.clear()
        # Has the tuples that the task holds and then its input, in the order of the lineage.
        self.record = setup.execution.record(
            setup.component, setup.outputs, frozenset(untracked.tolist()), salt
        )
        self.record.answers = setup.copy.answers
        self.record.receive(self._chunks, seeds, kept.tuples)
        # True once the bolt has been called: before that the step may wait for its turn.
        self.at_work = False

    def retry_in_place(self, again: Again) -> None:
        """Let tuples that fail stay in the inbox, where ``again`` says so: of what they emitted
        nothing leaves.
        """
        self._again = again
        self.record.in_order = True

    def roots(self, row: int) -> list[int]:
        """The roots of one tuple of the input."""
        return roots_of(self.lineage, row)

    def has(self, identities: AbstractSet[int]) -> bool:
        """Return True if one of these tuples is in the input."""
        return bool(identities) and not identities.isdisjoint(self._seeds.tolist())

    @property
    def identity(self) -> int:
        """Of all input of the step; of a step of one tuple, the tuple's."""
        return int(np.bitwise_xor.reduce(self._seeds[self.record.held :], initial=np.uint64(0)))

    @property
    def all_roots(self) -> list[int]:
        """The roots of all input of the step."""
        return list(
            dict.fromkeys(
                root
                for row in range(self.record.held, len(self._seeds))
                for root in self.roots(row)
            )
        )

    def refuse(self, reason: str) -> Done:
        """Fail the input without executing it."""
        self.record.abort(reason)
        return self._done()

    def execute(self, may: May | None = None, noting: Watch | None = None) -> Done:
        """Run the bolt over the input, until ``may`` says no; ``noting`` looks for a tuple that
        kills the process.
        """
        if isinstance(self._bolt, BaseException):
            self.record.abort(*self.record.blame(self._bolt, "prepare"))
            return self._done()
        self.may = may
        self.noting = noting
        self.at_work = True
        self.record.began_ns = time.perf_counter_ns()
        if not self._setup.execution.execute(self._bolt, self):
            self._setup.copy.drop()
        return self._done()

    def input(self, flush: Callable[[], bool]) -> Iterator[Any]:
        """Yield the tuples to execute one by one, until ``may`` says no."""
        return self._until() if self.noting is None else self.noting(self._until(), flush)

    def _until(self) -> Iterator[Item]:
        """Yield one tuple at least; tuples after a no, or after large output, are left to a later
        step.
        """
        record = self.record
        may = self.may
        for at, item in enumerate(islice(record.tuples, record.held, None)):
            if may is not None and (not may() or record.size >= PARCEL_BYTES) and at:
                self._leave_out(at)
                return
            yield item
        if may is not None:
            may()

    def _leave_out(self, first: int) -> None:
        """Take the input from its ``first``-th tuple on out of this step."""
        kept = self.record.held + first
        self.record.tuples = self.record.tuples[:kept]
        self.lineage = select(self.lineage, np.arange(kept))
        self._seeds = self._seeds[:kept]

    def _done(self) -> Done:
        record = self.record
        # Before the snapshot: a value of a wrong type fails its anchors, which are then not held.
        parcels, children = self._parcels()
        snapshot = self._setup.copy.snapshot(record, self.lineage)
        if record.aborted:
            # The copy cannot be kept: the input fails, and nothing that it did leaves.
            parcels, children = [], []
            if self.states is not None:
                self.states.forget(self.task)
        again: Sequence[int] = ()
        if self._again is not None and record.reasons:
            again = self._again(record, self.lineage)
            self.lineage = without_trees(self.lineage, again)
        lineage = self.lineage
        executed = record.executed
        process_ns = record.process_ns
        updates = fold(lineage, np.asarray(record.acked, np.int64), children, record.held)
        failures = self._failures() if record.reasons else ()
        return Done(
            record=record,
            lineage=lineage,
            offered=self._offered,
            executed=min(self._offered, executed),
            ticked=executed > self._offered,
            parcels=parcels,
            updates=updates,
            failures=failures,
            snapshot=snapshot,
            chunks=self._chunks,
            process_ns=process_ns,
            again=[row - record.held for row in again] if again else (),
        )

    def _failures(self) -> list[Failure]:
        record = self.record
        return [
            record.failure(row, root, self.task)
            for row in record.reasons
            for root in self.roots(row)
        ]

    def _parcels(self) -> tuple[list[Parcel], list[Lineage]]:
        """Return the emissions by target, and their lineages."""
        packed: dict[int, list[tuple[bytes, int]]] = {}
        children: list[Lineage] = []
        for departure in self._setup.execution.departures(self.record, self.lineage, self._seeds):
            children.append(departure.lineage)
            route = Route(
                component=self._setup.component,
                stream=departure.stream,
                source_task=self.task,
                target_task=departure.target,
            )
            chunk = Chunk(route=route, values=departure.values, lineage=departure.lineage)
            packed.setdefault(departure.target, []).extend(encode_parts(chunk))
        unbounded = self._setup.unbounded
        parcels: list[Parcel] = []
        for target, chunks in packed.items():
            parcels += parcels_of(target, chunks, bounded=target not in unbounded)
        return parcels, children


class Slices:
    """Size of the steps of one bolt task, and the time between them, in seconds on its clock.

    A step should last some milliseconds: long enough to be worth its commit, short enough that
    acks of finished tuples leave soon. So it is cut by the clock after a tuple, and its size
    follows what fitted. Where each step costs something of its own, it may last in proportion.

    The time of a step has two parts. That of its calls is measured, and put down to the tuples. The
    rest (``flush``, the one call of an ``ArrowBolt``, packing) is split by comparing steps of two
    sizes: its growth is put down to the tuples, and what remains to the step. Commits do not count.
    """

    def __init__(self, clock: Callable[[], float], *, arrow: bool) -> None:
        """A step of an ``ArrowBolt`` cannot be cut: its size alone bounds it."""
        self._clock = clock
        self._can_be_cut = not arrow
        # Tuples that the next step may take.
        self.size = _FIRST
        self._began = self._executed = clock()
        self._work_began: float | None = None
        # The last time at which it was asked whether the step goes on, or began.
        self.asked_at = self._began
        # Number of the step's tuples that the bolt has begun.
        self.begun = 0
        # True while another thread may give back the tuples behind these: the bolt then waits
        # between two tuples. It holds ``between`` meanwhile.
        self.asked_back = False
        self.gave_back = False
        self.between = threading.Lock()
        self._look_at = self._began
        self._spacing = Spacing(times=_OF_THE_TIME, longest_s=_LONGEST_BETWEEN_S)
        self._least_s = 0.0
        # Tuples that the task can execute now, within one step. Of unknown work no more than one:
        # others may be free.
        self.claimable = 1
        # Tuples beyond these that are worth a longer step, if the line has as many for each task.
        self.worthwhile = 0
        # Time of one tuple as it is to be expected: a slow one counts at once, quick ones in time.
        self._tuple_s = 0.0
        self._rest = _Rest()
        self._longest_s = _STEP_S
        self._try_after = self._until_try = _FIRST_TRY

    def wanted(self, waiting: int) -> int:
        """Return how many tuples to take from the inbox, where this many wait already; 0: none."""
        if not waiting:
            return 2 * self.size
        if waiting >= self.size or self._clock() < self._look_at:
            return 0
        return 2 * self.size - waiting

    def rest_s(self) -> float:
        """Return how long to wait before looking into an empty inbox: until the next step may
        begin.
        """
        return max(0.0, self._began + self._spacing.between_s(self._least_s) - self._clock())

    def took(self, entries: int) -> None:
        """Note how many entries the inbox had."""
        if not entries:
            self._look_at = self._clock() + _LOOK_S
        else:
            self._least_s = _BETWEEN_S if entries > _ALONE else 0.0

    def begin(self) -> None:
        """A step begins. Its tuples are not executed yet: their data is fetched before."""
        self.asked_at = self._began = self._clock()
        self._work_began = None
        self.begun = 0
        self.gave_back = False

    def may(self) -> bool:
        """Return True if the step goes on with another tuple, and count the tuple as begun.

        Ask before each, also before the first, and once more after the last.
        """
        begun = self.begun = self.begun + 1
        if self.asked_back:
            with self.between:
                pass
        self.asked_at = now = self._clock()
        if self._work_began is None:
            self._work_began = now
        if now - self._work_began < self._longest_s and not self.gave_back:
            return True
        if begun > 1:
            self.begun = begun - 1
        return False

    def ended(self, executed: int, offered: int) -> None:
        """Note how many of the offered tuples the bolt executed. Call it before the commit."""
        self._executed = self._clock()
        began = self._began if self._work_began is None else self._work_began
        took_s = self._executed - began
        if executed:
            # Of a bolt that is not asked for each tuple all of it is the rest.
            rest_s = self._executed - max(began, self.asked_at)
            self._rest.saw(executed, rest_s)
            self._learn(executed, (took_s - rest_s) / executed)
        longest_s = self._longest_s + self._rest.step_s
        if took_s > 2 * longest_s and not self._can_be_cut:
            self.size = max(1, executed // 2)
        elif executed < offered:
            self.size = max(1, executed)
        elif executed >= self.size and took_s <= longest_s:
            self.size = min(2 * self.size, _LARGEST)
        self.size = max(self.size, self.claimable + self.worthwhile)

    def _learn(self, executed: int, tuple_s: float) -> None:
        self._tuple_s = max(tuple_s, self._tuple_s + _NEWS * (tuple_s - self._tuple_s))
        expected_s = self._tuple_s + self._rest.tuple_s
        self._longest_s = min(max(_STEP_S, _TIMES * self._rest.step_s), _LONGEST_STEP_S)
        before = self.claimable + self.worthwhile
        full = executed >= before
        most = min(_fitting(self._longest_s, expected_s), 2 * before if full else before)
        self.claimable = min(most, _fitting(_STEP_S, expected_s))
        if full:
            most = self._tried(before, most)
        self.worthwhile = most - self.claimable

    def _tried(self, before: int, most: int) -> int:
        """Return how many to claim after a full step: now and then twice as many as should fit,
        for the rest may be the step's and not theirs. Never of calls that are slow themselves.
        """
        if most > before:
            self._try_after = self._until_try = _FIRST_TRY
        elif 2 * most <= _fitting(self._longest_s, self._tuple_s):
            self._until_try -= 1
            if self._until_try <= 0:
                self._try_after = min(2 * self._try_after, _RAREST_TRY)
                self._until_try = self._try_after
                return 2 * most
        return most

    def committed(self) -> None:
        """Note that the step is committed."""
        self._spacing.took(self._clock() - self._executed)


class _Rest:
    """Time of a step beyond its calls: a part of the step's, and a part for each tuple."""

    def __init__(self) -> None:
        self.step_s = 0.0
        self.tuple_s = 0.0
        # The size and the time of the last steps of about one size, and of those before them.
        self._now = self._before = (0.0, 0.0)

    def saw(self, tuples: int, seconds: float) -> None:
        size, mean_s = self._now
        expected_s = self.step_s + self.tuple_s * tuples
        if seconds > 2 * expected_s and tuples < max(size, self._before[0]):
            # The work has changed, and may be slow now: nothing is known but the mean.
            self._before, self._now = (0.0, 0.0), (float(tuples), seconds)
        elif size / _ANOTHER_SIZE <= tuples <= size * _ANOTHER_SIZE:
            size += _NEWS * (tuples - size)
            mean_s += _NEWS * (seconds - mean_s)
            self._now = size, mean_s
        else:
            self._before, self._now = self._now, (float(tuples), seconds)
        self._split()

    def _split(self) -> None:
        (size, seconds), (other, others_s) = self._now, self._before
        # Sizes that have come near to each other say nothing new.
        if abs(size - other) * 4 > size:
            self.tuple_s = max(0.0, min(seconds / size, (seconds - others_s) / (size - other)))
        self.step_s = max(0.0, seconds - self.tuple_s * size)


def _fitting(seconds: float, tuple_s: float) -> int:
    """Return how many tuples of this time are executed within the seconds; one at least."""
    return max(1, min(int(seconds / tuple_s), _LARGEST)) if tuple_s else _LARGEST


class Spacing:
    """Time between two beginnings, in seconds: it follows their cost.

    A busy machine, on which everything takes longer, is then given larger pieces and not more of
    them.
    """

    def __init__(self, *, times: float, longest_s: float) -> None:
        """``times`` as long as the costs are, and ``longest_s`` at most."""
        self._times = times
        self._longest_s = longest_s
        self._cost_s = 0.0

    def took(self, seconds: float) -> None:
        """Note what one beginning cost. A moment of trouble counts little."""
        self._cost_s += (min(seconds, self._longest_s) - self._cost_s) / 8

    def between_s(self, least_s: float) -> float:
        """Time from one beginning to the next, ``least_s`` at least."""
        return min(max(least_s, self._times * self._cost_s), self._longest_s)
