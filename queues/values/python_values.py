"""From Python values to columns, and back; decimal numbers are exact, or refused.

Arrow turns a number with some hundred zeros behind its point into 0, and crashes the process on a
number with millions. So it only gets numbers with as many decimals as their column.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import MAXYEAR, MINYEAR, date, datetime, timezone
from decimal import Context, Decimal, Inexact, InvalidOperation
from math import inf
from numbers import Integral, Number
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

# Raised by the function that `decimal_for` returns, for a value that the column cannot hold.
MISFITS = (TypeError, ValueError, ArithmeticError)

_BITS_PER_DIGIT = 4
# Larger numbers round to infinity.
LARGEST_FLOAT32 = 3.4028235677973366e38
# Without the Inexact trap a context rounds silently.
_TRAPS = [InvalidOperation, Inexact]


def decimal_for(type_: pa.Decimal128Type) -> Callable[[Any], Decimal]:
    """Return a function from a ``Decimal`` or an integer to the same number in the column's scale.

    It takes microseconds and hardly any memory, however many digits there are. It raises one of
    MISFITS for a number that would be rounded or has too many digits, and for any other value.
    """
    unit = Decimal((0, (1,), -type_.scale))
    context = Context(prec=type_.precision, traps=_TRAPS)
    bits = _BITS_PER_DIGIT * max(1, type_.precision - type_.scale)

    def exactly(value: Any) -> Decimal:
        if not isinstance(value, Decimal):
            value = _from_integer(value, bits)
        number: Decimal = value.quantize(unit, context=context)
        if not number.is_finite():
            raise ValueError("not a finite number")
        return number

    return exactly


def _from_integer(value: Any, bits: int) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError("neither a Decimal nor an integer")
    number = int(value)
    if number.bit_length() > bits:
        raise ValueError("too many digits")  # before they are written out, which takes a long time
    return Decimal(number)


# Map of names to texts, such as the headers of a message.
TEXTS = pa.map_(pa.string(), pa.string())
MOMENT = pa.timestamp("us", tz="UTC")
LOCAL = pa.timestamp("us")


def holds(type_: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    """Return True if a type, or a type in it, passes the test."""
    if test(type_):
        return True
    if pa.types.is_list(type_):
        return holds(type_.value_type, test)
    return pa.types.is_struct(type_) and any(holds(each.type, test) for each in type_)


def python_values(column: pa.Array) -> list[Any]:
    """Return the values of a column as they are in tuples."""
    values: list[Any] = column.to_pylist()
    if column.type != TEXTS:
        return values
    return [None if pairs is None else dict(pairs) for pairs in values]


def python_value(column: pa.Array, row: int) -> Any:
    """Return one value of a column as it is in tuples."""
    value = column[row].as_py()
    return dict(value) if type(value) is list and column.type == TEXTS else value


def is_in_pythons_years(column: pa.Array) -> bool:
    """Return True unless a date or time in the column is outside the years 1 to 9999, which Arrow
    accepts and Python cannot read.
    """
    while pa.types.is_list(column.type):
        column = column.flatten()
    if pa.types.is_struct(column.type):
        return all(map(is_in_pythons_years, column.flatten()))
    if pa.types.is_temporal(column.type):
        try:
            pc.min_max(column).as_py()
        except (ValueError, OverflowError):
            return False
    return True


def infinities(column: pa.Array) -> int:
    """Count the infinite numbers in a column, and in lists and structs in it."""
    while pa.types.is_list(column.type):
        column = column.flatten()
    if pa.types.is_struct(column.type):
        return sum(map(infinities, column.flatten()))
    if pa.types.is_float32(column.type) or pa.types.is_float64(column.type):
        return pc.sum(pc.is_inf(column)).as_py() or 0
    return 0


# Converts a value to one that Arrow accepts unchanged, or raises an error in UNFIT; None if Arrow
# needs no conversion.
Convert = Callable[[Any], Any] | None


def exactly(type_: pa.DataType) -> Convert:
    """Return the conversion for a type without items and members."""
    if pa.types.is_decimal(type_):
        return _unless_none(decimal_for(type_))
    if pa.types.is_temporal(type_):
        return _local_time if type_ == LOCAL else _time
    if pa.types.is_float32(type_):
        return _unless_none(_single)
    return _unless_none(_pairs) if type_ == TEXTS else None


def exactly_items(item: pa.DataType, convert: Convert) -> Convert:
    """Return the conversion for an array of items of this type."""
    inner = _whole if pa.types.is_integer(item) else convert

    def convert_all(values: Any) -> Any:
        if type(values) is not list and isinstance(values, (Mapping, str)):
            raise TypeError("not an array")  # its names or characters would be the items
        return values if inner is None else [inner(value) for value in values]

    return _unless_none(convert_all)


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One member of a struct."""

    type: pa.DataType
    convert: Convert
    optional: bool


def exactly_members(members: Mapping[str, Member]) -> Convert:
    """Return the conversion for a struct: Arrow would ignore other members, and take a missing one
    for a null.
    """
    steps = [
        (name, _integer if pa.types.is_integer(member.type) else member.convert)
        for name, member in members.items()
    ]
    required = {name for name, member in members.items() if not member.optional}

    def convert(value: Any) -> dict[str, Any]:
        given = members_in(value, members)
        if given is None or not required <= given.keys() <= members.keys():
            raise TypeError("not the members of the struct")
        return {
            name: given.get(name) if step is None else step(given.get(name)) for name, step in steps
        }

    return _unless_none(convert)


def members_in(value: Any, names: Iterable[str]) -> Mapping[str, Any] | None:
    """Return the members of a mapping, of a dataclass or of a pydantic model; None for any other
    value.
    """
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(type(value)) or hasattr(type(value), "model_fields"):
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
    return None


def _unless_none(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else function(value)


def _are_texts(value: Any) -> bool:
    return type(value) is dict and all(
        type(name) is str
        and name.isascii()
        and (text is None or (type(text) is str and text.isascii()))
        for name, text in value.items()
    )


# Arrow asks other zones for their offset, and their code may raise.
_ZONES = (type(None), timezone, ZoneInfo)


def _is_moment(value: Any) -> bool:
    return (
        type(value) is datetime and type(value.tzinfo) in _ZONES and MINYEAR < value.year < MAXYEAR
    )


# Tests for values that Arrow accepts, in a tenth of the time that Arrow's own check takes, which
# decides about values that fail them.
SURELY: dict[pa.DataType, Callable[[Any], bool]] = {
    TEXTS: _are_texts,
    MOMENT: _is_moment,
}


def _pairs(texts: Any) -> list[tuple[Any, Any]]:
    if not isinstance(texts, Mapping):
        raise TypeError("not a mapping")  # Arrow accepts pairs too, even with duplicate names
    return list(texts.items())


def _time(value: Any) -> Any:
    if not isinstance(value, date) and isinstance(value, Number):
        raise TypeError("not a time")  # Arrow would take seconds for microseconds
    return value


def _local_time(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is not None:
        raise TypeError("has a zone")  # Arrow would move it to UTC, and drop the zone
    return _time(value)


def _single(value: Any) -> Any:
    if isinstance(value, (float, int)) and LARGEST_FLOAT32 <= abs(value) < inf:
        raise ValueError("too large")  # Arrow would make it infinity
    return value


def _integer(value: Any) -> Any:
    if value is not None and not isinstance(value, Integral):
        raise TypeError("not an integer")  # Arrow would cut a fraction off
    return value


def _whole(value: Any) -> Any:
    if isinstance(value, float) and not value.is_integer():
        raise ValueError("not an integer")  # Arrow would cut the fraction off
    return value
