"""Emissions of a tuple as a few bytes: for those below when it comes again. Pure.

Each value says what it is, so that a topology that was changed since reads it as it was then. The
plain types of Python and the types of stream columns are known; nothing is ever unpickled.

Emissions one after the other, each: 1 if it was direct (then the task), 2 if its stream is not the
default one (then its name), and the number of its values; the values. Numbers are zigzag varints.
A value begins with its kind: small numbers and short texts are within it. A negative number in
front of an emission counts those before it that are not kept: keys below are made of places among
all emissions of a tuple.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from tiercel.queues.nouns import with_article
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM

_NONE, _FALSE, _TRUE, _INT, _FLOAT, _TEXT, _BYTES, _LIST, _MAP, _DECIMAL = range(10)
_DATE, _MOMENT, _UTC_MOMENT = range(10, 13)
# From here on: 0 to 63, and from there on: texts of 0 to 127 bytes.
_SMALL = 0x40
_SHORT = 0x80
# Up to this many values have a head of one byte.
_FEW = 16
_DIRECT = 1
_NAMED = 2
_DOUBLE = struct.Struct("<d")
_1970 = datetime(1970, 1, 1)  # noqa: DTZ001 - of moments that have no zone
_UTC_1970 = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


# A ``PastEmission`` as a plain tuple.
Noted = tuple[str, Sequence[Any], int | None, int]


class PastEmission(NamedTuple):
    """One emission of a tuple."""

    stream: str
    values: Sequence[Any]
    # The task that it was emitted to directly.
    task: int | None = None
    # Its place among the emissions of the tuple, from 0 on.
    position: int = 0


def pack_emissions(emissions: Iterable[Noted]) -> bytes:
    """Raises TypeError for a value that is of none of the known types. By position, ascending."""
    out = bytearray()
    writers = _WRITERS
    following = 0
    for stream, values, task, position in emissions:
        if position != following:
            _put_number(out, following - position)
        following = position + 1
        if task is None and stream == DEFAULT_STREAM and len(values) < _FEW:
            out.append(len(values) << 3)
        else:
            _put_head(out, stream, len(values), task)
        for value in values:
            writers.get(type(value), _refuse)(out, value)
    return bytes(out)


def _put_head(out: bytearray, stream: str, width: int, task: int | None) -> None:
    named = stream != DEFAULT_STREAM
    _put_number(out, width << 2 | (_NAMED if named else 0) | (task is not None))
    if task is not None:
        _put_number(out, task)
    if named:
        _put_text(out, stream)


def unpack_emissions(packed: bytes) -> list[PastEmission]:
    """Raises ValueError for bytes that ``pack_emissions`` has not made."""
    reader = _Reader(packed)
    emissions = []
    position = 0
    try:
        while reader.at < len(packed):
            head = reader.number()
            if head < 0:
                position -= head
                head = reader.number()
            task = reader.number() if head & _DIRECT else None
            stream = reader.text() if head & _NAMED else DEFAULT_STREAM
            values = [reader.value() for _ in range(head >> 2)]
            emissions.append(PastEmission(stream, values, task, position))
            position += 1
    except (LookupError, struct.error, ArithmeticError, RecursionError, TypeError) as error:
        raise ValueError(f"not what a tuple emitted: {error!r}") from error
    return emissions


def _put_number(out: bytearray, number: int) -> None:
    left = number << 1 if number >= 0 else ~(number << 1)
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)


def _put_int(out: bytearray, value: int) -> None:
    if 0 <= value < _SHORT - _SMALL:
        out.append(_SMALL + value)
    else:
        out.append(_INT)
        _put_number(out, value)


def _put_text(out: bytearray, value: str) -> None:
    encoded = value.encode()
    if len(encoded) < _SHORT:
        out.append(_SHORT + len(encoded))
    else:
        out.append(_TEXT)
        _put_number(out, len(encoded))
    out += encoded


def _put_bytes(out: bytearray, value: bytes, kind: int = _BYTES) -> None:
    out.append(kind)
    _put_number(out, len(value))
    out += value


def _put_list(out: bytearray, value: Sequence[Any]) -> None:
    out.append(_LIST)
    _put_number(out, len(value))
    for one in value:
        _WRITERS.get(type(one), _refuse)(out, one)


def _put_map(out: bytearray, value: dict[Any, Any]) -> None:
    out.append(_MAP)
    _put_number(out, len(value))
    for pair in value.items():
        for one in pair:
            _WRITERS.get(type(one), _refuse)(out, one)


def _put_moment(out: bytearray, value: datetime) -> None:
    if value.tzinfo is None:
        out.append(_MOMENT)
        _put_number(out, (value - _1970) // _MICROSECOND)
    else:
        out.append(_UTC_MOMENT)
        _put_number(out, (value - _UTC_1970) // _MICROSECOND)


def _put_date(out: bytearray, value: date) -> None:
    out.append(_DATE)
    _put_number(out, value.toordinal())


def _put_float(out: bytearray, value: float) -> None:
    out.append(_FLOAT)
    out += _DOUBLE.pack(value)


def _refuse(_out: bytearray, value: Any) -> None:
    raise TypeError(f"{with_article(type(value).__name__)} cannot be kept")


_WRITERS: dict[type, Callable[[bytearray, Any], None]] = {
    type(None): lambda out, _: out.append(_NONE),
    bool: lambda out, value: out.append(_TRUE if value else _FALSE),
    int: _put_int,
    float: _put_float,
    str: _put_text,
    bytes: _put_bytes,
    list: _put_list,
    tuple: _put_list,
    dict: _put_map,
    Decimal: lambda out, value: _put_bytes(out, str(value).encode(), _DECIMAL),
    date: _put_date,
    datetime: _put_moment,
}


class _Reader:
    """Reads values one after the other."""

    def __init__(self, packed: bytes) -> None:
        self._packed = packed
        self.at = 0

    def number(self) -> int:
        found = shift = 0
        while True:
            byte = self._packed[self.at]
            self.at += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found >> 1 ^ -(found & 1)
            shift += 7

    def value(self) -> Any:
        kind = self._packed[self.at]
        self.at += 1
        if kind >= _SHORT:
            return self._bytes(kind - _SHORT).decode()
        if kind >= _SMALL:
            return kind - _SMALL
        return _READERS[kind](self)

    def text(self) -> str:
        found = self.value()
        if not isinstance(found, str):
            raise TypeError(f"{with_article(type(found).__name__)} in the place of a text")
        return found

    def raw(self) -> bytes:
        return self._bytes(self.number())

    def values(self) -> list[Any]:
        return [self.value() for _ in range(self.number())]

    def pairs(self) -> dict[Any, Any]:
        return {self.value(): self.value() for _ in range(self.number())}

    def double(self) -> float:
        found: float = _DOUBLE.unpack(self._bytes(_DOUBLE.size))[0]
        return found

    def _bytes(self, count: int) -> bytes:
        found = self._packed[self.at : self.at + count]
        self.at += count
        if count < 0 or len(found) < count:
            raise IndexError("it ends too early")
        return found


_READERS: dict[int, Callable[[_Reader], Any]] = {
    _NONE: lambda _: None,
    _FALSE: lambda _: False,
    _TRUE: lambda _: True,
    _INT: _Reader.number,
    _FLOAT: _Reader.double,
    _TEXT: lambda reader: reader.raw().decode(),
    _BYTES: _Reader.raw,
    _LIST: _Reader.values,
    _MAP: _Reader.pairs,
    _DECIMAL: lambda reader: Decimal(reader.raw().decode()),
    _DATE: lambda reader: date.fromordinal(reader.number()),
    _MOMENT: lambda reader: _1970 + reader.number() * _MICROSECOND,
    _UTC_MOMENT: lambda reader: _UTC_1970 + reader.number() * _MICROSECOND,
}
