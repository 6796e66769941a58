"""Python's values for columns, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa

from tiercel.queues.values.decimals import decimal_for

# Texts by name, such as the headers of a message.
TEXTS = pa.map_(pa.string(), pa.string())
MOMENT = pa.timestamp("us", tz="UTC")


def python_values(column: pa.Array) -> list[Any]:
    """Return the values of a column as tuples have them."""
    values: list[Any] = column.to_pylist()
    if column.type != TEXTS:
        return values
    return [None if pairs is None else dict(pairs) for pairs in values]


def python_value(column: pa.Array, row: int) -> Any:
    """Return one value of a column as tuples have it."""
    value = column[row].as_py()
    return dict(value) if type(value) is list and column.type == TEXTS else value


def exactly(type_: pa.DataType) -> Callable[[Any], Any] | None:
    """Return a function that converts a value to one that Arrow takes as it is, or raises an error
    in UNFIT; None if no conversion is needed.
    """
    if pa.types.is_decimal(type_):
        return _unless_none(decimal_for(type_))
    if type_ == TEXTS:
        return _unless_none(_pairs)
    if not pa.types.is_list(type_):
        return None
    inner = _whole if pa.types.is_integer(type_.value_type) else exactly(type_.value_type)
    return (
        None if inner is None else _unless_none(lambda values: [inner(value) for value in values])
    )


def _unless_none(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else function(value)


def _are_texts(value: Any) -> bool:
    return type(value) is dict and all(
        type(name) is str
        and name.isascii()
        and (text is None or (type(text) is str and text.isascii()))
        for name, text in value.items()
    )


def _is_moment(value: Any) -> bool:
    return type(value) is datetime


# Tests of values that Arrow takes, in a tenth of the time that asking it takes; it is asked about
# those that fail them.
SURELY: dict[pa.DataType, Callable[[Any], bool]] = {
    TEXTS: _are_texts,
    MOMENT: _is_moment,
}


def _pairs(texts: Any) -> list[tuple[Any, Any]]:
    if not isinstance(texts, Mapping):
        raise TypeError("not a mapping")  # Arrow takes pairs too, also of a name that stands twice
    return list(texts.items())


def _whole(value: Any) -> Any:
    if isinstance(value, float) and not value.is_integer():
        raise ValueError("not an integer")  # Arrow would cut the fraction off
    return value
