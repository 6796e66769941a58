"""One step of a bolt task: runs the bolt over its input, and collects the effects for the commit.

Nothing here talks to Redis, except the state of a stateful bolt: it begins with the step and is
read while the bolt executes. ``Slices`` decides the size of a step and the time between steps.
"""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol

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
from tiercel.spark_jobs.tracing.task import StepSpans

log = logging.getLogger(__name__)

# Returns the failed rows to retry in place.
Again = Callable[[Record, Lineage], Sequence[int]]

# A step begins no further tuple after this time. If steps have a high fixed cost, the limit is
# higher, so that the fixed cost is a tenth of the time.
_STEP_S = 0.02
_TIMES = 9
_LONGEST_STEP_S = 0.5
# While tuples are quick, a step may last this multiple of its commit: four ``LONGEST_BETWEEN_S``.
_COMMITS = 4
_QUICK_S = 0.001
_FIRST = 64
_LARGEST = 32_000
# Weight of the latest step in the moving averages.
_NEWS = 0.25
# Step sizes that differ by at most this factor count as one size.
_ANOTHER_SIZE = 1.5
# Number of full steps before a claim above the estimate is tried: at first, and at most.
_FIRST_TRY = 4
_RAREST_TRY = 256
# Time from one call of ``Slices.may`` to the next while tuples are quick.
ASK_S = 0.0005
# While there is other work, an empty inbox is not read again before this time.
_LOOK_S = 0.01
# The fixed cost of steps, or of a spout's batches, takes at most one part in this many of the time.
SHARE = 5
# Longest time from one piece of such work to the next, if more tuples come.
LONGEST_BETWEEN_S = 0.05


class TimeLimit(Protocol):
    """Ends a step between two tuples: the ``Slices`` of a task, or the time left in a chain."""

    begun: int  # number of the step's tuples that the bolt has begun
    # True if ``may`` must be called before the next tuple.
    asked_back: bool
    clock: Callable[[], float]

    def may(self) -> bool:
        """Return True if the step may execute another tuple. See ``Slices.may``."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Runs the bolts of one kind over the input of a step.

    Everything else about a step is the same for all bolts: its input, the seeds of its tuples, the
    effects and their order. ``BoltKind`` (kind.py) provides the input.
    """

    # Type of the record: the input of a step, as tuples or rows, and everything the bolt did.
    record: type[Record]
    # ``execute(bolt, step)`` passes the input to the bolt, flushes the bolt, and returns False if
    # the copy of the bolt can no longer be trusted. The bolt's errors fail tuples and are never
    # raised here. ``Step.slices`` must be asked before each tuple, see ``Step.input``, and
    # ``Step.noting`` must see each tuple before the bolt does.
    execute: Callable[[Any, Step], bool]
    # ``departures(record, lineage, seeds)`` returns the emissions that leave.
    departures: Callable[[Any, Lineage, Ids], Sequence[Departure]]
    # True if the bolt gets its whole input in one call, which the clock cannot cut.
    at_once: bool = False
    # Makes the states of one step, for a bolt with a state.
    states: type[TaskStates] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """Effects of a step, ready to be committed."""

    record: Record
    lineage: Lineage
    # Number of tuples in the shares, and how many of them, from the first on, were executed.
    offered: int
    executed: int
    # True if the tick, which comes last, was executed.
    ticked: bool
    # Parcels for one target are in the order of their parts.
    parcels: Sequence[Parcel]
    updates: Updates
    failures: Sequence[Failure]
    snapshot: bytes | None  # None: unchanged
    # Time from the start of ``execute`` to the ack, summed over the acked tuples.
    process_ns: int = 0
    # The whole input, including tuples that were not executed.
    chunks: Sequence[Chunk] = ()
    # Indices of failed tuples that are retried in place: the step does not cover them.
    again: Sequence[int] = ()

    def roots(self, row: int) -> list[int]:
        """Return the roots of one input tuple."""
        return roots_of(self.lineage, row)


class Beyond:
    """The effects of inner steps, see chain.py, which leave with the step of the head."""

    def __init__(self) -> None:
        # Encoded chunks by target, each with its number of tuples.
        self.packed: dict[int, list[tuple[bytes, int]]] = {}
        # The tuples that stay in their trees.
        self.lineages: list[Lineage] = []
        self.failures: list[Failure] = []

    def add(self, other: Beyond) -> None:
        """Add the effects of another step."""
        for target, chunks in other.packed.items():
            self.packed.setdefault(target, []).extend(chunks)
        self.lineages += other.lineages
        self.failures += other.failures


# Executes some of a step's emissions within the step, and returns the others.
Onward = Callable[[Sequence[Departure]], Sequence[Departure]]
_NO_IDS = np.zeros(0, np.uint64)
NO_UPDATES = Updates(roots=_NO_IDS, xors=_NO_IDS)


class StepSetup:
    """Objects that all steps of one bolt task share."""

    def __init__(  # noqa: PLR0913, PLR0917 - everything that steps share
        self,
        run: str,
        topology: Topology,
        task: int,
        execution: Execution,
        copy: WorkingCopy,
        local: AbstractSet[int],
    ) -> None:
        """``local`` has the bolt tasks in this task's process."""
        self.salt = zlib.crc32(run.encode())
        self.task = task
        self.component = topology.component_of(task)
        self.execution = execution
        self.copy = copy
        self.outputs = Outputs(topology, task, local)
        # Tasks that this task must never wait for: they are on a cycle with it.
        self.unbounded = cycle_of(topology, task)


class Step:
    """The work of one step, executed once. One thread only."""

    # May end the step before a tuple; None: all tuples are executed.
    slices: TimeLimit | None = None
    # Notes each tuple before the bolt gets it; None: tuples are not noted.
    noting: Watch | None = None
    # Returns the failed rows to retry in place; None: failed rows are not retried in place.
    _again: Again | None = None
    # Executes emissions of the bolt within the step; None: all of them leave.
    onward: Onward | None = None
    # Has spans of tuples whose trace is recorded; None: no tuple's is.
    spans: StepSpans | None = None
    # The effects of the steps within this one; None: there are none.
    beyond: Beyond | None = None
    # True for a step within another one, which sends its effects.
    inner = False
    waits = False

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
        bolt = setup.copy.bolt
        self._bolt = setup.copy.ready() if bolt is None else bolt
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
        # Has the held tuples followed by the input, in the order of the lineage.
        self.record = setup.execution.record(
            setup.component, setup.outputs, frozenset(untracked.tolist()), salt
        )
        self.record.answers = setup.copy.answers
        self.record.receive(self._chunks, seeds, kept.tuples)
        # True once the bolt is called; until then, the step may be waiting for its turn.
        self.at_work = False

    def retry_in_place(self, again: Again) -> None:
        """Keep failed tuples that ``again`` returns in the inbox, and drop their emissions."""
        self._again = again
        self.record.in_order = True

    def roots(self, row: int) -> list[int]:
        """Return the roots of one input tuple."""
        return roots_of(self.lineage, row)

    def has(self, identities: AbstractSet[int]) -> bool:
        """Return True if the input has a tuple with one of these identities."""
        return bool(identities) and not identities.isdisjoint(self._seeds.tolist())

    @property
    def identity(self) -> int:
        """Identity of the step's input; for a single tuple, the tuple's own identity."""
        return int(np.bitwise_xor.reduce(self._seeds[self.record.held :], initial=np.uint64(0)))

    @property
    def all_roots(self) -> list[int]:
        """Roots of the step's input, each once."""
        rows = range(self.record.held, len(self._seeds))
        return list(dict.fromkeys([root for row in rows for root in self.roots(row)]))

    def log(self, text: str) -> None:
        """Log one of the steps 4 to 6 of docs/one-message.md, one line per root."""
        for root in self.all_roots:
            log.debug(text, self.task, self._setup.component, root, extra={"event": "message_step"})

    def refuse(self, reason: str) -> Done:
        """Fail the input without executing it."""
        self.record.abort(reason)
        return self._done()

    def execute(self, slices: TimeLimit | None = None, noting: Watch | None = None) -> Done:
        """Run the bolt over the input until ``slices`` end the step; ``noting`` notes each tuple,
        to find one that kills the process.
        """
        if isinstance(self._bolt, BaseException):
            self.record.abort(*self.record.blame(self._bolt, "prepare"))
            return self._done()
        self.slices = slices
        self.noting = noting
        self.at_work = True
        self.record.began_ns = time.perf_counter_ns()
        if not self._setup.execution.execute(self._bolt, self):
            self._setup.copy.drop()
        return self._done()

    def input(self, flush: Callable[[], bool]) -> tuple[Iterable[Any], TimeLimit | None]:
        """Return the tuples to execute, and the slices to ask before each of them, if any.

        Ask as ``_until`` does: it is the same loop for tuples that are noted, which must not be
        noted if they are not executed.
        """
        tuples = self.record.tuples[self.record.held :]
        if self.noting is None:
            return tuples, self.slices
        return self.noting(self._until(tuples, self.slices), flush), None

    def _until(self, tuples: Iterable[Item], slices: TimeLimit | None) -> Iterator[Item]:
        for begun, item in enumerate(tuples, 1):
            if slices is not None:
                slices.begun = begun
                if self.ends(slices):
                    return
            yield item
        if slices is not None:
            slices.may()

    def ends(self, slices: TimeLimit) -> bool:
        """Return True if the tuple that is about to begin, and was counted as begun, is left to a
        later step with all tuples behind it: the time is over or the output is large.

        Never the first tuple of a step.
        """
        begun = slices.begun
        if (slices.may() and self.record.size < PARCEL_BYTES) or begun == 1:
            return False
        slices.begun = begun - 1
        self._leave_out(begun - 1)
        return True

    def _leave_out(self, first: int) -> None:
        """Remove the input from tuple ``first`` on from this step."""
        kept = self.record.held + first
        self.record.tuples = self.record.tuples[:kept]
        self.lineage = select(self.lineage, np.arange(kept))
        self._seeds = self._seeds[:kept]

    def _done(self) -> Done:
        record = self.record
        # Pack before the snapshot: a value of the wrong type fails its anchors, which are then not
        # held.
        parcels, children = self._parcels()
        snapshot = self._setup.copy.snapshot(record, self.lineage)
        if record.aborted:
            # The copy cannot be kept: the input fails, and none of its effects leave.
            parcels, children, self.beyond = [], [], None
            if self.states is not None:
                self.states.forget(self.task)
        again: Sequence[int] = ()
        if self._again is not None and record.reasons:
            again = self._again(record, self.lineage)
            self.lineage = without_trees(self.lineage, again)
        lineage = self.lineage
        executed = record.executed
        process_ns = record.process_ns
        acked = np.asarray(record.acked, np.int64)
        failures = self._failures() if record.reasons else []
        return Done(
            record=record,
            lineage=lineage,
            offered=self._offered,
            executed=min(self._offered, executed),
            ticked=executed > self._offered,
            parcels=parcels,
            updates=NO_UPDATES if self.inner else fold(lineage, acked, children, record.held),
            failures=failures if self.beyond is None else failures + self.beyond.failures,
            snapshot=snapshot,
            chunks=self._chunks,
            process_ns=process_ns,
            again=[row - record.held for row in again] if again else (),
        )

    def _failures(self) -> list[Failure]:
        failed = [(row, root) for row in self.record.reasons for root in self.roots(row)]
        return [self.record.failure(row, root, self.task) for row, root in failed]

    def _parcels(self) -> tuple[list[Parcel], list[Lineage]]:
        """Return the emissions that leave as parcels, and their lineages."""
        leaves = self._setup.execution.departures(self.record, self.lineage, self._seeds)
        if self.onward is not None:
            # It refers to the step: only the garbage collector could free both.
            onward, self.onward = self.onward, None
            leaves = onward(leaves)
        beyond = self.beyond
        packed: dict[int, list[tuple[bytes, int]]] = {} if beyond is None else beyond.packed
        children: list[Lineage] = [] if beyond is None else beyond.lineages
        for departure in leaves:
            children.append(departure.lineage)
            route = Route(
                component=self._setup.component,
                stream=departure.stream,
                source_task=self.task,
                target_task=departure.target,
            )
            chunk = Chunk(route=route, values=departure.values, lineage=departure.lineage)
            packed.setdefault(departure.target, []).extend(encode_parts(chunk))
        parcels: list[Parcel] = []
        if not self.inner:
            unbounded = self._setup.unbounded
            for target, chunks in packed.items():
                parcels += parcels_of(target, chunks, bounded=target not in unbounded)
        return parcels, children


class Slices:
    """Size of the steps of one bolt task, and the time between them, in seconds on its clock.

    A step should last a few milliseconds: long enough to be worth a commit, short enough that acks
    of finished tuples leave soon. So the clock cuts a step between two tuples, and the next step
    has as many tuples as fitted. Steps with a high fixed cost may last longer in proportion.

    The time of a step has two parts. The time of its calls is measured and attributed to the
    tuples. The rest (``flush``, the one call of an ``ArrowBolt``, packing) is split by comparing
    steps of two sizes: the part that grows with the size is attributed to the tuples, the remainder
    to the step. Commits do not count.
    """

    def __init__(self, clock: Callable[[], float], *, arrow: bool) -> None:
        """A step of an ``ArrowBolt`` cannot be cut: only its size bounds it."""
        self.clock = clock
        self._can_be_cut = not arrow
        # Number of tuples that the next step may take.
        self.size = _FIRST
        self._began = clock()
        self._work_began: float | None = None
        self.asked_at = self._began  # time of the last call of ``may`` or ``begin``
        # Number of the step's tuples that the bolt has begun.
        self.begun = 0
        # True while another thread, holding ``between``, may give back the tuples that have not
        # begun, for which the bolt waits between two tuples; and from then on if it gave them back.
        self.asked_back = False
        self.gave_back = False
        self.between = threading.Lock()
        self._look_at = self._began
        self._spacing = Spacing()
        # Number of tuples that the task can execute in one step. Starts at one, while the cost of a
        # tuple is unknown: other tasks may be free.
        self.claimable = 1
        # Number of further tuples worth a longer step, if the line has that many per task.
        self.worthwhile = 0
        # Expected time of one tuple: rises at once, falls gradually.
        self._tuple_s = 0.0
        self._rest = _Rest()
        # Time after which the step begins no further tuple, also once a tuple was slow.
        self._longest_s = self._slow_s = _STEP_S
        self._ends_at = 0.0
        self._try_after = self._until_try = _FIRST_TRY

    def wanted(self, waiting: int) -> int:
        """Return the number of tuples to take from the inbox while this many wait already; while
        none does, twice ``size`` are taken.
        """
        if waiting >= self.size or self.clock() < self._look_at:
            return 0
        return 2 * self.size - waiting

    def rest_s(self) -> float:
        """Return the time to wait before reading an empty inbox: until the next step may begin."""
        return max(0.0, self._spacing.paid_at - self.clock())

    def found_none(self) -> None:
        """Note that the inbox had no more tuples."""
        self._look_at = self.clock() + _LOOK_S

    def begin(self) -> None:
        """Note that a step begins. The time to fetch its data does not count as work."""
        self.asked_at = self._began = self.clock()
        self._work_began = None
        self.begun = 0
        self.gave_back = False

    def may(self) -> bool:
        """Return True if the step may execute another tuple.

        Call it before the first tuple and after the last, before each tuple that begins ``ASK_S``
        or more after the last call, and while ``asked_back``. Count the tuple in ``begun`` first:
        tuples that were not counted may be given back until this returns.
        """
        if self.asked_back:
            with self.between:
                pass
        before = self.asked_at
        self.asked_at = now = self.clock()
        if self._work_began is None:
            self._work_began = now
            self._ends_at = now + self._longest_s
        elif now - before > _STEP_S:
            # The acks of the tuples before a slow one leave soon.
            self._ends_at = min(self._ends_at, self._work_began + self._slow_s)
        return now < self._ends_at and not self.gave_back

    def ended(self, executed: int, offered: int, at: float, *, committed: bool) -> None:
        """Note how many of the offered tuples were executed until the time ``at``, and whether the
        step was committed since then.
        """
        began = self._began if self._work_began is None else self._work_began
        took_s = at - began
        if executed:
            # If ``may`` is not called per tuple, all of the time counts as the rest.
            rest_s = at - max(began, self.asked_at)
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
        if committed:
            now = self.clock()
            self._spacing.took(now - at, now)

    def _learn(self, executed: int, tuple_s: float) -> None:
        self._tuple_s = max(tuple_s, self._tuple_s + _NEWS * (tuple_s - self._tuple_s))
        expected_s = self._tuple_s + self._rest.tuple_s
        self._slow_s = min(max(_STEP_S, _TIMES * self._rest.step_s), _LONGEST_STEP_S)
        self._longest_s = self._slow_s
        if expected_s <= _QUICK_S:
            self._longest_s = max(self._slow_s, _COMMITS * self._spacing.cost_s)
        before = self.claimable + self.worthwhile
        full = executed >= before
        most = min(_fitting(self._longest_s, expected_s), 2 * before if full else before)
        self.claimable = min(most, _fitting(_STEP_S, expected_s))
        if full:
            most = self._tried(before, most)
        self.worthwhile = most - self.claimable

    def _tried(self, before: int, most: int) -> int:
        """Return the number of tuples to claim after a full step.

        This is occasionally twice the estimate, because time attributed to the tuples may be the
        step's fixed cost; never if the calls themselves are slow.
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


class _Rest:
    """Time of a step beyond its calls: a fixed part, and a part per tuple."""

    def __init__(self) -> None:
        self.step_s = 0.0
        self.tuple_s = 0.0
        # Mean size and time of the latest steps of about one size, and of the size before.
        self._now = self._before = (0.0, 0.0)

    def saw(self, tuples: int, seconds: float) -> None:
        size, mean_s = self._now
        expected_s = self.step_s + self.tuple_s * tuples
        if seconds > 2 * expected_s and tuples < max(size, self._before[0]):
            # The work has changed and may be slow now: forget the earlier sizes.
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
        # Two similar sizes give no new estimate per tuple.
        if abs(size - other) * 4 > size:
            self.tuple_s = max(0.0, min(seconds / size, (seconds - others_s) / (size - other)))
        self.step_s = max(0.0, seconds - self.tuple_s * size)


def _fitting(seconds: float, tuple_s: float) -> int:
    """Return the number of tuples of this duration that fit in the time; at least one."""
    return max(1, min(int(seconds / tuple_s), _LARGEST)) if tuple_s else _LARGEST


class Spacing:
    """Decides when work with a fixed cost may begin: a token bucket of time.

    The work may take one part in ``SHARE`` of the time, and saves the time that it does not take.
    While some is saved, it begins at once: at a low rate, nothing comes that could share its cost.
    Else it waits until earlier work is paid for. Times are seconds on one clock.
    """

    def __init__(self) -> None:
        self.cost_s = 0.0  # the mean of one piece
        # Time at which all earlier work is paid for: the next piece waits until then.
        self.paid_at = float("-inf")

    def took(self, seconds: float, now: float) -> None:
        """Note that one piece of work ends now, and its cost. A single outlier counts little."""
        self.cost_s += (min(seconds, LONGEST_BETWEEN_S) - self.cost_s) / 8
        between_s = min(SHARE * self.cost_s, LONGEST_BETWEEN_S)
        paid_at = max(self.paid_at, now - LONGEST_BETWEEN_S) + between_s
        # Work that could not wait is not paid for later.
        self.paid_at = min(paid_at, now + between_s - self.cost_s)
