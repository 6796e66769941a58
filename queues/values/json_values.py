"""From a value of JSON to the value of a column, for Arrow. Nothing is converted silently."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tiercel.queues.values.decimals import decimal_for
from tiercel.queues.values.json_text import WrittenFloat
from tiercel.queues.values.python_values import TEXTS

# Returns the value for Arrow; raises one of MISFITS.
Check = Callable[[Any], Any]

# From here on it rounds to infinity.
_LARGEST_FLOAT32 = 3.4028235677973366e38
# More digits than any column has, and some hundred zeros; a Decimal of millions would
# take a gigabyte.
_DECIMAL_CHARACTERS = 500


def check_for(type_: pa.DataType) -> Check:
    """Return a function from a value of JSON to the column's, which raises one of MISFITS."""
    if pa.types.is_list(type_):
        return _array(check_for(type_.value_type))
    if pa.types.is_integer(type_):
        return _integer(type_.bit_width)
    if pa.types.is_floating(type_):
        return _floating(_LARGEST_FLOAT32 if type_.bit_width == 32 else math.inf)
    if pa.types.is_decimal(type_):
        return _decimal(type_)
    if pa.types.is_timestamp(type_):
        return _timestamp if type_.tz else _timestamp_ntz
    simple: dict[pa.DataType, Check] = {
        pa.string(): _string,
        pa.binary(): _binary,
        pa.bool_(): _boolean,
        pa.date32(): _date,
        TEXTS: _texts,
    }
    return simple[type_]


def _string(value: Any) -> str:
    if type(value) is not str:
        raise TypeError
    if not value.isascii():
        value.encode()  # a lone surrogate ("\ud800") is a str, but no text
    return value


def _binary(value: Any) -> bytes:
    if type(value) is not str:
        raise TypeError
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError from error


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError
    return value


def _integer(bits: int) -> Check:
    low = -(1 << bits - 1)
    high = (1 << bits - 1) - 1

    def check(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError
        return value

    return check


def _floating(bound: float) -> Check:
    def check(value: Any) -> float:
        if not isinstance(value, float) and type(value) is not int:
            raise TypeError
        number = float(value)
        if not -bound < number < bound:  # refuses infinity (1e999) too
            raise ValueError
        return number

    return check


def _decimal(type_: pa.DataType) -> Check:
    exactly = decimal_for(type_)

    def check(value: Any) -> Decimal:
        if isinstance(value, float):
            value = value.text if isinstance(value, WrittenFloat) else repr(value)
        if type(value) is not str:
            return exactly(value)
        if len(value) > _DECIMAL_CHARACTERS:
            raise ValueError
        return exactly(Decimal(value))

    return check


def _date(value: Any) -> date:
    if type(value) is not str:
        raise TypeError
    return date.fromisoformat(value)


def _timestamp(value: Any) -> datetime:
    if type(value) is not str:
        raise TypeError
    moment = datetime.fromisoformat(value)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _timestamp_ntz(value: Any) -> datetime:
    if type(value) is not str:
        raise TypeError
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is not None:
        raise ValueError
    return moment


def _texts(value: Any) -> dict[str, str | None]:
    if type(value) is not dict:
        raise TypeError
    return {_string(name): None if text is None else _string(text) for name, text in value.items()}


def _array(check: Check) -> Check:
    def check_all(value: Any) -> list[Any]:
        if type(value) is not list:
            raise TypeError
        return [None if item is None else check(item) for item in value]

    return check_all
