"""One step of a bolt task: tuples in, the bolt, and all that leaves at the commit.

Nothing here talks to Redis, but for the state of a stateful bolt, which begins with the step and is
read while the bolt works.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import numpy as np

from tiercel.acker.ids import mix, mix_array
from tiercel.acker.inbox.chunk import Chunk, Lineage, Route, encode_parts
from tiercel.acker.inbox.records import PARCEL_BYTES, Parcel, parcels_of
from tiercel.acker.ledger import Failure, Updates
from tiercel.spark_jobs.bolts.arrow_bolt import ArrowBolt
from tiercel.spark_jobs.bolts.async_bolt import AsyncBolt
from tiercel.spark_jobs.bolts.batch_bolt import BatchBolt
from tiercel.spark_jobs.bolts.bolt import BasicBolt
from tiercel.spark_jobs.bolts.kinds import StepBolt
from tiercel.spark_jobs.bolts.stateful_bolt import StatefulBolt
from tiercel.spark_jobs.bolts.tuples import Tuple, tuples_of
from tiercel.spark_jobs.emitting.departures import Departure, departures
from tiercel.spark_jobs.emitting.fold import fold, join_lineages, roots_of, row_seeds, select
from tiercel.spark_jobs.emitting.outputs import Outputs
from tiercel.spark_jobs.emitting.record import Item, Record
from tiercel.spark_jobs.running.arrow_execution import ArrowRecord, arrow_departures, execute_arrow
from tiercel.spark_jobs.running.backlog import Share
from tiercel.spark_jobs.running.batch_execution import execute_batches
from tiercel.spark_jobs.running.copy import WorkingCopy
from tiercel.spark_jobs.running.counts import sources_of
from tiercel.spark_jobs.running.execution import execute_bolt, fail_all
from tiercel.spark_jobs.running.states import TaskStates
from tiercel.spark_jobs.suspects.notes import Watch
from tiercel.spark_jobs.topology.graph import Topology

# Says before each tuple whether the step goes on with it.
May = Callable[[], bool]
# A ``Watch`` over an iterable, which may end early.
Noting = Callable[..., Iterator[Item]]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOf:
    """Names one step of one bolt task."""

    run: str
    task: int
    number: int


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
    # Those of one target in the order of their parts.
    parcels: Sequence[Parcel]
    updates: Updates
    failures: Sequence[Failure]
    # None: it is as it was.
    snapshot: bytes | None
    sources: dict[str, int] = field(default_factory=dict)

    def roots(self, row: int) -> list[int]:
        """The roots of one tuple of the input."""
        return roots_of(self.lineage, row)


class StepSetup:
    """Everything that the steps of one bolt task share: its outputs, its copy, the
    places of the targets.
    """

    def __init__(
        self,
        topology: Topology,
        task: int,
        copy: WorkingCopy,
        unbounded: AbstractSet[int],
        local: AbstractSet[int],
    ) -> None:
        """``unbounded`` are the tasks that this one must never wait for: they lie on
        a cycle with it.

        ``local`` are those in its process.
        """
        self.topology = topology
        self.task = task
        self.component = topology.component_of(task)
        self.copy = copy
        self.outputs = Outputs(topology, task, local)
        self.unbounded = unbounded
        bolt = topology.bolts[self.component].bolt
        self.basic = isinstance(bolt, BasicBolt | AsyncBolt)
        self.batch = isinstance(bolt, BatchBolt)
        self.arrow = isinstance(bolt, ArrowBolt)
        self.stateful = isinstance(bolt, StatefulBolt)


class Step:
    """The work of one step: made of its input, executed once. One thread only."""

    def __init__(
        self,
        setup: StepSetup,
        of: StepOf,
        shares: Sequence[Share],
        ticks: Sequence[Chunk],
        states: TaskStates | None,
    ) -> None:
        self._setup = setup
        self._of = of
        self._states = states
        self._bolt = setup.copy.ready()
        self._chunks = [*(share.chunk for share in shares), *ticks]
        self._held = setup.copy.held
        self._offered = sum([share.rows.size for share in shares])
        held = [self._held.lineage] if self._held.tuples else []
        self.lineage = join_lineages([*held, *[chunk.lineage for chunk in self._chunks]])
        self._seeds = row_seeds(self.lineage)
        setup.outputs.clear()
        self.record = self._loaded()
        # True once the bolt has been called: before that the step may wait for its turn.
        self.at_work = False

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

    def execute(self, may: May | None = None, noting: Noting | None = None) -> Done:
        """Run the bolt over the input, until ``may`` says no; ``noting`` looks for a tuple that
        kills the process.
        """
        record = self.record
        if isinstance(self._bolt, BaseException):
            fail_all(record, self._bolt, "prepare")
            return self._done()
        self._run(self._bolt, may, noting)
        return self._done()

    def _run(self, bolt: StepBolt, may: May | None, noting: Noting | None) -> None:
        record = self.record
        self.at_work = True
        if isinstance(bolt, ArrowBolt):
            trusted = execute_arrow(bolt, cast("ArrowRecord", record), cast("Watch | None", noting))
        elif isinstance(bolt, BatchBolt):
            # Where each tuple is noted, each is a call, and the step is cut as others are.
            cut = partial(self._while_it_may, may, noting) if may and noting else noting
            trusted = execute_batches(bolt, record, cast("Watch | None", cut))
        else:
            watch = cast(
                "Watch | None", partial(self._while_it_may, may, noting) if may else noting
            )
            if self._states is not None and isinstance(bolt, StatefulBolt):
                with self._states.lent(self._of.task, bolt, record):
                    trusted = execute_bolt(bolt, record, self._setup.copy.answers, watch)
            else:
                trusted = execute_bolt(bolt, record, self._setup.copy.answers, watch)
        if not trusted:
            self._setup.copy.drop()

    def _while_it_may(
        self, may: May, noting: Noting | None, items: Sequence[Tuple], flush: Callable[[], bool]
    ) -> Iterator[Item]:
        """One tuple at least; those after a no, or after large output, are left to a later step."""
        some = self._until(may, items)
        return some if noting is None else noting(some, flush)

    def _until(self, may: May, items: Sequence[Tuple]) -> Iterator[Tuple]:
        for at, item in enumerate(items):
            if (not may() or self.record.size >= PARCEL_BYTES) and at:
                self._leave_out(at)
                return
            yield item
        may()

    def _leave_out(self, first: int) -> None:
        """Take the input from its ``first``-th tuple on out of this step."""
        kept = self.record.held + first
        self.record.tuples = self.record.tuples[:kept]
        self.lineage = select(self.lineage, np.arange(kept))
        self._seeds = self._seeds[:kept]

    def _loaded(self) -> Record:
        """The record, with what the task holds and then its input, in the order of the lineage."""
        salt = mix(mix(zlib.crc32(self._of.run.encode()) ^ self._of.task) ^ self._of.number)
        untracked = (self.lineage.counts == 0).nonzero()[0]
        seeds = self._seeds
        if untracked.size:
            seeds = seeds.copy()
            seeds[untracked] = mix_array(untracked.astype(np.uint64) + np.uint64(salt))
        no_tree = frozenset(untracked.tolist())
        setup = self._setup
        if setup.arrow:
            return self._rows(ArrowRecord(setup.component, setup.outputs, no_tree, salt, seeds))
        identities: list[int] = seeds.tolist()
        record = Record(setup.component, setup.outputs, no_tree, salt)
        row = len(self._held.tuples)
        for at, tup in enumerate(self._held.tuples):
            tup.row = at
            tup.seed = identities[at]
            tup.record = record
        record.answers = setup.copy.answers
        record.tuples = list(self._held.tuples)
        record.held = row
        for chunk in self._chunks:
            record.tuples += tuples_of(chunk, row, identities, record)
            row += chunk.values.num_rows
        return record

    def _rows(self, record: ArrowRecord) -> ArrowRecord:
        """The record of a bolt that is given rows and no tuples."""
        row = 0
        for chunk in self._chunks:
            record.receive(chunk, row)
            row += chunk.values.num_rows
        return record

    def _done(self) -> Done:
        record = self.record
        lineage = self.lineage
        executed = record.executed
        # Before the snapshot: a value of a wrong type fails its anchors, which are then not held.
        parcels, children = self._parcels()
        snapshot = self._setup.copy.snapshot(record, lineage)
        if record.aborted:
            # The copy cannot be kept: the input fails, and nothing that it did leaves.
            parcels, children = [], []
            if self._states is not None:
                self._states.forget(self._of.task)
        updates = fold(lineage, np.asarray(record.acked, np.int64), children, record.held)
        failures = [
            record.failure(row, root, self._of.task)
            for row in record.reasons
            for root in roots_of(lineage, row)
        ]
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
            sources=dict(sources_of(self._chunks)),
        )

    def _parcels(self) -> tuple[list[Parcel], list[Lineage]]:
        """Return what was emitted, by target, and the lineages of all of it."""
        packed: dict[int, list[tuple[bytes, int]]] = {}
        children: list[Lineage] = []
        for departure in self._departures():
            children.append(departure.lineage)
            route = Route(
                component=self._setup.component,
                stream=departure.stream,
                source_task=self._of.task,
                target_task=departure.target,
            )
            chunk = Chunk(route=route, values=departure.values, lineage=departure.lineage)
            packed.setdefault(departure.target, []).extend(encode_parts(chunk))
        unbounded = self._setup.unbounded
        parcels = [
            parcel
            for target, chunks in packed.items()
            for parcel in parcels_of(target, chunks, bounded=target not in unbounded)
        ]
        return parcels, children

    def _departures(self) -> Sequence[Departure]:
        if isinstance(self.record, ArrowRecord):
            return list(arrow_departures(self.record, self.lineage, self._seeds))
        basic = self._setup.basic
        batch = self._setup.batch
        return departures(self.record, self.lineage, self._seeds, basic=basic, batch=batch)
