"""Checks the anchors that an ``ArrowBolt`` gives for its output rows. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tiercel.acker.inbox.chunk import Rows
from tiercel.spark_jobs.errors import BadAnchorsError
from tiercel.spark_jobs.reasons import one_line

_WANTED = (
    "give one row number for each output row, a list of row numbers for each, or None for rows "
    "that are in no tree"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """The anchors of n output rows."""

    # Shape (n,): how many each has; all 0 or all at least 1.
    counts: Rows
    # The input rows, in order of output row.
    rows: Rows
    # One number an output row was given, not lists.
    single: bool


def read_anchors(anchors: Any, outputs: int, inputs: int) -> Given:
    """Check ``anchors`` of ``outputs`` rows to ``inputs`` rows; raises BadAnchorsError."""
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
    """Check some of ``inputs`` row numbers; raises BadAnchorsError."""
    array = _array([rows] if isinstance(rows, (int, np.integer)) else rows)
    if _is_list(array.type) or array.null_count:
        raise BadAnchorsError(
            f"rows are named by number, not by {array.type} with {array.null_count} nulls"
        )
    return _rows(array, inputs)


def occurrences(rows: Rows) -> Rows:
    """For each element, how many equal ones stand before it."""
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
