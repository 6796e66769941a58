"""One step of a bolt task: tuples in, the bolt, and all that leaves at the commit.

Nothing here talks to Redis, but for the state of a stateful bolt, which begins with the step and is
read while the bolt works.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
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
    row_seeds,
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

# Says before each tuple whether the step goes on with it.
May = Callable[[], bool]
# Returns the rows that failed and are tried again where they are.
Again = Callable[[Record, Lineage], Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Runs the bolts of one kind over the input of a step.

    All else about a step is the same for all bolts: its input, the seeds of its tuples, what leaves
    and in which order. ``BoltKind`` (kind.py) says where the input comes from.
    """

    # Has the input of a step, as tuples or as rows, and all that the bolt did.
    record: type[Record]
    # ``execute(bolt, step, may, noting)`` gives the input to the bolt, then flushes it, and returns
    # whether the copy of the bolt can still be trusted. Errors of the bolt fail tuples, and are
    # never raised here. ``may`` is asked before each tuple, and ends the step when it says no
    # (None: all tuples are executed); ``noting`` sees each tuple before the bolt does (None:
    # nothing is noted). ``Step.input`` does both for a bolt that is called for each tuple.
    execute: Callable[[Any, Step, May | None, Watch | None], bool]
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
        self._seeds = row_seeds(self.lineage)
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
        self.at_work = True
        if not self._setup.execution.execute(self._bolt, self, may, noting):
            self._setup.copy.drop()
        return self._done()

    def input(
        self, may: May | None, noting: Watch | None, flush: Callable[[], bool]
    ) -> Iterator[Any]:
        """Yield the tuples to execute one by one, until ``may`` says no."""
        items = self._until(may)
        return items if noting is None else noting(items, flush)

    def _until(self, may: May | None) -> Iterator[Item]:
        """One tuple at least; those after a no, or after large output, are left to a later step."""
        record = self.record
        for at, item in enumerate(record.fresh):
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
