"""The header table of a message: read with care, copied byte for byte.

A publisher may write any header: RabbitMQ passes on timestamps in milliseconds, tables nested
thousands deep and names that are not UTF-8. No header stops a message: nothing on the way to its
tuple needs one but the broker's count of deliveries, which is found beside any other header.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any, NamedTuple

from pika.data import encode_value
from pika.exceptions import AMQPError

# Depth to which nested tables and arrays are read; deeper ones are only measured.
DEEPEST = 32

# RabbitMQ's types, which differ from the specification's: rabbitmq.com/amqp-0-9-1-errata.
_FORMATS = {
    b"t": ">?",
    b"b": ">b",
    b"B": ">B",
    b"s": ">h",
    b"U": ">h",
    b"u": ">H",
    b"I": ">i",
    b"i": ">I",
    b"L": ">q",
    b"l": ">q",
    b"f": ">f",
    b"d": ">d",
    b"T": ">Q",
    b"D": ">Bi",
}
_SIZES = {kind: struct.calcsize(form) for kind, form in _FORMATS.items()} | {b"V": 0}
_WITH_LENGTH = (b"S", b"x", b"A", b"F")


class _UnreadableError(ValueError):
    """The bytes break the protocol, so that an end cannot be found."""


class _HeaderField(NamedTuple):
    """One value, with the places where it begins (with its name), where its type
    stands, and its end.
    """

    name: str
    start: int
    kind: int
    end: int


class Headers(Mapping[str, Any]):
    r"""A mapping of the values that can be read, by name, and the bytes that it was read from.

    Reading raises nothing and takes time and memory in proportion to the table, which is at most
    one frame. What Python cannot hold becomes something near: a timestamp beyond the year 9999 its
    number, a name that is not UTF-8 a text with ``\xff`` in it, a value nested deeper than
    ``DEEPEST`` a text that says so. Where an end cannot be found, the rest of the table is passed
    over, and ``unreadable`` says why.
    """

    def __init__(self, wire: bytes = b"", unreadable: str = "") -> None:
        """``wire`` is the table without its length; ``unreadable`` says why it is not there."""
        self.wire = wire
        self._unreadable = unreadable

    @classmethod
    def of(cls, headers: Mapping[str, Any] | None) -> Headers:
        """Return the same table, or make one of these values.

        A value that pika cannot write becomes text.
        """
        if isinstance(headers, Headers):
            return headers
        entries = [_name(name) + _written(value) for name, value in (headers or {}).items()]
        return cls(b"".join(entries))

    @property
    def unreadable(self) -> str:
        """Reason for which a part of it, or all of it, cannot be read.

        Empty if nothing is missing.
        """
        return self._table[1]

    def without(self, unwanted: Callable[[str], bool]) -> Headers:
        """Return a copy without the entries of these names, and without unreadable ones."""
        wire = self.wire
        return Headers(
            b"".join(
                [wire[each.start : each.end] for each in self._table[0] if not unwanted(each.name)]
            )
        )

    def plus(self, values: Mapping[str, Any]) -> Headers:
        """Return a copy in which these entries replace those of the same names."""
        return Headers(self.without(values.__contains__).wire + Headers.of(values).wire)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Headers({self._values!r})"

    @cached_property
    def _table(self) -> tuple[list[_HeaderField], str]:
        entries: list[_HeaderField] = []
        why = self._unreadable
        try:
            for entry in _entries(self.wire, 0, len(self.wire), named=True):
                entries.append(entry)  # noqa: PERF402 - those before an error count
        except _UnreadableError as error:
            why = str(error)
        return entries, why

    @cached_property
    def _values(self) -> dict[str, Any]:
        # Of a name that stands twice, the first: that is the one which RabbitMQ sets, and keeps
        # when it writes anew.
        return {each.name: _value(self.wire, each, 1) for each in reversed(self._table[0])}


def _entries(wire: bytes, at: int, end: int, *, named: bool) -> Iterator[_HeaderField]:
    """The values of a table, or of an array if they are not named; raises _UnreadableError."""
    while at < end:
        kind = at + 1 + wire[at] if named else at
        stop = _end(wire, kind)
        if stop > end:
            raise _UnreadableError(f"the value at byte {kind} is cut off")
        name = wire[at + 1 : kind].decode("utf-8", "backslashreplace") if named else ""
        yield _HeaderField(name, at, kind, stop)
        at = stop


def _end(wire: bytes, kind: int) -> int:
    type_ = wire[kind : kind + 1]
    size = _SIZES.get(type_)
    if size is not None:
        return kind + 1 + size
    if not type_ or (type_ in _WITH_LENGTH and kind + 5 > len(wire)):
        raise _UnreadableError(f"the value at byte {kind} is cut off")
    if type_ not in _WITH_LENGTH:
        raise _UnreadableError(f"the value at byte {kind} is of the unknown type 0x{type_.hex()}")
    return kind + 5 + int.from_bytes(wire[kind + 1 : kind + 5])


def _value(wire: bytes, entry: _HeaderField, depth: int) -> Any:
    type_ = wire[entry.kind : entry.kind + 1]
    if type_ in (b"A", b"F"):
        return _nested(wire, entry, depth, named=type_ == b"F")
    if type_ in (b"S", b"x"):
        return _text(wire[entry.kind + 5 : entry.end], binary=type_ == b"x")
    return None if type_ == b"V" else _number(type_, wire, entry.kind + 1)


def _text(found: bytes, *, binary: bool) -> str | bytes:
    if not binary:
        with suppress(UnicodeDecodeError):
            return found.decode()
    return found


def _number(type_: bytes, wire: bytes, at: int) -> Any:
    found = struct.unpack_from(_FORMATS[type_], wire, at)
    if type_ == b"D":
        return Decimal(found[1]).scaleb(-found[0])
    if type_ == b"T":
        with suppress(ValueError, OverflowError, OSError):
            return datetime.fromtimestamp(found[0], UTC)
    return found[0]


def _nested(wire: bytes, entry: _HeaderField, depth: int, *, named: bool) -> Any:
    start = entry.kind + 5
    if depth > DEEPEST:
        return f"({entry.end - start} bytes nested more than {DEEPEST} deep)"
    try:
        entries = list(_entries(wire, start, entry.end, named=named))
    except _UnreadableError as error:
        return f"(unreadable: {error})"
    if named:
        return {each.name: _value(wire, each, depth + 1) for each in entries}
    return [_value(wire, each, depth + 1) for each in entries]


def _name(name: Any) -> bytes:
    encoded = str(name).encode("utf-8", "backslashreplace")[:255]
    return bytes([len(encoded)]) + encoded


def _written(value: Any) -> bytes:
    pieces: list[bytes] = []
    try:
        encode_value(pieces, value)
        return b"".join(pieces)
    except (
        AMQPError,
        ValueError,
        TypeError,
        AttributeError,
        ArithmeticError,
        struct.error,
        RecursionError,
    ):
        text = str(value) if isinstance(value, float) else f"({type(value).__name__})"
        return b"S" + struct.pack(">I", len(text)) + text.encode()
