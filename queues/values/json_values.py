"""From untrusted JSON to the values of columns, for Arrow. It is read in linear time and bounded
memory, or refused in one line, and nothing is converted silently.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tiercel.queues.errors import BadBodyError
from tiercel.queues.values.python_values import LARGEST_FLOAT32, TEXTS, decimal_for

# Bound on the values in one body: the memory goes to their objects, not to their text.
MAX_VALUES = 1_000_000
# Each value has at least one character and, except for the last, a comma behind it.
_SURELY_FEW_BYTES = 2 * MAX_VALUES
_WINDOW_BYTES = 64 * 1024
# A number of 15 digits and a point is exact as a float.
_SURELY_EXACT = 16
_NAME_CHARACTERS = 50
_SAID_CHARACTERS = 200


class WrittenFloat(float):
    """A number with too many digits for a float to hold it exactly."""

    __slots__ = ("text",)
    text: str


def read_json(body: bytes, *, exact: bool = False) -> Any:
    """Return the value of a body in UTF-8; raises only BadBodyError.

    With ``exact`` a number of many digits is a ``WrittenFloat``, which keeps them for a decimal.

    Stricter than ``json``: a duplicate name in one object, NaN and infinity are refused. The time
    is in proportion to the body. A body of 16 MiB takes less than 384 MiB in addition, because a
    body of more than MAX_VALUES values is refused before it is read.
    """
    _refuse_too_many_values(body)
    try:
        return (_parse_exactly if exact else _parse)(body.decode())
    except UnicodeDecodeError as error:
        raise BadBodyError(
            f"the body is not JSON in UTF-8: byte {error.start} is 0x{body[error.start]:02x}"
        ) from error
    except RecursionError as error:
        raise BadBodyError("the body is not usable JSON: it is nested too deeply") from error
    except ValueError as error:
        raise BadBodyError(f"the body is not JSON: {str(error)[:_SAID_CHARACTERS]}") from error


def _refuse_too_many_values(body: bytes) -> None:
    # Marks within strings are not values, but finding the ends of strings is seldom worth it.
    if len(body) <= _SURELY_FEW_BYTES or _marks(body) <= MAX_VALUES:
        return
    if (count := _marks_outside_strings(body)) > MAX_VALUES:
        raise BadBodyError(
            f"the body has up to {count:,} JSON values, the limit is {MAX_VALUES:,}; send "
            "fewer per message"
        )


def _marks(text: bytes) -> int:
    """Count the marks that precede values: each value except the first follows one."""
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _marks_outside_strings(body: bytes) -> int:
    # Without escapes each quote begins or ends a string. Split in windows, as the pieces of the
    # whole body could take gigabytes.
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    count = 0
    inside = 0
    for at in range(0, len(plain), _WINDOW_BYTES):
        pieces = plain[at : at + _WINDOW_BYTES].split(b'"')
        count += _marks(b"".join(pieces[inside::2]))
        inside = (inside + len(pieces) - 1) % 2
    return count


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        for name, _ in pairs:
            if name not in members:
                raise ValueError(f"the name {name[:_NAME_CHARACTERS]!r} stands twice in one object")
            del members[name]
    return members


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _written(text: str) -> float:
    if len(text) <= _SURELY_EXACT and "e" not in text and "E" not in text:
        return float(text)
    number = WrittenFloat(text)
    number.text = text
    return number


_parse = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_constant).decode
_parse_exactly = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_no_constant, parse_float=_written
).decode


# Converts a value for Arrow; raises one of MISFITS.
Check = Callable[[Any], Any]

# More than the digits of any column and some hundred zeros; a Decimal of millions would take a
# gigabyte.
_DECIMAL_CHARACTERS = 500
# Python reads more than these: "1_000" and " 1 " as decimals, weeks as dates, and any
# character between date and time.
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOMENT = re.compile(
    r"(?:[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{8})"
    r"(?:[T ][0-9:]+(?:[.,][0-9]+)?(?:Z|[+-][0-9:]+(?:\.[0-9]+)?)?)?"
)


def check_for(type_: pa.DataType) -> Check:
    """Return a function from a JSON value to the value of a column without items and members.

    The function raises one of MISFITS.
    """
    if pa.types.is_integer(type_):
        return _integer(type_.bit_width)
    if pa.types.is_floating(type_):
        return _floating(LARGEST_FLOAT32 if type_.bit_width == 32 else math.inf)
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
        value.encode()  # a lone surrogate ("\ud800") is a str, but not encodable
    return value


# Base64 is read by a function that raises TypeError for anything but text, as ``fullmatch`` does.
def _binary(value: Any) -> bytes:
    return base64.b64decode(value, validate=True)


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
        if len(value) > _DECIMAL_CHARACTERS or _NUMBER.fullmatch(value) is None:
            raise ValueError
        return exactly(Decimal(value))

    return check


def _date(value: Any) -> date:
    if _DAY.fullmatch(value) is None:
        raise ValueError
    return date.fromisoformat(value)


def _moment(value: Any) -> datetime:
    if _MOMENT.fullmatch(value) is None:
        raise ValueError
    return datetime.fromisoformat(value)


def _timestamp(value: Any) -> datetime:
    moment = _moment(value)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _timestamp_ntz(value: Any) -> datetime:
    moment = _moment(value)
    if moment.tzinfo is not None:
        raise ValueError
    return moment


def _texts(value: Any) -> dict[str, str | None]:
    if type(value) is not dict:
        raise TypeError
    return {_string(name): None if text is None else _string(text) for name, text in value.items()}
