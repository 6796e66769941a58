"""The collector of an ``ArrowBolt``: reads batches and anchors, and converts columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tiercel.acker.ids import KEY_BYTES, Keys, lanes_of, mix_array
from tiercel.acker.inbox.chunk import Rows
from tiercel.acker.ledger import Ids
from tiercel.queues.nouns import with_article
from tiercel.queues.values.python_values import (
    TEXTS,
    holds,
    infinities,
    is_in_pythons_years,
)
from tiercel.queues.values.schema import UNFIT, Field, Schema
from tiercel.spark_jobs.bolts.collecting import ArrowCollector
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM, SYSTEM, TICK
from tiercel.spark_jobs.bolts.verdicts import Failing
from tiercel.spark_jobs.emitting.outputs import ID_BYTES, Anchors, OutputStream, copy_numbers_of
from tiercel.spark_jobs.emitting.record import SPREAD, STEP, Record, Recorder
from tiercel.spark_jobs.errors import AlreadyAckedError, BadAnchorsError, BadValuesError
from tiercel.spark_jobs.reasons import one_line
from tiercel.spark_jobs.topology.grouping import rows_by_task

_WANTED = (
    "give one row number for each output row, a list of row numbers for each, or None for rows "
    "that are in no tree"
)
# Within one kind, Arrow's safe cast keeps every value or raises.
_KINDS: tuple[Callable[[pa.DataType], bool], ...] = (
    lambda type_: (
        pa.types.is_string(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_string_view(type_)
    ),
    lambda type_: (
        pa.types.is_binary(type_)
        or pa.types.is_large_binary(type_)
        or pa.types.is_binary_view(type_)
    ),
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_date,
    pa.types.is_timestamp,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Portion:
    """Tuples of one stream, as ``execute`` receives them."""

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
        """Split the portion, of at least two rows, in halves."""
        middle = len(self.rows) // 2
        return self._part(0, middle), self._part(middle, len(self.rows))

    def single_rows(self) -> list[Portion]:
        """Split the portion into single rows."""
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
    # Their rows are rows of the step's input.
    anchors: Anchors


class ArrowRecorder(Recorder, ArrowCollector):
    """The ``ArrowCollector`` of one call."""

    def __init__(self, record: Record, seeds: Ids, portion: Portion) -> None:
        """``seeds`` are the identities of all tuples of the step's input."""
        super().__init__(record)
        self.sent: list[ArrowTaskOutput] = []
        # The anchors of each emitted batch.
        self.emissions: list[Anchors] = []
        # Reason and verdict by failed row of the step's input.
        self.failed: dict[int, Failing] = {}
        self.emitted = 0
        self.transferred = 0
        self.size = 0
        self.closed = False
        self._outputs = record.outputs
        self._portion = portion
        self._seeds = seeds[portion.rows]
        # Number of emissions anchored to each row so far.
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
        failing = self._record.failing(reason)
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
        """Number each emission among the emissions that are anchored to the same row.

        All copies of an emission share its number.
        """
        positions: Rows = self._counts[given.rows] + occurrences(given.rows)
        return positions

    def _identities(self, given: Given, positions: Rows) -> Ids:
        """Return the identity of each output row, for the groupings.

        The collectors of other bolts compute the same identity for the same emission.
        """
        steps = self._seeds[given.rows] + positions.astype(np.uint64) * np.uint64(STEP)
        if given.single:
            return steps * np.uint64(SPREAD)
        record = self._record
        count = np.uint64((record.salt + record.emitted + self.emitted) & ((1 << 64) - 1))
        identities = mix_array(count + np.arange(len(given.counts), dtype=np.uint64))
        if not len(given.rows):
            return identities
        # As in OutputRecorder, only tracked anchors count: the seed of an untracked anchor differs
        # from attempt to attempt.
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
                # Copy the rows, even if they are all rows: a bolt may reuse the numpy arrays
                # behind its columns.
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


def conform(data: Any, schema: Schema) -> pa.RecordBatch:
    """Convert ``data`` to the stream's columns, by name, and their types; raises BadValuesError.

    Takes a RecordBatch, a Table, a mapping of column names to arrays or lists, or any object with
    the Arrow PyCapsule interface: pandas and polars data frames, DuckDB results. Columns of another
    width or encoding are cast (int32 to long, a dictionary to its strings, nanoseconds to
    microseconds) if no value changes; columns of another kind are refused. The row numbers of a
    pandas frame are no column.
    """
    table = _table(data, schema)
    names = [one.name for one in table.schema if not _numbers_rows(one)]
    if sorted(names) != sorted(schema.names):
        found = ", ".join(names) or "none"
        raise BadValuesError(f"the columns are {found}; give one for each of ({schema})")
    columns = [_column(table.column(field.name), field) for field in schema.fields]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema.arrow)
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        # Raw buffers and unsafe casts can hold damaged values, such as text that is not UTF-8,
        # which receivers could not read.
        raise BadValuesError(f"the columns are damaged: {one_line(str(error))}") from error
    return batch


def _numbers_rows(column: pa.Field) -> bool:
    """Return True for the index of a pandas frame that has lost some of its rows or their order."""
    return bool(pa.types.is_integer(column.type)) and column.name.startswith("__index_level_")


def _table(data: Any, schema: Schema) -> pa.RecordBatch | pa.Table:
    if isinstance(data, (pa.RecordBatch, pa.Table)):
        return data
    try:
        if isinstance(data, Mapping):
            return pa.table(dict(data))
        if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
            return pa.table(data)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise BadValuesError(
            f"these are no columns for ({schema}): {one_line(str(error))}"
        ) from error
    raise BadValuesError(
        f"give a RecordBatch, a Table, a data frame, or a mapping of ({', '.join(schema.names)}) "
        f"to arrays, not the {type(data).__name__} {one_line(repr(data)):.50}"
    )


def _column(column: pa.Array | pa.ChunkedArray, field: Field) -> pa.Array:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if field.arrow == TEXTS and array.type in _PAIRS:
        array = _maps(array, field)
    if array.type != field.arrow:
        if not _same_kind(array.type, field.arrow):
            raise BadValuesError(
                f"field {field.name!r} is {with_article(field.type)}, the column is {array.type}"
            )
        given = array
        try:
            array = array.cast(field.arrow)
        except pa.ArrowException as error:
            raise BadValuesError(
                f"field {field.name!r} is {with_article(field.type)}, the column is {array.type}: "
                f"{one_line(str(error))}"
            ) from error
        if holds(field.arrow, pa.types.is_float32) and infinities(array) > infinities(given):
            raise BadValuesError(
                f"field {field.name!r} is {with_article(field.type)}, the column is {given.type}: "
                "a number is too large for it"
            )
    if not is_in_pythons_years(array):
        raise BadValuesError(
            f"field {field.name!r} is {with_article(field.type)}, and a value is not within the "
            "years 1 to 9999"
        )
    return array


# A pandas frame has the items of a map as a list of pairs.
_PAIRS = (pa.list_(pa.list_(pa.string())), pa.list_(pa.null()))


def _maps(array: pa.Array, field: Field) -> pa.Array:
    try:
        return field.array([None if one is None else dict(one) for one in array.to_pylist()])
    except UNFIT as error:
        raise BadValuesError(
            f"field {field.name!r} is {with_article(field.type)}, and a list in the column has no "
            f"pairs of texts: {one_line(str(error))}"
        ) from error


def _same_kind(given: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_null(given):
        return True
    if pa.types.is_dictionary(given):
        return _same_kind(given.value_type, wanted)
    if pa.types.is_struct(wanted):
        # The cast would fill a missing member with nulls, and drop others.
        return (
            pa.types.is_struct(given)
            and sorted(given.names) == sorted(wanted.names)
            and all(_same_kind(given.field(each.name).type, each.type) for each in wanted)
        )
    if pa.types.is_list(wanted):
        listed = (
            pa.types.is_list(given)
            or pa.types.is_large_list(given)
            or pa.types.is_fixed_size_list(given)
        )
        return listed and _same_kind(given.value_type, wanted.value_type)
    if pa.types.is_map(wanted):
        # Only text keys: a cast that turns a key into null crashes the process.
        texts, *_ = _KINDS
        return (
            pa.types.is_map(given)
            and texts(given.key_type)
            and _same_kind(given.item_type, wanted.item_type)
        )
    whole_to_floating = pa.types.is_integer(given) and pa.types.is_floating(wanted)
    return whole_to_floating or any(kind(given) and kind(wanted) for kind in _KINDS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """The anchors of n output rows."""

    # Shape (n,): number of anchors of each output row; all 0 or all at least 1.
    counts: Rows
    # The anchors' input rows, in order of output row.
    rows: Rows
    # True if each output row was given one number, not a list.
    single: bool


def read_anchors(anchors: Any, outputs: int, inputs: int) -> Given:
    """Read the anchors of ``outputs`` rows to ``inputs`` rows; raises BadAnchorsError."""
    if anchors is None:
        return Given(counts=np.zeros(outputs, np.int64), rows=np.zeros(0, np.int64), single=False)
    array = _array(anchors)
    if len(array) != outputs:
        raise BadAnchorsError(
            f"there are {outputs} output rows and anchors for {len(array)}: {_WANTED}"
        )
    if array.null_count:
        raise BadAnchorsError(
            f"output row {_first(array.is_null())} has null for an anchor: {_WANTED}"
        )
    if not _is_list(array.type):
        return Given(counts=np.ones(outputs, np.int64), rows=_rows(array, inputs), single=True)
    counts = pc.list_value_length(array).to_numpy(zero_copy_only=False).astype(np.int64)
    if not counts.all():
        raise BadAnchorsError(
            f"output row {int(np.argmin(counts))} has an empty list of anchors: emit rows "
            "that are in no tree by themselves, with anchors=None"
        )
    return Given(counts=counts, rows=_rows(array.flatten(), inputs), single=False)


def read_rows(rows: Any, inputs: int) -> Rows:
    """Read row numbers, each less than ``inputs``; raises BadAnchorsError."""
    array = _array([rows] if isinstance(rows, (int, np.integer)) else rows)
    if _is_list(array.type) or array.null_count:
        raise BadAnchorsError(
            f"rows are named by number, not by {array.type} with {array.null_count} nulls"
        )
    return _rows(array, inputs)


def occurrences(rows: Rows) -> Rows:
    """Count, for each element, the equal elements before it."""
    if not len(rows):
        return rows
    order = None if bool(np.all(rows[1:] >= rows[:-1])) else np.argsort(rows, kind="stable")
    ascending = rows if order is None else rows[order]
    starts = np.flatnonzero(np.concatenate([[True], ascending[1:] != ascending[:-1]]))
    counted: Rows = np.arange(len(rows)) - np.repeat(starts, np.diff(np.append(starts, len(rows))))
    if order is None:
        return counted
    result = np.empty_like(counted)
    result[order] = counted
    return result


def _array(given: Any) -> pa.Array:
    try:
        array = pa.chunked_array(given) if hasattr(given, "__arrow_c_stream__") else pa.array(given)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise BadAnchorsError(
            f"{one_line(repr(given)):.50} names no rows ({one_line(str(error))}): {_WANTED}"
        ) from error
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    inner = array.type.value_type if _is_list(array.type) else array.type
    if pa.types.is_boolean(inner):
        raise BadAnchorsError(
            "a mask names no rows: give their numbers, pyarrow.compute.indices_nonzero(mask)"
        )
    if not (pa.types.is_integer(inner) or pa.types.is_null(inner)):
        raise BadAnchorsError(f"rows are named by whole numbers, not by {array.type}: {_WANTED}")
    return array


def _rows(array: pa.Array, inputs: int) -> Rows:
    if pa.types.is_null(array.type) or array.null_count:
        if len(array):
            raise BadAnchorsError(f"a list of anchors holds null: {_WANTED}")
        return np.zeros(0, np.int64)
    rows = array.to_numpy(zero_copy_only=False)
    if len(rows) and (rows.min() < 0 or rows.max() >= inputs):
        bad = (rows < 0) | (rows >= inputs)
        known = f"its rows are 0 to {inputs - 1}" if inputs else "there are no rows here"
        raise BadAnchorsError(f"there is no input row {int(rows[int(np.argmax(bad))])}: {known}")
    numbers: Rows = rows.astype(np.int64, copy=False)
    return numbers


def _is_list(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(type_)
        or pa.types.is_large_list(type_)
        or pa.types.is_fixed_size_list(type_)
    )


def _first(mask: pa.Array) -> int:
    return int(np.argmax(mask.to_numpy(zero_copy_only=False)))
