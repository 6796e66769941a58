"""The properties of a message beside its body: their names, their columns, and how each is read.

A property that a message does not have is null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

from tiercel.queues.errors import BadPropertyError, SchemaError
from tiercel.queues.message.header_text import (
    checked_sender,
    header_texts,
    near_text,
    published_with,
)

_LARGEST_COUNT = (1 << 31) - 1
_CHANGING = ("delivery_count", "redelivered")


class Arrived(Protocol):
    """A message as it arrived; ``consuming.hand_out.Delivery`` is one."""

    @property
    def body(self) -> bytes:
        """Its body."""

    @property
    def properties(self) -> Any:
        """Pika's ``BasicProperties``."""

    @property
    def exchange(self) -> str | bytes:
        """The exchange that it was published to; empty: the default exchange."""

    @property
    def routing_key(self) -> str | bytes:
        """The routing key that it was published with."""

    @property
    def redelivered(self) -> bool:
        """True if RabbitMQ delivered it before."""

    @property
    def delivery_count(self) -> int | None:
        """As ``queues.retry.delivered_before`` returns it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageProperty:
    """One property of a message."""

    name: str
    # The type of its column in Spark's DDL; ``queues.values.schema`` has the Arrow type.
    type: str
    # Takes the message and the name of its queue; raises BadPropertyError for a message that has
    # no true value.
    read: Callable[[Arrived, str], Any]


@dataclass(frozen=True, slots=True)
class PropertyColumns:
    """The properties that a reader asks for, in order."""

    # Each with the name of its column.
    columns: Mapping[str, str]

    @classmethod
    def of(cls, properties: Sequence[str] | Mapping[str, str]) -> PropertyColumns:
        """Take the names of properties, or a mapping of them to other names for their columns.

        Raises SchemaError for a name that no property has, and for a repeated name.
        """
        if isinstance(properties, (str, bytes)):
            raise SchemaError(f"properties is a list of names: write [{properties!r:.50}]")
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
        """The columns whose values differ when a message comes again."""
        return frozenset(self.columns[name] for name in _CHANGING if name in self.columns)

    def after(self, fields: str) -> str:
        """Return the DDL of a stream with these columns after its own ``fields``."""
        mine = [f"`{column}` {PROPERTIES[name].type}" for name, column in self.columns.items()]
        return ", ".join([fields, *mine])

    def reader(self, queue: str, user: str | None = None) -> Callable[[Arrived], list[Any]]:
        """Return a function from a message of ``queue`` to the values of these columns.

        ``user`` is ours: our copies of a message have the original's ``user_id``. The function
        raises BadPropertyError for a message that has no true value for a column.
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

    return MessageProperty(name=name, type="string", read=read)


def _sender(user: str | None, arrived: Arrived, _queue: str) -> str | None:
    return checked_sender(arrived.properties, user)


def _exchange(arrived: Arrived, _queue: str) -> str:
    return near_text(_published_with(arrived)[0])


def _routing_key(arrived: Arrived, _queue: str) -> str:
    return near_text(_published_with(arrived)[1])


def _published_with(arrived: Arrived) -> tuple[str | bytes, str | bytes]:
    """Return exchange and routing key; for a message that was put back, those of its first
    publication.
    """
    # The broker's word counts for more than a header.
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
    # A sender may have written any number where the broker does not count.
    return None if count is None else max(0, min(int(count), _LARGEST_COUNT))


def _redelivered(arrived: Arrived, _queue: str) -> bool:
    return bool(arrived.redelivered)


def _queue(_arrived: Arrived, queue: str) -> str:
    return queue


# By name.
PROPERTIES: Mapping[str, MessageProperty] = MappingProxyType(
    {
        each.name: each
        for each in (
            _text("message_id"),
            _text("correlation_id"),
            _text("reply_to"),
            _text("content_type"),
            _text("content_encoding"),
            _text("type"),
            _text("app_id"),
            _text("user_id"),
            MessageProperty(name="exchange", type="string", read=_exchange),
            MessageProperty(name="routing_key", type="string", read=_routing_key),
            MessageProperty(name="queue", type="string", read=_queue),
            MessageProperty(name="headers", type="map<string,string>", read=_headers),
            MessageProperty(name="priority", type="int", read=_priority),
            MessageProperty(name="timestamp", type="timestamp", read=_timestamp),
            MessageProperty(name="delivery_count", type="int", read=_delivery_count),
            MessageProperty(name="redelivered", type="boolean", read=_redelivered),
        )
    }
)
