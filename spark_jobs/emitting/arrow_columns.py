"""Makes what an ``ArrowBolt`` emits into a record batch with exactly the stream's columns. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tiercel.queues.nouns import with_article
from tiercel.queues.values.schema import Field, Schema
from tiercel.spark_jobs.errors import BadValuesError
from tiercel.spark_jobs.reasons import one_line

# Within a kind Arrow's safe cast keeps every value or raises.
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


def conform(data: Any, schema: Schema) -> pa.RecordBatch:
    """``data`` with the stream's columns, by name, and their types; raises BadValuesError.

    Takes a RecordBatch, a Table, a mapping of column names to arrays or lists, and any object that
    speaks the Arrow PyCapsule interface: data frames of pandas and polars, results of DuckDB.
    Columns of another width or encoding are cast (int32 to long, a dictionary to its strings,
    nanoseconds to microseconds) if no value changes; columns of another kind are refused.
    """
    table = _table(data, schema)
    if sorted(table.column_names) != sorted(schema.names):
        found = ", ".join(table.column_names) or "none"
        raise BadValuesError(f"the columns are {found}; give one for each of ({schema})")
    columns = [_column(table.column(field.name), field) for field in schema.fields]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema.arrow)
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        # From buffers or an unsafe cast, such as text that is not UTF-8: receivers
        # could not read it.
        raise BadValuesError(f"the columns are damaged: {one_line(str(error))}") from error
    return batch


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
    if array.type != field.arrow:
        if not _same_kind(array.type, field.arrow):
            raise BadValuesError(
                f"field {field.name!r} is {with_article(field.type)}, the column is {array.type}"
            )
        try:
            array = array.cast(field.arrow)
        except pa.ArrowException as error:
            raise BadValuesError(
                f"field {field.name!r} is {with_article(field.type)}, the column is {array.type}: "
                f"{one_line(str(error))}"
            ) from error
    _check_dates(array, field)
    return array


def _same_kind(given: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_null(given):
        return True
    if pa.types.is_dictionary(given):
        return _same_kind(given.value_type, wanted)
    if pa.types.is_list(wanted):
        listed = (
            pa.types.is_list(given)
            or pa.types.is_large_list(given)
            or pa.types.is_fixed_size_list(given)
        )
        return listed and _same_kind(given.value_type, wanted.value_type)
    if pa.types.is_map(wanted):
        # Not all kinds of keys: a cast that makes null of one ends the process.
        texts, *_ = _KINDS
        return (
            pa.types.is_map(given)
            and texts(given.key_type)
            and _same_kind(given.item_type, wanted.item_type)
        )
    if pa.types.is_integer(given) and pa.types.is_floating(wanted):
        return True
    return any(kind(given) and kind(wanted) for kind in _KINDS)


def _check_dates(array: pa.Array, field: Field) -> None:
    """Arrow has the year 300,000, Python has not: a receiver could not read it."""
    while pa.types.is_list(array.type):
        array = array.flatten()
    if not pa.types.is_temporal(array.type):
        return
    ends = pc.min_max(array)
    try:
        ends.as_py()
    except (ValueError, OverflowError):
        raise BadValuesError(
            f"field {field.name!r} is {with_article(field.type)}, and a value is not within the "
            "years 1 to 9999"
        ) from None
