"""pika's connection, but a message whose headers pika cannot decode does not end it.

pika decodes headers where it reads frames: what it raises there ends the connection, and every
message that was open on it is delivered again, counted as failed. So headers are read by
``queues.headers`` instead, in the connections that are opened here and in no others of the process.
``tests/unit/test_frames.py`` fails if a pika no longer reads frames by the method overridden here.
"""

from __future__ import annotations

import struct
from typing import Any

from pika import BasicProperties, SelectConnection
from pika.frame import Header
from pika.spec import FRAME_END, FRAME_END_SIZE, FRAME_HEADER, FRAME_HEADER_SIZE

from queues.headers import Headers

_FIRST = struct.Struct(">BHL")
_CONTENT = struct.Struct(">HHQ")
_FLAGS = struct.Struct(">H")
_LENGTH = struct.Struct(">L")
_MORE_FLAGS = 1


class Properties(BasicProperties):  # type: ignore[misc] # pika is not typed
    """pika's, with ``headers`` that are written as they came if they are ``Headers``."""

    def encode(self) -> list[bytes]:
        """What ``BasicProperties.encode`` returns: the pieces of the wire form."""
        if not isinstance(self.headers, Headers):
            return list(super().encode())
        empty = b"".join(BasicProperties(**{**vars(self), "headers": {}}).encode())
        start, end = _table(empty) or (0, 0)
        table = self.headers.wire
        return [empty[:start], _LENGTH.pack(len(table)), table, empty[end:]]


class Connection(SelectConnection):  # type: ignore[misc] # pika is not typed
    """A ``SelectConnection`` on which each message has ``Properties``, whatever came."""

    def _read_frame(self) -> tuple[int, Any]:
        found = _content_header(self._frame_buffer)
        return super()._read_frame() if found is None else found


def read_properties(wire: bytes) -> Properties:
    """The properties of a message, from behind the size of its body; raises nothing.

    Its headers are None, or ``Headers`` that may be ``unreadable``.
    """
    properties = Properties()
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
        return Properties(headers=Headers(unreadable=f"the properties are not AMQP: {error!r:.100}"))
    return properties


def _content_header(data: bytes) -> tuple[int, Header] | None:
    """The frame at the beginning, if it is all there and begins a message, and its size; else pika reads it."""
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


def _table(wire: bytes) -> tuple[int, int] | None:
    """Where the header table begins, with its length, and where it ends; None if there is none."""
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
