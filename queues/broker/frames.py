"""pika's connection, which survives messages whose headers pika cannot decode.

pika decodes headers while it reads frames: an error there ends the connection, and every message
that was open on it is delivered again and counted as failed. So headers are read here instead, but
only on connections opened here. A publisher may write any header: RabbitMQ passes on timestamps in
milliseconds, tables nested thousands deep and names that are not UTF-8. No header stops a message:
its tuple needs only the broker's count of deliveries, which is found next to any other header.

A message that has arrived completely, as small ones do, is read in one go and not as three frames:
pika takes 12 µs for three, which was a third of a spout worker's time per message when draining a
queue, and this takes 3.

Messages published in a row are sent together, and most are written in one go: pika passes each of a
message's three frames to the system separately. This saves two fifths of the cost of publishing.

``tests/unit/queues/broker/test_frames.py`` fails if a version of pika no longer reads frames by the
methods overridden here.
"""

from __future__ import annotations

import struct
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from decimal import Decimal
from fcntl import ioctl
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from pika import BasicProperties, SelectConnection
from pika.data import encode_value
from pika.exceptions import AMQPError
from pika.frame import Frame, Header, Method
from pika.spec import (
    FRAME_BODY,
    FRAME_END,
    FRAME_END_SIZE,
    FRAME_HEADER,
    FRAME_HEADER_SIZE,
    FRAME_METHOD,
    Basic,
)

# Raised by pika for values that it cannot encode; the last three for a name or key that is not
# text.
UNENCODABLE = (
    AMQPError,
    ValueError,
    struct.error,
    AssertionError,
    AttributeError,
    TypeError,
)
# A number as the system returns it.
_COUNT = struct.Struct("i")
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
    """The bytes violate the protocol, so the end of a value cannot be found."""


class _HeaderField(NamedTuple):
    """One value, with the offsets of its beginning (with the name), its type and its end."""

    name: str
    start: int
    kind: int
    end: int


class Headers(Mapping[str, Any]):
    r"""A mapping of the values that can be read, by name, and the bytes that it was read from.

    Reading raises nothing and takes time and memory in proportion to the table, which is at most
    one frame. Values that Python cannot hold are approximated: a timestamp beyond the year 9999
    becomes its number, a name that is not UTF-8 a text with ``\xff`` in it, a value nested deeper
    than ``DEEPEST`` a text that says so. If the end of a value cannot be found, the rest of the
    table is skipped, and ``unreadable`` is the reason.
    """

    def __init__(self, wire: bytes = b"", unreadable: str = "") -> None:
        """``wire`` is the table without its length; ``unreadable`` explains why it is missing."""
        self.wire = wire
        self._unreadable = unreadable

    @classmethod
    def of(cls, headers: Mapping[str, Any] | None) -> Headers:
        """Return the same table, or make a table of these values.

        A value that pika cannot write becomes text.
        """
        if isinstance(headers, Headers):
            return headers
        entries = [_name(name) + _written(value) for name, value in (headers or {}).items()]
        return cls(b"".join(entries))

    @property
    def unreadable(self) -> str:
        """Reason why the table, or part of it, cannot be read.

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
        """Return a copy in which these entries replace entries of the same names."""
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
                entries.append(entry)  # noqa: PERF402 - entries before an error count
        except _UnreadableError as error:
            why = str(error)
        return entries, why

    @cached_property
    def _values(self) -> dict[str, Any]:
        # Of duplicate names the first counts: RabbitMQ sets that one, and keeps it when it rewrites
        # the table.
        return {each.name: _value(self.wire, each, 1) for each in reversed(self._table[0])}


def _entries(wire: bytes, at: int, end: int, *, named: bool) -> Iterator[_HeaderField]:
    """Yield the values of a table, or of an array if not ``named``; raises _UnreadableError."""
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
    except (*UNENCODABLE, ArithmeticError, RecursionError):
        text = str(value) if isinstance(value, float) else f"({type(value).__name__})"
        return b"S" + struct.pack(">I", len(text)) + text.encode()


_FIRST = struct.Struct(">BHL")
_CONTENT = struct.Struct(">HHQ")
_END_THEN_FIRST = struct.Struct(">BBHL")
_END = bytes([FRAME_END])
_FLAGS = struct.Struct(">H")
_LENGTH = struct.Struct(">L")
_MORE_FLAGS = 1
_DELIVER = Basic.Deliver.INDEX.to_bytes(4)
_DELIVERY = struct.Struct(">QB")
_REDELIVERED = 1
# Most messages of a queue have the same few properties; longer ones are rarely repeated.
_SHARED_BYTES = 64
# Bytes passed to the system at once. Not larger, since the part that it does not take is copied.
_TOGETHER_BYTES = 64 * 1024


class Properties(BasicProperties):  # type: ignore[misc] # pika is not typed
    """pika's properties; ``headers`` of the class ``Headers`` are written as they arrived."""

    # Not in the instance's dictionary, which pika encodes and compares.
    __slots__ = ("size",)

    def __init__(self, **said: Any) -> None:
        super().__init__(**said)
        # Bytes of the properties of an arrived message on the wire, with headers. Each bound on the
        # bytes of messages counts these and the body.
        self.size = 0

    def encode(self) -> list[bytes]:
        """Return the pieces of the wire form, as ``BasicProperties.encode`` does."""
        if not isinstance(self.headers, Headers):
            return super().encode()  # type: ignore[no-any-return] # pika is not typed
        empty = b"".join(BasicProperties(**{**vars(self), "headers": {}}).encode())
        start, end = _table(empty) or (0, 0)
        table = self.headers.wire
        return [empty[:start], _LENGTH.pack(len(table)), table, empty[end:]]


class Message(Frame):  # type: ignore[misc] # pika is not typed
    """A delivery with its properties and its body, instead of three frames."""

    NAME = "Message"

    def __init__(
        self, channel_number: int, method: Basic.Deliver, properties: Properties, body: bytes
    ) -> None:
        """``properties`` are shared with other messages that have the same: do not change them."""
        self.frame_type = FRAME_METHOD
        self.channel_number = channel_number
        self.method = method
        self.properties = properties
        self.body = body


class Connection(SelectConnection):  # type: ignore[misc] # pika is not typed
    """A ``SelectConnection`` on which each message has ``Properties``, even with unreadable
    headers.
    """

    # Frames waiting to be sent together; None: each is sent separately.
    _gathered: list[bytes] | None = None
    _gathered_bytes = 0

    @contextmanager
    def together(self) -> Iterator[None]:
        """Send messages published inside the block with fewer system calls; in the same order."""
        self._gathered = []
        try:
            yield
        finally:
            self._send_gathered()
            self._gathered = None

    def left(self) -> tuple[int, int]:
        """Return how many bytes have left this host for the broker's, and how many have not yet."""
        transport = self._transport
        if transport is None:
            return 0, 0
        # pika has no call for the system's part.
        system = ioctl(transport._sock.fileno(), termios.TIOCOUTQ, bytes(4))  # noqa: SLF001
        waiting: int = transport.get_write_buffer_size() + _COUNT.unpack(system)[0]
        return self.bytes_sent - waiting, waiting

    def _send_message(
        self, channel_number: int, method_frame: Any, content: tuple[BasicProperties, bytes]
    ) -> None:
        properties, body = content
        size = len(body)
        if type(method_frame) is not Basic.Publish or not 0 < size <= self._body_max_length:
            super()._send_message(channel_number, method_frame, content)
            return
        wire = b"".join(properties.encode())
        message = (
            _publish(
                channel_number,
                method_frame.exchange,
                method_frame.routing_key,
                method_frame.mandatory,
            ),
            _FIRST.pack(FRAME_HEADER, channel_number, _CONTENT.size + len(wire)),
            _CONTENT.pack(BasicProperties.INDEX, 0, size),
            wire,
            _END_THEN_FIRST.pack(FRAME_END, FRAME_BODY, channel_number, size),
            body,
            _END,
        )
        self._output_marshaled_frames([b"".join(message)])

    def _output_marshaled_frames(self, marshaled_frames: Sequence[bytes]) -> None:
        if self._gathered is None:
            super()._output_marshaled_frames(marshaled_frames)
            return
        self._gathered += marshaled_frames
        self._gathered_bytes += sum(map(len, marshaled_frames))
        if self._gathered_bytes >= _TOGETHER_BYTES:
            self._send_gathered()

    def _send_gathered(self) -> None:
        if self._gathered:
            super()._output_marshaled_frames([b"".join(self._gathered)])
            self._gathered.clear()
            self._gathered_bytes = 0

    def _read_frame(self) -> tuple[int, Any]:
        found = _message(self._frame_buffer) or _content_header(self._frame_buffer)
        return super()._read_frame() if found is None else found

    def _process_frame(self, frame_value: Any) -> None:
        channel = (
            self._channels.get(frame_value.channel_number) if type(frame_value) is Message else None
        )
        if channel is None:
            # pika would report a message for an unknown channel
            super()._process_frame(frame_value)
            return
        self.frames_received += 3 if frame_value.body else 2
        channel._on_deliver(frame_value, frame_value, frame_value.body)  # noqa: SLF001 - as pika does with three frames


@lru_cache(maxsize=1_000)
def _publish(channel: int, exchange: str, routing_key: str, mandatory: bool) -> bytes:
    """Return the frame before a message's own; raises pika's errors."""
    method = Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=mandatory)
    frame: bytes = Method(channel, method).marshal()
    return frame


def read_properties(wire: bytes) -> Properties:
    """Read the properties of a message, from the bytes after the size of its body; raises nothing.

    Its headers are None, or ``Headers`` that may be ``unreadable``.
    """
    properties = Properties()
    properties.size = len(wire)
    try:
        table = _table(wire)
        if table is None:
            properties.decode(wire)
            return properties
        start, end = table
        flags = _FLAGS.unpack_from(wire)[0] & ~BasicProperties.FLAG_HEADERS
        properties.decode(_FLAGS.pack(flags) + wire[_FLAGS.size : start] + wire[end:])
        properties.headers = Headers(wire[start + _LENGTH.size : end])
    except Exception as error:  # noqa: BLE001 - whatever it is, it must harm this message alone
        properties = Properties(
            headers=Headers(unreadable=f"the properties are not AMQP: {error!r:.100}")
        )
        properties.size = len(wire)
    return properties


def _content_header(data: bytes) -> tuple[int, Header] | None:
    """Return the frame at the beginning, if it is a content header, and its size.

    None if it is incomplete, or another frame: then pika reads it.
    """
    if data[:1] != bytes([FRAME_HEADER]) or len(data) < FRAME_HEADER_SIZE:
        return None
    _, channel, size = _FIRST.unpack_from(data)
    end = FRAME_HEADER_SIZE + size
    if len(data) < end + FRAME_END_SIZE or data[end] != FRAME_END or size < _CONTENT.size:
        return None
    kind, _, body_size = _CONTENT.unpack_from(data, FRAME_HEADER_SIZE)
    if kind != BasicProperties.INDEX:
        return None
    properties = read_properties(data[FRAME_HEADER_SIZE + _CONTENT.size : end])
    return end + FRAME_END_SIZE, Header(channel, body_size, properties)


def _message(data: bytes) -> tuple[int, Message] | None:
    """Return the delivery at the beginning, and its size; None if pika must read it."""
    if data[FRAME_HEADER_SIZE : FRAME_HEADER_SIZE + 4] != _DELIVER or data[0] != FRAME_METHOD:
        return None
    try:
        _, channel, size = _FIRST.unpack_from(data)
        method_end = FRAME_HEADER_SIZE + size
        found = _FIRST.unpack_from(data, method_end + FRAME_END_SIZE)
        content = method_end + FRAME_END_SIZE + FRAME_HEADER_SIZE
        content_end = content + found[2]
        kind, _, body_size = _CONTENT.unpack_from(data, content)
        if (
            found[:2] != (FRAME_HEADER, channel)
            or kind != BasicProperties.INDEX
            or data[content_end] != FRAME_END
        ):
            return None
        end = content_end
        body = b""
        if body_size:
            start = content_end + FRAME_END_SIZE + FRAME_HEADER_SIZE
            end = start + body_size
            body = data[start:end]
            if _FIRST.unpack_from(data, content_end + FRAME_END_SIZE) != (
                FRAME_BODY,
                channel,
                body_size,
            ):
                return None
        if data[method_end] != FRAME_END or data[end] != FRAME_END:
            return None
        method = _delivery(data, FRAME_HEADER_SIZE + 4)
    except (struct.error, IndexError, UnicodeDecodeError):
        return None
    wire = data[content + _CONTENT.size : content_end]
    properties = _shared_properties(wire) if len(wire) <= _SHARED_BYTES else read_properties(wire)
    return end + FRAME_END_SIZE, Message(channel, method, properties, body)


def _delivery(data: bytes, at: int) -> Basic.Deliver:
    tag_end = at + 1 + data[at]
    number, bits = _DELIVERY.unpack_from(data, tag_end)
    exchange = tag_end + _DELIVERY.size
    key = exchange + 1 + data[exchange]
    return Basic.Deliver(
        data[at + 1 : tag_end].decode(),
        number,
        bits & _REDELIVERED != 0,
        data[exchange + 1 : key].decode(),
        data[key + 1 : key + 1 + data[key]].decode(),
    )


_shared_properties = lru_cache(maxsize=64)(read_properties)


def _table(wire: bytes) -> tuple[int, int] | None:
    """Return the offsets at which the header table, with its length, begins and ends.

    None if there is none.
    """
    first = _FLAGS.unpack_from(wire)[0]
    if not first & BasicProperties.FLAG_HEADERS:
        return None
    at = _FLAGS.size
    while _FLAGS.unpack_from(wire, at - _FLAGS.size)[0] & _MORE_FLAGS:
        at += _FLAGS.size
    for flag in (BasicProperties.FLAG_CONTENT_TYPE, BasicProperties.FLAG_CONTENT_ENCODING):
        if first & flag:
            at += 1 + wire[at]
    end = at + _LENGTH.size + _LENGTH.unpack_from(wire, at)[0]
    if end > len(wire):
        raise ValueError("the header table is cut off")
    return at, end
