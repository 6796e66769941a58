"""The properties of a message besides its body: their names, their columns, and how each is read.

A missing property is null. The headers are text, for a column ``map<string,string>``: numbers in
digits, true and false as in JSON, timestamps in ISO 8601, byte arrays in base64, tables and arrays
as JSON. Text that is not UTF-8 is a byte array.
"""

from __future__ import annotations

import base64
import json
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from tiercel.queues.broker.frames import Headers
from tiercel.queues.errors import BadPropertyError, SchemaError
from tiercel.queues.message.writing import TEXTS
from tiercel.queues.retry import FAILURES_HEADER

# RabbitMQ's own headers: its counts, and the queues that it sends copies to.
BROKER_HEADERS = frozenset(("x-delivery-count", "x-acquired-count", "CC", "BCC"))
# Exchange and routing key with which a message was first published, before it was dead-lettered or
# delayed and went through the default exchange.
EXCHANGE_HEADER = "x-tiercel-exchange"
ROUTING_KEY_HEADER = "x-tiercel-routing-key"
# Prefixes of the headers in which RabbitMQ says why it moved a message to another queue.
DEATH_HEADERS = ("x-death", "x-first-death-", "x-last-death-")
# Time of the first death or delay of a message, in seconds since the epoch: when it is delivered
# again, its effects may be older than the oldest remembered ones.
SINCE_HEADER = "x-tiercel-since"
# The user that RabbitMQ checked when the original was published, on a copy made by tiercel.
SENDER_HEADER = "x-tiercel-user"
_NOT_ITS_OWN = BROKER_HEADERS | {
    EXCHANGE_HEADER,
    ROUTING_KEY_HEADER,
    FAILURES_HEADER,
    SINCE_HEADER,
    SENDER_HEADER,
}
_SENDER_NAME = SENDER_HEADER.encode()
_EXCHANGE_NAME = EXCHANGE_HEADER.encode()
_TEXT = ord("S")
_NUMBERS = {
    ord(kind): struct.Struct(form) for kind, form in (("t", ">?"), ("I", ">i"), ("l", ">q"))
}


def header_texts(headers: Mapping[str, Any] | None) -> dict[str, str | None]:
    """Return the message's own headers; raises BadPropertyError if they cannot be read.

    Headers that RabbitMQ keeps for itself are left out. A header without a value is None.
    """
    if headers is None:
        return {}  # most messages have none, and a type check takes longer
    if not isinstance(headers, Headers):
        return _texts(headers)
    try:
        return _plain_texts(headers.wire) if headers.wire else _any_texts(headers)
    except (LookupError, ValueError, struct.error):
        # A header has another type, or the table is invalid.
        return _any_texts(headers)


def since_header(headers: Mapping[str, Any]) -> dict[str, str]:
    """Return the header with the time from which a message may have had effects; empty if the
    message has one already: the first time counts.
    """
    return {} if SINCE_HEADER in headers else {SINCE_HEADER: str(int(time.time()))}


def published_with(headers: Mapping[str, Any] | None) -> tuple[str, str] | None:
    """Read the values that ``published_headers`` wrote; None if there are none."""
    if headers is None or (isinstance(headers, Headers) and _EXCHANGE_NAME not in headers.wire):
        return None  # searching the bytes is cheaper than reading the headers
    exchange = headers.get(EXCHANGE_HEADER)
    routing_key = headers.get(ROUTING_KEY_HEADER)
    if not isinstance(exchange, str):
        return None
    return exchange, routing_key if isinstance(routing_key, str) else ""


def checked_sender(properties: Any, user: str | None) -> str | None:
    """Return the user that RabbitMQ checked when the message was published, if any.

    A copy has the user of the connection that made it. If that is ``user``, our own, the original's
    user is in a header; from any other user this header is ignored.
    """
    sender = properties.user_id
    if not sender:
        return None
    headers = properties.headers
    if sender != user or headers is None:
        return near_text(sender)
    if isinstance(headers, Headers) and _SENDER_NAME not in headers.wire:
        return near_text(sender)  # searching the bytes is cheaper than reading the headers
    told = headers.get(SENDER_HEADER)
    return told if isinstance(told, str) and told else near_text(sender)


def published_headers(exchange: str | bytes, routing_key: str | bytes) -> dict[str, str]:
    """Return headers with the place where the original of a copy was published; empty for the
    default exchange.
    """
    if not exchange:
        return {}
    return {EXCHANGE_HEADER: near_text(exchange), ROUTING_KEY_HEADER: near_text(routing_key)}


def near_text(value: str | bytes) -> str:
    r"""Return text; bytes, which pika leaves if they are not UTF-8, are shown as ``\xff``."""
    return value if isinstance(value, str) else value.decode("utf-8", "backslashreplace")


def _plain_texts(wire: bytes) -> dict[str, str | None]:
    """Return the headers of a table of texts, integers and booleans, as most are, in a fifth of the
    time for reading any table.

    Raises LookupError, ValueError or struct.error for any other table.
    """
    found: dict[str, str | None] = {}
    at = 0
    end = len(wire)
    while at < end:
        kind = at + 1 + wire[at]
        name = wire[at + 1 : kind].decode()
        if wire[kind] == _TEXT:
            at = kind + 5 + int.from_bytes(wire[kind + 1 : kind + 5])
            text = wire[kind + 5 : at].decode()
        else:
            number = _NUMBERS[wire[kind]]
            at = kind + 1 + number.size
            (value,) = number.unpack_from(wire, kind + 1)
            text = _text_of(value) or ""
        if name not in _NOT_ITS_OWN:
            # Of duplicate names, the first counts.
            found.setdefault(name, text)
    if at > end:
        raise ValueError("it is cut off")
    return found


def _any_texts(headers: Headers) -> dict[str, str | None]:
    if headers.unreadable:
        raise BadPropertyError(f"its headers cannot be read: {headers.unreadable}")
    return _texts(headers)


def _texts(headers: Mapping[str, Any]) -> dict[str, str | None]:
    # After a delay the message has the exchange and key of the delay queue.
    not_its_own = DEATH_HEADERS if FAILURES_HEADER in headers else ()
    return {
        name: _text_of(value)
        for name, value in headers.items()
        if name not in _NOT_ITS_OWN and not name.startswith(not_its_own)
    }


def _text_of(value: Any) -> str | None:
    if value is None or type(value) is str:
        return value
    if isinstance(value, (dict, list)):
        return _JSON.encode(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return _plain(value)


def _plain(value: Any) -> str:
    """Return the text of a value that is neither text nor nested."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date) else str(value)  # datetime is a date too


_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_plain)


_LARGEST_COUNT = (1 << 31) - 1
_CHANGING = ("delivery_count", "redelivered")


class Arrived(Protocol):
    """A message as it arrived, such as ``consuming.messages.Delivery``."""

    @property
    def body(self) -> bytes:
        """The body."""

    @property
    def properties(self) -> Any:
        """Pika's ``BasicProperties``."""

    @property
    def exchange(self) -> str | bytes:
        """The exchange to which it was published; empty: the default exchange."""

    @property
    def routing_key(self) -> str | bytes:
        """The routing key that it was published with."""

    @property
    def redelivered(self) -> bool:
        """True if RabbitMQ delivered it before."""

    @property
    def delivery_count(self) -> int | None:
        """As ``queues.retry.delivered_before`` returns it."""


class MessageProperty(NamedTuple):
    """One property of a message."""

    # The type of its column in Spark's DDL; ``queues.values.schema`` has the Arrow type.
    type: str
    # Takes the message and the name of its queue; raises BadPropertyError for an invalid value.
    read: Callable[[Arrived, str], Any]


@dataclass(frozen=True, slots=True)
class PropertyColumns:
    """The properties that a reader requested, in order."""

    # Maps each property to the name of its column.
    columns: Mapping[str, str]

    @classmethod
    def of(cls, properties: Sequence[str] | Mapping[str, str]) -> PropertyColumns:
        """Take the names of properties, or a mapping of them to other names for their columns.

        Raises SchemaError for an unknown property, and for a repeated name.
        """
        if isinstance(properties, (str, bytes)):
            raise SchemaError(f"properties is a list of names: write [{properties!r:.50}]")
        if isinstance(properties, AbstractSet):
            # Each process would order the columns by its own hashes, and understand no other.
            raise SchemaError(
                "properties is a list of names, because a set has another order in each process: "
                f"write {sorted(properties, key=str)!r:.200}"
            )
        renamed = properties if isinstance(properties, Mapping) else {}
        columns: dict[str, str] = {}
        for name in properties:
            if name not in PROPERTIES:
                known = ", ".join(PROPERTIES)
                raise SchemaError(f"there is no property {name!r:.50}; the properties are {known}")
            if name in columns:
                raise SchemaError(f"properties names {name!r} twice; name each once")
            columns[name] = renamed.get(name, name)
        return cls(columns)

    @property
    def changing(self) -> AbstractSet[str]:
        """The columns whose values change when a message is delivered again."""
        return frozenset(self.columns[name] for name in _CHANGING if name in self.columns)

    def after(self, fields: str) -> str:
        """Return the DDL of a stream with these columns after its own ``fields``."""
        mine = [f"`{column}` {PROPERTIES[name].type}" for name, column in self.columns.items()]
        return ", ".join([fields, *mine])

    def reader(self, queue: str, user: str | None = None) -> Callable[[Arrived], list[Any]]:
        """Return a function from a message of ``queue`` to the values of these columns.

        ``user`` is our own: copies that we make of a message keep the original's ``user_id``. The
        function raises BadPropertyError for a message with an invalid value for a column.
        """
        ours = {"user_id": partial(_sender, user)}
        reads = [ours.get(name, PROPERTIES[name].read) for name in self.columns]
        return lambda arrived: [read(arrived, queue) for read in reads]

    def values(self, given: Mapping[str, Any]) -> list[Any]:
        """Return the values of these columns, given by the names of the properties.

        Raises SchemaError for a property that has no column here.
        """
        for name in given:
            if name not in self.columns:
                known = ", ".join(self.columns) or "none: name them in properties"
                raise SchemaError(f"there is no property {name!r:.50} here; there are {known}")
        return [given.get(name) for name in self.columns]


def _text(name: str) -> MessageProperty:
    def read(arrived: Arrived, _queue: str) -> str | None:
        value = getattr(arrived.properties, name)
        return value if value is None or type(value) is str else near_text(value)

    return MessageProperty("string", read)


def _sender(user: str | None, arrived: Arrived, _queue: str) -> str | None:
    return checked_sender(arrived.properties, user)


def _exchange(arrived: Arrived, _queue: str) -> str:
    return near_text(_published_with(arrived)[0])


def _routing_key(arrived: Arrived, _queue: str) -> str:
    return near_text(_published_with(arrived)[1])


def _published_with(arrived: Arrived) -> tuple[str | bytes, str | bytes]:
    """Return exchange and routing key; for a message that was put back, as in its first
    publication.
    """
    # The broker's exchange takes precedence over a header.
    first = None if arrived.exchange else published_with(arrived.properties.headers)
    return first or (arrived.exchange, arrived.routing_key)


def _headers(arrived: Arrived, _queue: str) -> dict[str, str | None]:
    return header_texts(arrived.properties.headers)


def _priority(arrived: Arrived, _queue: str) -> int | None:
    priority: int | None = arrived.properties.priority
    return priority


def _timestamp(arrived: Arrived, _queue: str) -> datetime | None:
    seconds = arrived.properties.timestamp
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        raise BadPropertyError(
            f"its timestamp {seconds} is after the year 9999: AMQP counts seconds since 1970"
        ) from None


def _delivery_count(arrived: Arrived, _queue: str) -> int | None:
    count = arrived.delivery_count
    # The sender may have set any number if the broker does not count.
    return None if count is None else max(0, min(int(count), _LARGEST_COUNT))


def _redelivered(arrived: Arrived, _queue: str) -> bool:
    return bool(arrived.redelivered)


def _queue(_arrived: Arrived, queue: str) -> str:
    return queue


# By name.
PROPERTIES: Mapping[str, MessageProperty] = MappingProxyType(
    {
        **{name: _text(name) for name in TEXTS},
        "exchange": MessageProperty("string", _exchange),
        "routing_key": MessageProperty("string", _routing_key),
        "queue": MessageProperty("string", _queue),
        "headers": MessageProperty("map<string,string>", _headers),
        "priority": MessageProperty("int", _priority),
        "timestamp": MessageProperty("timestamp", _timestamp),
        "delivery_count": MessageProperty("int", _delivery_count),
        "redelivered": MessageProperty("boolean", _redelivered),
    }
)
