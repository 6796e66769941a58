"""A look at the first messages of a queue, which stay where they are.

Looking means consuming without acking: for a moment the messages are delivered here, so that no
consumer has them and messages behind may overtake them. Afterwards they are in front again, marked
as delivered before; and a quorum queue counts the look, before RabbitMQ 4.3. tiercel blames no
message for that, but a queue with a delivery limit of its own dead-letters or deletes messages that
were looked at too often: such a queue is looked at only where the caller says so.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tiercel.queues.broker.address import Address
from tiercel.queues.broker.arguments import AUTO_DELETE, TYPE, read_arguments
from tiercel.queues.broker.connection import connected
from tiercel.queues.broker.declare import check_server, limit_of
from tiercel.queues.broker.open_queue import FREE_NACK_SINCE, OpenQueue
from tiercel.queues.errors import BadPropertyError, BrokerRefusedError
from tiercel.queues.message.header_text import header_texts, near_text
from tiercel.queues.message.preview import BODY_BYTES, preview_of
from tiercel.queues.message.writing import TEXTS
from tiercel.queues.retry import delivered_before

# Bound on the bytes of all bodies of a look: the messages behind are not shown.
_MOST_BYTES = 64 << 20
_PROPERTIES = (*TEXTS, "priority", "expiration", "timestamp")


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuedMessage:
    """A message that waits in a queue."""

    # From 1, the first that will be delivered.
    position: int
    # Number of times it came back to the queue before, as RabbitMQ counts; None: it does not.
    came_back: int | None
    exchange: str
    routing_key: str
    # Properties that it has, without the headers.
    properties: Mapping[str, str | int]
    headers: Mapping[str, str | None]
    # Bytes of its body.
    size: int
    # The first BODY_BYTES of the body.
    body: bytes

    @property
    def preview(self) -> str:
        """The beginning of its body, printable."""
        return preview_of(self.body)


@dataclass(frozen=True, kw_only=True, slots=True)
class Peeked:
    """The messages that a look has found, and its cost."""

    messages: tuple[QueuedMessage, ...]
    # Messages that waited when it began.
    waiting: int
    # Number of consumers of the queue; messages that they hold are not among these.
    consumers: int
    # Seconds for which these messages were away.
    away_s: float
    # RabbitMQ counts it as a delivery of each.
    counted: bool


def peek(amqp_url: str, queue: str, limit: int = 10, *, anyway: bool = False) -> Peeked:
    """Look at the first ``limit`` messages of a queue, in their order.

    Raises QueueMissingError, AddressError, BrokerUnavailableError, BrokerRefusedError; the last one
    also where looking may end a message, unless ``anyway``.
    """
    address = Address.parse(amqp_url)
    with connected(address, "tiercel peek") as connection:
        version = check_server(connection, address)
        there = connection.channel().queue_declare(queue, passive=True).method
        arguments = read_arguments(connection, queue) or {}
        if arguments.get(AUTO_DELETE) and not there.consumer_count:
            raise BrokerRefusedError(
                f"queue {queue!r} is auto-delete and has no consumer: the end of a look would "
                "delete it; declare it again without auto_delete"
            )
        counted = version < FREE_NACK_SINCE and arguments.get(TYPE, "quorum") == "quorum"
        if counted and not anyway:
            _refuse_near_limit(queue, arguments, version)
        open_queue = OpenQueue(connection, queue, nack_counts=version < FREE_NACK_SINCE)
        began = time.monotonic()
        messages = _first(open_queue, limit)
        open_queue.give_back(0)
        return Peeked(
            messages=messages,
            waiting=open_queue.count,
            consumers=there.consumer_count,
            away_s=time.monotonic() - began,
            counted=counted,
        )


def _refuse_near_limit(queue: str, arguments: Mapping[str, Any], version: tuple[int, int]) -> None:
    limit = limit_of(arguments, version)
    if limit.returns_are_free:
        return
    fate = "deletes it" if limit.deletes else "dead-letters it"
    raise BrokerRefusedError(
        f"queue {queue!r} has a delivery limit of {limit.returns}, and each look counts as a "
        f"delivery of the message: beyond the limit RabbitMQ {fate}; to look all the same, "
        "say --anyway"
    )


def _first(open_queue: OpenQueue, limit: int) -> tuple[QueuedMessage, ...]:
    return tuple(
        _message(position, *message)
        for position, message in enumerate(open_queue.shown(limit, _MOST_BYTES), 1)
    )


def _message(position: int, method: Any, properties: Any, body: bytes) -> QueuedMessage:
    return QueuedMessage(
        position=position,
        came_back=delivered_before(properties.headers, redelivered=method.redelivered),
        exchange=near_text(method.exchange),
        routing_key=near_text(method.routing_key),
        properties={
            name: _plain(value)
            for name in _PROPERTIES
            if (value := getattr(properties, name)) is not None
        },
        headers=_headers(properties.headers),
        size=len(body),
        body=body[:BODY_BYTES],
    )


def _plain(value: Any) -> str | int:
    if isinstance(value, int):
        return value
    return near_text(value) if isinstance(value, bytes) else str(value)


def _headers(headers: Any) -> Mapping[str, str | None]:
    try:
        return header_texts(headers)
    except BadPropertyError as error:
        return {"?": str(error)}
