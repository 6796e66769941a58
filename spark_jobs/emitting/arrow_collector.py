"""The collector of an ``ArrowBolt``: it keeps what one call emits and fails, until it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tiercel.acker.ids import KEY_BYTES, Keys, lanes_of, mix_array
from tiercel.acker.inbox.chunk import Rows
from tiercel.acker.ledger import Ids
from tiercel.spark_jobs.bolts.collecting import ArrowCollector
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM, SYSTEM, TICK
from tiercel.spark_jobs.bolts.verdicts import Failing, failing_for
from tiercel.spark_jobs.emitting.arrow_anchors import Given, occurrences, read_anchors, read_rows
from tiercel.spark_jobs.emitting.arrow_columns import conform
from tiercel.spark_jobs.emitting.collectors import SPREAD, STEP, Recorder
from tiercel.spark_jobs.emitting.copies import copy_numbers_of
from tiercel.spark_jobs.emitting.fold import Anchors
from tiercel.spark_jobs.emitting.outputs import ID_BYTES, OutputStream
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.errors import AlreadyAckedError, BadAnchorsError, BadValuesError
from tiercel.spark_jobs.reasons import one_line
from tiercel.spark_jobs.topology.batch_grouping import rows_by_task


@dataclass(frozen=True, kw_only=True, slots=True)
class Portion:
    """Tuples of one stream, as ``execute`` is given them."""

    component: str
    stream: str
    batch: pa.RecordBatch
    # The task that emitted each row.
    tasks: NDArray[np.int32]
    # Position of each row in the step's input.
    rows: Rows
    keys: Keys | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def halves(self) -> tuple[Portion, Portion]:
        """The first and the second half of at least two rows."""
        middle = len(self.rows) // 2
        return self._part(0, middle), self._part(middle, len(self.rows))

    def single_rows(self) -> list[Portion]:
        """Each row by itself."""
        return [self._part(row, row + 1) for row in range(len(self.rows))]

    def _part(self, start: int, end: int) -> Portion:
        return Portion(
            component=self.component,
            stream=self.stream,
            batch=self.batch.slice(start, end - start),
            tasks=self.tasks[start:end],
            rows=self.rows[start:end],
            keys=None if self.keys is None else self.keys[start:end],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrowTaskOutput:
    """Rows that one call emitted to one task on one stream."""

    stream: str
    target: int
    # The component of the target.
    bolt: str
    values: pa.RecordBatch
    # Rows of the step's input.
    anchors: Anchors


class ArrowRecorder(Recorder, ArrowCollector):
    """The ``ArrowCollector`` of one call."""

    def __init__(self, record: Record, seeds: Ids, portion: Portion) -> None:
        """``seeds`` are the identities of the step's input, as the tuples of other
        bolts have them.
        """
        super().__init__(record)
        self.sent: list[ArrowTaskOutput] = []
        # Of each call of emit, what its rows are anchored to.
        self.emissions: list[Anchors] = []
        # Row of the step's input to why.
        self.failed: dict[int, Failing] = {}
        self.emitted = 0
        self.transferred = 0
        self.size = 0
        self.closed = False
        self._outputs = record.outputs
        self._portion = portion
        self._seeds = seeds[portion.rows]
        # Emissions anchored to each row so far.
        self._counts = np.zeros(len(portion.rows), np.int64)

    @property
    def source_component(self) -> str:
        return self._portion.component

    @property
    def source_stream(self) -> str:
        return self._portion.stream

    @property
    def source_tasks(self) -> pa.Int32Array:
        return pa.array(self._portion.tasks, pa.int32())

    @property
    def keys(self) -> pa.FixedSizeBinaryArray:
        portion = self._portion
        if portion.keys is None:
            return pa.nulls(len(portion.rows), pa.binary(KEY_BYTES))
        known = [lanes and lanes[:KEY_BYTES] for lanes in lanes_of(portion.keys)]
        return pa.array(known, pa.binary(KEY_BYTES))

    @property
    def is_tick(self) -> bool:
        return (self._portion.component, self._portion.stream) == (SYSTEM, TICK)

    def emit(self, batch: Any, anchors: Any, stream: str = DEFAULT_STREAM) -> None:
        self._check_open()
        output_stream = self._outputs.find(stream)
        values, given = self._read(batch, anchors, output_stream, stream)
        positions = self._positions(given)
        identities = self._identities(given, positions)
        chosen = [choose(values, identities) for choose in output_stream.batch_choosers]
        if chosen:
            self._add(values)
        self._send(stream, values, self._anchored(given, positions), chosen)

    def emit_direct(
        self, tasks: Any, batch: Any, anchors: Any, stream: str = DEFAULT_STREAM
    ) -> None:
        self._check_open()
        output_stream = self._outputs.find(stream, direct=True)
        values, given = self._read(batch, anchors, output_stream, stream)
        chosen = self._named(tasks, values.num_rows)
        for task in chosen:
            self._outputs.receiver(output_stream, stream, task)
        self._add(values)
        self._send(stream, values, self._anchored(given, self._positions(given)), [chosen])

    def fail(self, rows: Any, reason: BaseException | str = "") -> None:
        self._check_open()
        try:
            found = read_rows(rows, len(self._portion.rows))
        except BadAnchorsError as error:
            raise BadAnchorsError(f"{self._record.component!r} fails rows: {error}") from error
        failing = failing_for(reason)
        for row in self._portion.rows[found].tolist():
            self.failed.setdefault(row, failing)

    def _add(self, values: pa.RecordBatch) -> None:
        self.size += values.nbytes + ID_BYTES * values.num_rows
        if self.size > self._outputs.limit:
            raise self._record.too_much()

    def _check_open(self) -> None:
        if self.closed:
            raise AlreadyAckedError(
                f"{self._record.component!r} uses the collector of a call that has ended; its "
                "rows are acked or failed: use the collector that execute or flush is given, and "
                "do not keep it"
            )

    def _read(
        self, batch: Any, anchors: Any, output_stream: OutputStream, stream: str
    ) -> tuple[pa.RecordBatch, Given]:
        where = f"{self._record.component!r}, stream {stream!r}"
        try:
            values = conform(batch, output_stream.schema)
            return values, read_anchors(anchors, values.num_rows, len(self._portion.rows))
        except BadValuesError as error:
            raise BadValuesError(f"{where}: {error}") from error
        except BadAnchorsError as error:
            raise BadAnchorsError(f"{where}: {error}") from error

    def _positions(self, given: Given) -> Rows:
        """Number each anchor among the emissions that are anchored to its row.

        An emission has one, whatever the number of copies.
        """
        positions: Rows = self._counts[given.rows] + occurrences(given.rows)
        return positions

    def _identities(self, given: Given, positions: Rows) -> Ids:
        """Of each output row, for the groupings: what the collectors of the other bolts compute for
        the same emission.
        """
        steps = self._seeds[given.rows] + positions.astype(np.uint64) * np.uint64(STEP)
        if given.single:
            return steps * np.uint64(SPREAD)
        record = self._record
        count = np.uint64((record.salt + record.emitted + self.emitted) & ((1 << 64) - 1))
        identities = mix_array(count + np.arange(len(given.counts), dtype=np.uint64))
        if not len(given.rows):
            return identities
        # As in OutputRecorder: an untracked anchor's seed differs from attempt to attempt, so
        # tracked ones alone count.
        anchored = np.isin(self._portion.rows[given.rows], list(record.untracked), invert=True)
        starts = np.cumsum(given.counts) - given.counts
        sums = np.add.reduceat(np.where(anchored, mix_array(steps), np.uint64(0)), starts)
        return np.where(np.logical_or.reduceat(anchored, starts), sums, identities)

    def _named(self, tasks: Any, outputs: int) -> dict[int, Rows]:
        if isinstance(tasks, (int, np.integer)):
            return {int(tasks): np.arange(outputs)}
        found = np.asarray(tasks)
        if found.shape != (outputs,) or found.dtype.kind not in "iu":
            shown = f"{one_line(repr(tasks)):.50}"
            raise BadValuesError(
                f"{self._record.component!r} emits directly to {shown}: give a task id, or "
                f"one for each of {outputs} rows"
            )
        return rows_by_task(found)

    def _anchored(self, given: Given, positions: Rows) -> Anchors:
        self._counts += np.bincount(given.rows, minlength=len(self._counts))
        return Anchors(
            counts=given.counts,
            rows=self._portion.rows[given.rows],
            positions=positions.astype(np.uint64),
        )

    def _send(
        self, stream: str, values: pa.RecordBatch, anchors: Anchors, chosen: list[dict[int, Rows]]
    ) -> None:
        for tasks in chosen:
            numbers = copy_numbers_of(tasks) if self._portion.keys is not None else {}
            for target, rows in tasks.items():
                # A copy, also of all rows: a bolt may use the numpy arrays again that its
                # columns are made of.
                copied = values.take(pa.array(rows))
                mine = anchors.select(rows)
                if target in numbers:
                    mine = mine.numbered(numbers[target])
                self.sent.append(
                    ArrowTaskOutput(
                        stream=stream,
                        target=target,
                        bolt=self._outputs.bolts[target],
                        values=copied,
                        anchors=mine,
                    )
                )
                self.transferred += len(rows)
        self.emissions.append(anchors)
        self.emitted += values.num_rows
