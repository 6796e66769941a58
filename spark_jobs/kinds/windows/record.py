"""The record of one step of a windowed bolt, and the collector of one call."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np

from tiercel.acker.ids import KEY_BYTES, NO_KEY, mix, mix_array
from tiercel.acker.inbox.chunk import Chunk, Rows
from tiercel.acker.ledger import Ids
from tiercel.queues.errors import SchemaError
from tiercel.spark_jobs.bolts.collecting import WindowCollector
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM
from tiercel.spark_jobs.bolts.tuples import Originals, Tuple, tuples_of
from tiercel.spark_jobs.bolts.verdicts import Verdict
from tiercel.spark_jobs.emitting.fold import join_lineages, select
from tiercel.spark_jobs.emitting.outputs import ID_BYTES, TaskOutput, copy_numbers
from tiercel.spark_jobs.emitting.record import SPREAD, STEP, Record, Recorder
from tiercel.spark_jobs.errors import (
    AlreadyAckedError,
    BadValuesError,
    ForeignTupleError,
    OutputLimitError,
)
from tiercel.spark_jobs.kinds.windows.rows import Longs, each_once
from tiercel.spark_jobs.running.backlog import part_of

# Emissions of one window: the rest of an emission's number is the number of the window.
_BITS = 20
_MOST_EMISSIONS = 1 << _BITS
_MASK = (1 << 64) - 1
# Tuples that are made together.
_MADE_AHEAD = 10_000


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
        # True for each row whose tuple a call has had.
        self._lent = np.zeros(self._count, bool)
        # Rows that leave with this step, unless they fail.
        self.leaving: Rows = np.zeros(0, np.int64)
        self.expect(())

    @cached_property
    def made(self) -> list[Tuple]:
        """All tuples of the step."""
        made: list[Tuple] = []
        for chunk in self.chunks:
            made += tuples_of(chunk, len(made), self.seeds)
        return made

    @cached_property
    def _originals(self) -> Originals:
        return Originals(self.chunks)

    def lend(self, rows: Longs, tuple_of: Callable[[int], Tuple]) -> None:
        """Have the next call get the tuples of these rows as they came, also if the call for
        another window has changed lists and mappings in them.
        """
        if self._originals.may_change:
            self._originals.restore(map(tuple_of, rows[self._lent[rows]].tolist()))
            self._lent[rows] = True

    def named(self, rows: Longs) -> tuple[int, list[int]]:
        """Return a number that names the window of these rows, and their roots."""
        lineage = join_lineages([chunk.lineage for chunk in self.chunks])
        roots: list[int] = select(lineage, rows).roots.tolist()
        return mix(int(np.bitwise_xor.reduce(self.seeds[rows]))), list(dict.fromkeys(roots))

    def expect(self, parts: Iterable[Longs]) -> None:
        """Note the rows for which ``make`` will be called, in turn."""
        self._expected = deque(parts)
        # The place in ``_made`` of each row's tuple, or -1.
        self._made_at = np.full(self._count, -1)
        self._made: list[Tuple] = []

    def make(self, rows: Longs) -> list[Tuple]:
        """Return the tuples of these rows, in this order.

        Makes the tuples that are expected next along with them: a window has few tuples of each of
        many chunks, and to select them takes longer than to make them.
        """
        if (self._made_at[rows] < 0).any():
            self._make_ahead(rows)
        self.lend(rows, lambda row: self._made[self._made_at[row]])
        return [self._made[at] for at in self._made_at[rows].tolist()]

    def _make_ahead(self, rows: Longs) -> None:
        parts, count = [rows], len(rows)
        while self._expected and count + len(self._expected[0]) <= _MADE_AHEAD:
            parts.append(self._expected.popleft())
            count += len(parts[-1])
        made = each_once(parts, self._count)
        self._made_at = np.full(self._count, -1)
        self._made_at[made] = np.arange(len(made))
        self._made = []
        first = 0
        for chunk in self.chunks:
            end = first + chunk.values.num_rows
            begin, most = np.searchsorted(made, (first, end)).tolist()
            if begin < most:
                part = part_of(chunk, made[begin:most] - first)
                self._made += tuples_of(part, 0, self.seeds)
            first = end
        for tup, row in zip(self._made, made.tolist(), strict=True):
            tup.row = row

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
        for name in ("made", "_originals"):
            self.__dict__.pop(name, None)
        self._expected.clear()
        self._made.clear()


class WindowRecorder(Recorder, WindowCollector):
    """The ``WindowCollector`` of one call. When the call ends, ``commit`` it or ``undo`` it.

    The n-th emission of the k-th window of a tuple has the number k << 20 | n. If two emissions
    anchored to a tuple had one number, their edges would be equal and cancel out of the ack-val:
    the message would be acked before they are done.
    """

    def __init__(self, record: WindowRecord, rows: Longs, numbers: Longs) -> None:
        """``rows`` of the step are the tuples of the window; ``numbers`` has the number of the
        window among the windows of each tuple.
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
        self._mark = record.mark()
        record.call()
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
        chosen = output_stream.chosen(values, identity)
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
        self._record.rewind(self._mark)

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
