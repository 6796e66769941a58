"""The properties of a message that is to be published, checked before anything is sent.

Invalid properties make RabbitMQ close the channel, or the connection with all messages in flight:
here they are refused one by one, with the reason.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import isfinite
from types import MappingProxyType
from typing import Any

from pika import BasicProperties
from pika.data import encode_value
from pika.exceptions import AMQPError

from tiercel.queues.broker.frames import Headers, Properties
from tiercel.queues.errors import BadPropertyError

# The properties that are texts.
TEXTS = (
    "message_id",
    "correlation_id",
    "reply_to",
    "content_type",
    "content_encoding",
    "type",
    "app_id",
    "user_id",
)
_TEXT_BYTES = 255
# All properties must fit into one frame, of 128 KiB by default, with texts of 255 bytes and, when
# the message is dead-lettered, the reason.
_HEADER_BYTES = 120 * 1024
_NAME_BYTES = 255
_DEEPEST = 32
_LARGEST_EXPIRATION_MS = (1 << 32) - 1
_PERSISTENT = 2
_TRANSIENT = 1
# RabbitMQ sends copies to the queues named in these headers.
_COPIES = ("CC", "BCC")
_LENGTH = struct.Struct(">I")
_DOUBLE = struct.Struct(">d")
_UNWRITABLE = (AMQPError, struct.error, ValueError, TypeError, ArithmeticError)


def write_properties(values: Mapping[str, Any], *, persistent: bool = True) -> BasicProperties:
    """Return properties with these values, by the names in ``WRITTEN``; None means that the
    property is not set.

    Texts have at most 255 bytes. ``headers`` map names to texts, numbers, booleans, bytes,
    datetimes, and lists and mappings of these. ``priority`` is 0 to 255. ``timestamp`` is a
    datetime (UTC if it has no offset), cut to the second, or seconds since 1970. ``expiration`` is
    a timedelta, or milliseconds as a number or as text. Raises BadPropertyError.
    """
    made = Properties(delivery_mode=_PERSISTENT if persistent else _TRANSIENT)
    for name, value in values.items():
        write = WRITTEN.get(name)
        if write is None:
            raise BadPropertyError(
                f"a message has no property {name!r:.50} to write; there are {', '.join(WRITTEN)}"
            )
        if value is not None:
            setattr(made, name, write(name, value))
    return made


def write_headers(headers: Mapping[str, Any]) -> Headers:
    """Return a table of these headers; raises BadPropertyError naming the first bad one."""
    if not isinstance(headers, Mapping):
        raise BadPropertyError(f"headers is a mapping of names to values, not {_shown(headers)}")
    wire = b"".join([_header(name, value) for name, value in headers.items()])
    if len(wire) > _HEADER_BYTES:
        raise BadPropertyError(
            f"the headers have {len(wire):,} bytes, and a message has room for {_HEADER_BYTES:,}; "
            "put more into its body"
        )
    return Headers(wire)


def _header(name: Any, value: Any) -> bytes:
    if name in _COPIES and not (
        isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)
    ):
        raise BadPropertyError(
            f"the header {name!r} is a list of routing keys, to which RabbitMQ sends copies, not "
            f"{_shown(value)}"
        )
    try:
        return _named(name, value, 1)
    except _UNWRITABLE as error:
        why = str(error) if type(error) is TypeError else "it does not fit"
        raise BadPropertyError(f"header {name!r:.50} cannot be {_shown(value)}: {why}") from None


def _named(name: Any, value: Any, depth: int) -> bytes:
    if not isinstance(name, str) or not 1 <= len(encoded := name.encode()) <= _NAME_BYTES:
        raise TypeError(f"a name has 1 to {_NAME_BYTES} bytes")
    return bytes([len(encoded)]) + encoded + _encoded(value, depth)


def _encoded(value: Any, depth: int) -> bytes:
    """Return a value with its type; raises one of ``_UNWRITABLE``."""
    if type(value) is str:
        text = value.encode()
        return b"S" + _LENGTH.pack(len(text)) + text
    if isinstance(value, float):
        if not isfinite(value):
            raise TypeError("RabbitMQ takes only finite numbers")  # it closes the connection
        return b"d" + _DOUBLE.pack(value)  # pika does not write floats
    if isinstance(value, (Mapping, list, tuple)):
        if depth >= _DEEPEST:
            raise TypeError(f"it is nested more than {_DEEPEST} deep")
        if isinstance(value, Mapping):
            kind = b"F"
            inner = [_named(name, each, depth + 1) for name, each in value.items()]
        else:
            kind = b"A"
            inner = [_encoded(each, depth + 1) for each in value]
        table = b"".join(inner)
        return kind + _LENGTH.pack(len(table)) + table
    pieces: list[bytes] = []
    try:
        encode_value(pieces, value)
    except AMQPError:
        raise TypeError(f"headers hold no {type(value).__name__}") from None
    return b"".join(pieces)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise BadPropertyError(f"{name} is a text, not {_shown(value)}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise BadPropertyError(f"{name} is no text in UTF-8: {_shown(value)}") from None
    if size > _TEXT_BYTES:
        raise BadPropertyError(
            f"{name} has {size:,} bytes, and a message has room for {_TEXT_BYTES}: {_shown(value)}"
        )
    return value


def _priority(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= 255:
        raise BadPropertyError(f"{name} is a number from 0 to 255, not {_shown(value)}")
    return value


def _timestamp(name: str, value: Any) -> int:
    seconds = value
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        seconds = int(moment.timestamp())
    if type(seconds) is not int or not 0 <= seconds < 1 << 63:
        raise BadPropertyError(f"{name} is a moment since 1970, not {_shown(value)}")
    return seconds


def _expiration(name: str, value: Any) -> str:
    milliseconds = value
    if isinstance(value, timedelta):
        milliseconds = value // timedelta(milliseconds=1)
    elif isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 10:
        milliseconds = int(value)
    if type(milliseconds) is not int or not 0 <= milliseconds <= _LARGEST_EXPIRATION_MS:
        raise BadPropertyError(
            f"{name} is a time of 0 to {_LARGEST_EXPIRATION_MS:,} milliseconds, not {_shown(value)}"
        )
    return str(milliseconds)


def _headers(_name: str, value: Any) -> Headers:
    return write_headers(value)


def _shown(value: Any) -> str:
    try:
        return f"the {type(value).__name__} {value!r:.50}"
    except (ValueError, RecursionError):
        # An integer of more than 4,300 digits, or deeply nested lists.
        return f"the {type(value).__name__} that cannot be shown"


# Functions that check and convert each property, by its name.
WRITTEN: Mapping[str, Callable[[str, Any], Any]] = MappingProxyType(
    {
        **dict.fromkeys(TEXTS, _text),
        "headers": _headers,
        "priority": _priority,
        "timestamp": _timestamp,
        "expiration": _expiration,
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class OutgoingMessage:
    """One message, for a queue or for an exchange.

    * ``body``: the content, as bytes.
    * ``routing_key``: the name of the queue, if ``exchange`` is empty.
    * ``exchange``: empty for the default exchange, which leads to the queue of that name.
    * ``properties``: pika's ``BasicProperties``. The publisher adds a message id if there is none.
    * ``mandatory``: False: if no queue takes the message, the broker drops it silently, and it
      counts as published.
    """

    body: bytes
    routing_key: str
    exchange: str = ""
    properties: BasicProperties = field(default_factory=lambda: write_properties({}))
    mandatory: bool = True
