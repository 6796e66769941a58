"""One step of a windowed bolt: its record, its collector, and the calls of ``execute``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property, partial
from hashlib import blake2b
from math import gcd
from typing import Any, cast

import numpy as np

from tiercel.acker.ids import KEY_BYTES, NO_KEY, mix, mix_array
from tiercel.acker.inbox.chunk import Chunk, Rows
from tiercel.acker.ledger import Ids
from tiercel.queues.errors import SchemaError
from tiercel.queues.retry import RetryPolicy
from tiercel.spark_jobs.bolts.collecting import WindowCollector
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM
from tiercel.spark_jobs.bolts.tuples import Tuple, tuples_of
from tiercel.spark_jobs.bolts.verdicts import GivenBack, Reject, RetryLater, Verdict
from tiercel.spark_jobs.bolts.windowed_bolt import (
    AggregatingBolt,
    Session,
    Sliding,
    TupleWindow,
    WindowedBolt,
)
from tiercel.spark_jobs.emitting.fold import departures, join_lineages, select
from tiercel.spark_jobs.emitting.outputs import ID_BYTES, TaskOutput, copy_numbers
from tiercel.spark_jobs.emitting.record import SPREAD, STEP, Record, Recorder
from tiercel.spark_jobs.errors import (
    AlreadyAckedError,
    BadValuesError,
    ForeignTupleError,
    OutputLimitError,
)
from tiercel.spark_jobs.kinds.windows.assigners import Closing, WindowId
from tiercel.spark_jobs.kinds.windows.rows import (
    AHEAD,
    LATE,
    NULL,
    OVERDUE,
    HeldRows,
    Longs,
    Mask,
    micros,
    moment,
)
from tiercel.spark_jobs.reasons import RAISED
from tiercel.spark_jobs.running.backlog import part_of
from tiercel.spark_jobs.running.counting import WINDOWS_LATE, WINDOWS_REFUSED
from tiercel.spark_jobs.running.step import Execution, Step
from tiercel.spark_jobs.suspects.book import REASON
from tiercel.spark_jobs.suspects.notes import ExecutionNotes

log = logging.getLogger(__name__)

# Emissions of one window: the rest of an emission's number is the number of the window.
_BITS = 20
_MOST_EMISSIONS = 1 << _BITS
_MASK = (1 << 64) - 1
_OVERDUE = "its window did not fill before the broker would have taken its message back"


@dataclass(kw_only=True, slots=True)
class WindowResult:
    """The emissions of a window, for a bolt with ``once``."""

    # 16 bytes that name the window; empty if no copy of its tuples can be recognised.
    name: bytes
    # The emissions: stream, values, task if direct, number, and the rows that are its anchors.
    noted: list[tuple[str, tuple[Any, ...], int | None, int, Sequence[int]]] = field(
        default_factory=list
    )
    called: bool = False

    def key(self, number: int, copy: int) -> bytes:
        """Return the lanes of an emission, which depend on the window and no anchor."""
        if not self.name:
            return NO_KEY
        content = b"%b%d %d" % (self.name, number, copy)
        return blake2b(content, digest_size=KEY_BYTES).digest() + NO_KEY[KEY_BYTES:]


class WindowRecord(Record):
    """Record of one step of a windowed bolt. It has rows; tuples are made for their windows.

    No tuple is ever held by the record: what is not done stays in the inbox.
    """

    # Notes the emissions of the window that is executed, for a bolt with ``once``.
    result: WindowResult | None = None

    def receive(self, chunks: Sequence[Chunk], seeds: Ids, held: Sequence[Tuple]) -> None:  # noqa: ARG002 - no tuple is held
        self.seeds = seeds
        self.chunks = chunks
        self._count = len(seeds)
        # Rows that leave with this step, unless they fail.
        self.leaving: Rows = np.zeros(0, np.int64)

    @cached_property
    def made(self) -> list[Tuple]:
        """All tuples of the step."""
        made: list[Tuple] = []
        for chunk in self.chunks:
            made += tuples_of(chunk, len(made), self.seeds)
        return made

    def named(self, rows: Longs) -> tuple[int, list[int]]:
        """Return a number that names the window of these rows, and their roots."""
        lineage = join_lineages([chunk.lineage for chunk in self.chunks])
        roots: list[int] = select(lineage, rows).roots.tolist()
        return mix(int(np.bitwise_xor.reduce(self.seeds[rows]))), list(dict.fromkeys(roots))

    def make(self, rows: Longs) -> list[Tuple]:
        """Return new tuples of these rows, which are ascending."""
        tuples: list[Tuple] = []
        first = 0
        for chunk in self.chunks:
            end = first + chunk.values.num_rows
            some = rows[(rows >= first) & (rows < end)]
            if some.size:
                tuples += tuples_of(part_of(chunk, some - first), 0, self.seeds)
            first = end
        for tup, row in zip(tuples, rows.tolist(), strict=True):
            tup.row = row
        return tuples

    @cached_property
    def are_keyed(self) -> bool:
        """True if tuples have keys, so that copies of an emission need numbers."""
        return any(chunk.lineage.keys is not None for chunk in self.chunks)

    @cached_property
    def executed(self) -> int:
        return self._count

    @cached_property
    def acked(self) -> Rows:
        return np.setdiff1d(self.leaving, list(self.reasons)) if self.reasons else self.leaving

    def abort(self, reason: str, verdict: Verdict | None = None) -> None:
        super().abort(reason, verdict)
        self.leaving = self.leaving[:0]
        for row in range(self._count):
            self.note(row, reason, verdict)

    def let_go(self) -> None:
        super().let_go()
        self.chunks = ()
        self.__dict__.pop("made", None)


class WindowRecorder(Recorder, WindowCollector):
    """The ``WindowCollector`` of one call. When the call ends, ``commit`` it or ``undo`` it.

    The n-th emission of the k-th window of a tuple has the number k << 20 | n. If two emissions
    anchored to a tuple had one number, their edges would be equal and cancel out of the ack-val:
    the message would be acked before they are done.
    """

    def __init__(self, record: WindowRecord, rows: Longs, numbers: Longs) -> None:
        """``rows`` of the step are the tuples of the window; ``numbers`` are those of the window
        for each of them.
        """
        super().__init__(record)
        self._window = record
        self._rows: list[int] = rows.tolist()
        self._bases: list[int] = (numbers << _BITS).tolist()
        self._places = {row: place for place, row in enumerate(self._rows)}
        # Rows that the bolt failed, with reason and verdict.
        self.failed: dict[int, tuple[str, Verdict | None]] = {}
        self._emissions = 0
        self._closed = False
        self._marks = record.outputs.mark()
        record.call()
        self._before = record.size, record.emitted, record.transferred
        self._result = record.result
        if self._result is not None:
            self._result.called = True

    def emit(
        self,
        values: Sequence[Any],
        stream: str = DEFAULT_STREAM,
        *,
        anchors: Tuple | Iterable[Tuple] | None = None,
    ) -> list[int]:
        output_stream = self._record.outputs.for_emit(stream, values)
        rows, numbers = self._anchored(anchors)
        values = output_stream.keep(values)
        self._check(stream, values)
        identity = self._identity(rows, numbers) if output_stream.by_identity else 0
        chosen = [
            made[task]
            for choose, made in output_stream.subscribers
            for task in choose(values, identity)
        ]
        if chosen:
            self._record.add(output_stream.size(values) + ID_BYTES * len(rows))
        self._send((stream, values, None), rows, numbers, chosen)
        return [task for task_output in chosen for task in task_output.named]

    def emit_direct(
        self,
        task: int,
        values: Sequence[Any],
        stream: str = DEFAULT_STREAM,
        *,
        anchors: Tuple | Iterable[Tuple] | None = None,
    ) -> None:
        task_output = self._record.outputs.direct(task, stream, values)
        rows, numbers = self._anchored(anchors)
        output_stream = self._streams[stream]
        values = output_stream.keep(values)
        self._check(stream, values)
        self._record.add(output_stream.size(values) + ID_BYTES * len(rows))
        self._send((stream, values, task), rows, numbers, [task_output])

    def fail(self, tup: Tuple, reason: BaseException | str = "") -> None:
        self._check_open()
        self.failed.setdefault(self._rows[self._place(tup, "fails")], self._record.failing(reason))

    def during(self, call: Callable[[], None]) -> None:
        """Make the call; its emissions and failures count only if it returns."""
        try:
            call()
        except BaseException:
            self.undo()
            raise
        self.commit()

    def commit(self) -> None:
        """Apply the failures of a call that returned."""
        self._closed = True
        for row, (reason, verdict) in self.failed.items():
            self._record.note(row, reason, verdict)

    def undo(self) -> None:
        """Discard the emissions of a call that raised."""
        self._closed = True
        record = self._record
        record.outputs.rewind(self._marks)
        record.size, record.emitted, record.transferred = self._before

    def at(self, number: int) -> None:
        """Have the next emission be that with this number."""
        self._emissions = number

    def _anchored(self, anchors: Tuple | Iterable[Tuple] | None) -> tuple[list[int], list[int]]:
        """Return the rows of the anchors, each once, and the number of the emission for each."""
        self._check_open()
        if self._emissions >= _MOST_EMISSIONS:
            raise OutputLimitError(
                f"{self._record.component!r} emits more than {_MOST_EMISSIONS:,} tuples for one "
                "window"
            )
        number = self._emissions
        if anchors is None:
            return self._rows, [base + number for base in self._bases]
        named = (anchors,) if isinstance(anchors, Tuple) else anchors
        places = dict.fromkeys([self._place(tup, "anchors to") for tup in named])
        return [self._rows[at] for at in places], [self._bases[at] + number for at in places]

    def _identity(self, rows: Sequence[int], numbers: Sequence[int]) -> int:
        """Return the emission's identity, for the groupings."""
        untracked = self._record.untracked
        if untracked:
            tracked = [place for place, row in enumerate(rows) if row not in untracked]
            rows, numbers = [rows[at] for at in tracked], [numbers[at] for at in tracked]
        if not rows:
            return mix(self._record.salt + self._record.emitted & _MASK)
        seeds = self._window.seeds[np.asarray(rows)]
        steps = np.asarray(numbers, np.uint64) * np.uint64(STEP) * np.uint64(SPREAD)
        return int(mix_array(seeds + steps).sum(dtype=np.uint64))

    def _send(
        self,
        emission: tuple[str, tuple[Any, ...], int | None],
        rows: Sequence[int],
        numbers: Sequence[int],
        chosen: Sequence[TaskOutput],
    ) -> None:
        several = len(chosen) > 1 and bool(rows) and self._window.are_keyed
        copies = copy_numbers(chosen) if several else [0] * len(chosen)
        result = self._result
        if result is not None and chosen:
            result.noted.append((*emission, self._emissions, rows))
        for task_output, copy in zip(chosen, copies, strict=True):
            if result is not None:
                task_output.keys.append(result.key(self._emissions, copy))
            task_output.values.append(emission[1])
            task_output.rows += rows
            task_output.positions += [number | copy for number in numbers] if copy else numbers
            task_output.anchor_counts.append(len(rows))
            task_output.numbers.append(self._record.emitted)
        self._emissions += 1
        self._record.emitted += 1
        self._record.transferred += len(chosen)

    def _check(self, stream: str, values: Sequence[Any]) -> None:
        # Here, because later the tuples of the window would fail, and the window has closed.
        try:
            self._streams[stream].schema.check(values)
        except SchemaError as error:
            raise BadValuesError(f"{self._record.component!r} emits a tuple: {error}") from error

    def _place(self, tup: Tuple, verb: str) -> int:
        component = self._record.component
        if not isinstance(tup, Tuple):
            raise ForeignTupleError(f"{component!r} {verb} {tup!r:.60}, which is no tuple")
        place = self._places.get(tup.row)
        if place is None or tup.origin.seeds is not self._window.seeds:
            raise ForeignTupleError(f"{component!r} {verb} {tup!r}, which is not in this window")
        return place

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyAckedError(
                f"{self._record.component!r} uses the collector of a window that has closed: use "
                "the collector that execute is given, and do not keep it"
            )


# Rows that a bolt failed to add, with reason and verdict.
Unfit = dict[int, tuple[str, Verdict | None]]


class Accumulators:
    """The accumulators of one task of an ``AggregatingBolt``.

    Windows that overlap share those of one pane each: the time between two beginnings of windows.
    """

    def __init__(self, window: Sliding | Session) -> None:
        self._pane_us = 0
        length, slide = getattr(window, "length", None), getattr(window, "slide", None)
        if isinstance(length, timedelta) and isinstance(slide, timedelta) and slide < length:
            self._pane_us = gcd(micros(length), micros(slide))
        # By key and beginning: the rows that it has, as entries and rows, and the accumulator.
        self._panes: dict[tuple[int, int], tuple[bytes, Any]] = {}

    def of(
        self, bolt: AggregatingBolt, record: WindowRecord, held: HeldRows, one: Closing, rows: Longs
    ) -> tuple[Any, Unfit]:
        """Return the accumulator of a window; ``rows`` of the step belong to the rows of it."""
        unfit: Unfit = {}
        if not self._pane_us:
            return self._added(bolt, record, rows, unfit), unfit
        begins = held["time"][one.rows] // self._pane_us
        ends = np.flatnonzero(np.diff(begins, append=begins[-1] + 1)) + 1
        accumulator = bolt.create()
        first = 0
        for end in ends.tolist():
            pane, part = one.rows[first:end], rows[first:end]
            name = one.key, int(begins[first])
            content = held["entry"][pane].tobytes() + held["row"][pane].tobytes()
            known = self._panes.get(name)
            if known is None or known[0] != content:
                fit = len(unfit)
                known = content, self._added(bolt, record, part, unfit)
                if len(unfit) == fit:
                    self._panes[name] = known
            accumulator = bolt.merge(accumulator, known[1])
            first = end
        return accumulator, unfit

    def forget(self, before: int) -> None:
        """Forget the panes of windows that have closed, given the beginning of the next one."""
        if self._panes:
            last = before // self._pane_us
            self._panes = {name: kept for name, kept in self._panes.items() if name[1] >= last}

    def renumber(self) -> None:
        """Forget all panes: keys have new numbers."""
        self._panes.clear()

    @staticmethod
    def _added(bolt: AggregatingBolt, record: WindowRecord, rows: Longs, unfit: Unfit) -> Any:
        order = np.argsort(rows)
        made = record.make(rows[order])
        tuples: list[Tuple] = [made[at] for at in np.argsort(order).tolist()]
        accumulator = bolt.create()
        for tup in tuples:
            try:
                added = bolt.add(accumulator, tup)
                if added is None and accumulator is not None:
                    raise TypeError(
                        f"{record.component!r}: add returned None: return the accumulator"
                    )
                accumulator = added
            except RAISED as error:
                unfit[tup.row] = record.blame(error)
        return accumulator


class WindowCalls:
    """The calls of a windowed bolt in one step."""

    def __init__(
        self,
        bolt: WindowedBolt,
        record: WindowRecord,
        held: HeldRows,
        rows: Longs,
        accumulators: Accumulators,
    ) -> None:
        """``rows`` are the step's rows by their indices in ``held``, ascending."""
        self._bolt = bolt
        self._record = record
        self._held = held
        self._rows = rows
        self._accumulators = accumulators

    def close(self, one: Closing, key: Any, notes: ExecutionNotes | None) -> BaseException | None:
        """Call the bolt for a window; return the error that it raised, if any.

        ``notes`` names the window before the call, to find one that kills the process.
        """
        record = self._record
        places = np.searchsorted(self._rows, one.rows)
        stays = np.ones(len(places), bool)
        if record.reasons:
            stays = ~np.isin(places, list(record.reasons))
            if not stays.any():
                return None
        if notes is not None:
            identity, roots = record.named(places)
            if not notes.repeats(record, identity, roots):
                return Reject(REASON)
        record.signs += 1
        try:
            if isinstance(self._bolt, AggregatingBolt):
                self._aggregate(self._bolt, one, key, places, stays)
            else:
                collector = WindowRecorder(record, places[stays], one.numbers[stays])
                collector.during(lambda: self._call(one, key, places, stays, collector))
        except RAISED as error:
            return error
        return None

    def _aggregate(
        self, bolt: AggregatingBolt, one: Closing, key: Any, places: Longs, stays: Mask
    ) -> None:
        """Pass the accumulator of a window to ``result``; a tuple that cannot be added fails."""
        record = self._record
        kept = one if stays.all() else replace(one, rows=one.rows[stays])
        rows = places[stays]
        accumulator, unfit = self._accumulators.of(bolt, record, self._held, kept, rows)
        fit = ~np.isin(rows, list(unfit))
        if fit.any():
            window = TupleWindow(
                key=key, start=moment(one.start), end=moment(one.end), count=int(fit.sum())
            )
            collector = WindowRecorder(record, rows[fit], one.numbers[stays][fit])
            collector.during(lambda: bolt.result(accumulator, window, collector))
        for row, failing in unfit.items():
            record.note(row, *failing)

    def _call(
        self, one: Closing, key: Any, places: Longs, stays: Mask, collector: WindowRecorder
    ) -> None:
        made = self._record.made
        tuples = [made[place] for place in places[stays].tolist()]
        window = TupleWindow(
            key=key,
            start=moment(one.start),
            end=moment(one.end),
            count=len(tuples),
            tuples=tuples,
            new=[made[place] for place in places[stays & one.new].tolist()],
            expired=[made[at] for at in np.searchsorted(self._rows, one.expired).tolist()],
        )
        self._bolt.execute(window, collector)

    def let_leave(self, settings: WindowedBolt, status: Longs, times: Longs) -> None:
        """Execute rows that are in no window: reject them, emit them as late, or ack them."""
        record = self._record
        record.leaving = np.arange(len(status))
        late = np.flatnonzero(status == LATE)
        if settings.late_stream and late.size:
            try:
                self._emit_late(late, settings.late_stream)
            except RAISED as error:
                failing = record.blame(error)
                for row in late.tolist():
                    record.note(row, *failing)
        unfit = int(np.isin(status, (NULL, AHEAD)).sum())
        record.more_counts = {WINDOWS_LATE: len(late), WINDOWS_REFUSED: unfit}
        for row in np.flatnonzero(status == OVERDUE).tolist():
            record.note(row, *record.failing(GivenBack(0, _OVERDUE)))
        refused = (NULL, AHEAD) if settings.late_stream else (NULL, AHEAD, LATE)
        for row in np.flatnonzero(np.isin(status, refused)).tolist():
            reason = why_late(settings, int(status[row]), int(times[row]))
            record.report(reason)
            record.note(row, reason, Reject(reason))

    def _emit_late(self, rows: Longs, stream: str) -> None:
        """Emit late rows, which have emitted nothing before."""
        record = self._record
        collector = WindowRecorder(record, rows, np.zeros(len(rows), np.int64))
        names = record.outputs.streams[stream].schema.names
        for row in rows.tolist():
            tup = record.made[row]
            collector.emit([tup[name] for name in names], stream, anchors=tup)
        collector.commit()


def why_late(settings: WindowedBolt, status: int, time_us: int) -> str:
    """Return why a tuple is rejected."""
    field = settings.timestamp_field
    if status == NULL:
        return f"its timestamp {field!r} is null"
    time = moment(time_us)
    if status == AHEAD:
        return (
            f"its timestamp {field!r} is {time:%Y-%m-%d %H:%M:%S}, in the future by more than "
            f"max_ahead ({settings.max_ahead}): look at the clock of its sender, and at "
            f"timestamp_unit ({settings.timestamp_unit!r})"
        )
    return (
        f"late: its timestamp {field!r} is {time:%Y-%m-%d %H:%M:%S.%f}, and its last window has "
        "closed: raise lag, or declare a late_stream"
    )


class FailedWindows:
    """The windows of one task that wait for their next attempt."""

    def __init__(self, policy: RetryPolicy, limit: int, clock: Callable[[], float]) -> None:
        """``limit`` is the number of attempts."""
        self.limit = limit
        self._policy = policy
        self._clock = clock
        # Attempts so far, and the time of the next one.
        self._tried: dict[WindowId, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._tried)

    @property
    def due_at(self) -> list[float]:
        """Times of the next attempts."""
        return [due_at for _, due_at in self._tried.values()]

    @property
    def waiting(self) -> frozenset[WindowId]:
        """Windows whose next attempt is not due."""
        now = self._clock()
        return frozenset(id_ for id_, (_, due_at) in self._tried.items() if due_at > now)

    def may_go_on(self, id_: WindowId, error: BaseException) -> bool:
        """Return True if a window is tried again after this error."""
        attempts, _ = self._tried.get(id_, (0, 0.0))
        return attempts + 1 < self.limit and not isinstance(error, Reject)

    def note(self, closed: Iterable[WindowId], failed: Mapping[WindowId, BaseException]) -> None:
        """Note the outcome of a step: the windows that are done, and those that are tried again."""
        for id_ in closed:
            self._tried.pop(id_, None)
        for id_, error in failed.items():
            attempts = self._tried.get(id_, (0, 0.0))[0] + 1
            asked = isinstance(error, RetryLater)
            wait_s = error.seconds if isinstance(error, RetryLater) else self.back_off_s(attempts)
            self._tried[id_] = attempts - asked, self._clock() + wait_s

    def back_off_s(self, attempts: int) -> float:
        """Return the wait after this number of attempts."""
        first, longest = self._policy.first, self._policy.longest
        wait_s: float = first.total_seconds() * 2.0 ** min(attempts - 1, 30)
        return min(wait_s, longest.total_seconds())


def execution_of(execute: Callable[[WindowedBolt, WindowRecord], None]) -> Execution:
    """Return the ``Execution`` of a task whose steps are executed by this function."""
    return Execution(
        record=WindowRecord,
        execute=partial(_execute, execute),
        departures=partial(departures, basic=False, batch=True),
        at_once=True,
    )


def _execute(
    execute: Callable[[WindowedBolt, WindowRecord], None], bolt: WindowedBolt, step: Step
) -> bool:
    record = cast("WindowRecord", step.record)
    began = time.perf_counter_ns()
    execute(bolt, record)
    record.execute_ns += time.perf_counter_ns() - began
    return not record.aborted
