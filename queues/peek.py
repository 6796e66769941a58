"""A look at the first messages of a queue, without removing them.

Looking means consuming without acking: for a moment the messages are delivered here, so that no
other consumer gets them and later messages may overtake them. Afterwards they are in front again,
marked as redelivered. Before RabbitMQ 4.3 a quorum queue counts the look as a delivery. tiercel
blames no message for that, but a queue with a delivery limit of its own dead-letters or deletes
messages that were looked at too often: such a queue is looked at only if the caller insists.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tiercel.queues.broker.address import Address
from tiercel.queues.broker.arguments import AUTO_DELETE, read_arguments
from tiercel.queues.broker.connection import connected
from tiercel.queues.broker.declare import check_server, limit_of
from tiercel.queues.errors import BadPropertyError, BrokerRefusedError
from tiercel.queues.message.properties import header_texts, near_text
from tiercel.queues.message.writing import TEXTS
from tiercel.queues.retry import delivered_before

# From this version on messages returned by basic.nack go to the front of the queue, and the
# delivery does not count towards limits.
FREE_NACK_SINCE = (4, 3)
_RETURNED_S = 2.0
# Waiting messages arrive without a pause this long, even on a busy machine.
_QUIET_S = 3.0
# A prefetch has 16 bits.
_LONGEST_STRETCH = 1 << 15
_STRETCH_BYTES = 64 << 20


class OpenQueue:
    """An existing queue. Not thread-safe."""

    def __init__(self, connection: Any, name: str, *, nack_counts: bool) -> None:
        """``connection`` is a ``BlockingConnection``."""
        self.channel = connection.channel()
        self.name = name
        # Number of messages that waited when the first was fetched.
        self.count = 0
        self._connection = connection
        self._nack_counts = nack_counts
        self._holds = False
        self._stretches = 0

    def shown(self, most: int, most_bytes: int) -> Iterator[tuple[Any, Any, bytes]]:
        """Get the messages that waited at the start, and keep all of them until ``give_back``.
        Stops yielding after ``most_bytes``.
        """
        size = 0
        for came in self.stretches(most, most_bytes, _LONGEST_STRETCH):
            for message in came:
                if size < most_bytes:
                    yield message
                    size += _size(message)

    def stretches(
        self, most: int, most_bytes: float = math.inf, longest: int = _LONGEST_STRETCH
    ) -> Iterator[list[tuple[Any, Any, bytes]]]:
        """Get the messages that waited at the start, and keep all of them until ``give_back``.

        As ``got``, but in stretches, of about ``most_bytes`` in all. Each stretch is twice as long
        as the one before if the bounds allow it, and has a consumer that is cancelled when the
        stretch is full: pika rejects messages that arrive at a consumer cancelled earlier, and a
        rejected message counts as delivered and goes behind the others. When a channel ends, its
        messages return consumer by consumer, in the order of the consumers' names, or from RabbitMQ
        4.0 on of their subscriptions. To a quorum queue each ``basic.get`` is a consumer too, named
        by its number, so the tenth message would go in front of the second; and from 4.0 on these
        messages go behind those of real consumers.
        """
        first = self._first(most)
        number = len(first)
        size = sum(map(_size, first))
        if first:
            yield first
        while 0 < number < min(most, self.count) and size < most_bytes:
            left = min(most_bytes - size, _STRETCH_BYTES)
            room = math.ceil(left * number / max(size, 1))
            wanted = min(number, self.count - number, most - number, room, longest)
            came = self._stretch(wanted)
            size += sum(map(_size, came))
            number += len(came)
            yield came
            if len(came) < wanted:
                return  # other consumers have the rest

    def _first(self, most: int) -> list[tuple[Any, Any, bytes]]:
        """Return the first message, if there is one, and count the waiting messages."""
        self.count = self._ready(self.channel)
        came = self._stretch(1) if min(most, self.count) else []
        if not came:
            # The queue is empty, its leader is silent, or another consumer gets its messages.
            self.count = 0
            came = list(self.got(min(most, 1)))
            self._holds = self._holds or bool(came)
        return came

    def _stretch(self, wanted: int) -> list[tuple[Any, Any, bytes]]:
        """Return the next messages: ``wanted``, or fewer if no more arrive."""
        came: list[tuple[Any, Any, bytes]] = []
        self._stretches += 1
        self.channel.basic_qos(prefetch_count=wanted)
        name = self.channel.basic_consume(
            self.name,
            lambda _, *message: came.append(message),
            consumer_tag=f"look {self._stretches:04}",
        )
        until = time.monotonic() + _QUIET_S
        while len(came) < wanted and (left := until - time.monotonic()) > 0:
            before = len(came)
            self._connection.process_data_events(time_limit=left)
            if len(came) > before:
                until = time.monotonic() + _QUIET_S
        self.channel.basic_cancel(name)
        self._holds = self._holds or bool(came)
        return came

    def got(self, most: int | None) -> Iterator[tuple[Any, Any, bytes]]:
        """Get the messages that waited at the start, one by one; the caller holds or settles each.

        Yields pika's (method, properties, body). The first message carries the number of waiting
        messages, which a passive declare may not give: RabbitMQ answers 0 for a quorum queue whose
        leader is silent for 250 ms.
        """
        number = 0
        while most is None or number < most:
            method, properties, body = self.channel.basic_get(self.name)
            if method is None:
                return
            if not self.count:
                self.count = method.message_count + 1
            most = self.count if most is None else min(most, self.count)
            number += 1
            yield method, properties, body

    def hold(self) -> None:
        """Keep the last message of ``got`` until ``give_back``."""
        self._holds = True

    def give_back(self, gone: int) -> None:
        """Give back the held messages; ``gone`` of the fetched messages have been settled.

        From RabbitMQ 4.3 on this is done by ``basic.nack``, which does not count and puts them in
        front of the messages not fetched. Before, it counts and puts them behind, so the next look
        would show other messages; closing the channel counts too, but puts them in front. They are
        back a moment later, so wait for them, but not for long: another process may take them at
        once.
        """
        if not self._holds:
            return
        if not self._nack_counts:
            self.channel.basic_nack(0, multiple=True, requeue=True)
        self.channel.close()
        channel = self._connection.channel()
        until = time.monotonic() + _RETURNED_S
        while time.monotonic() < until:
            if self._ready(channel) >= self.count - gone:
                return
            self._connection.sleep(0.02)

    def _ready(self, channel: Any) -> int:
        return int(channel.queue_declare(self.name, passive=True).method.message_count)


def _size(message: tuple[Any, Any, bytes]) -> int:
    _, properties, body = message
    return len(body) + int(properties.size)


# Most bytes of a body that are kept.
BODY_BYTES = 64 * 1024
# Bytes of a body in a table.
_BYTES = 200
# Bound on the bytes of all bodies of a look: later messages are not shown.
_MOST_BYTES = 64 << 20
_PROPERTIES = (*TEXTS, "priority", "expiration", "timestamp")


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuedMessage:
    """A message waiting in a queue."""

    # From 1: the next message to be delivered.
    position: int
    # Number of times it was returned to the queue, as RabbitMQ counts; None: it does not count.
    came_back: int | None
    exchange: str
    routing_key: str
    # Properties that are set, without the headers.
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
    """The messages that a look found, and its cost."""

    messages: tuple[QueuedMessage, ...]
    # Messages that waited when it began.
    waiting: int
    # Number of consumers of the queue; messages that they hold are not shown.
    consumers: int
    # Seconds for which these messages were missing from the queue.
    away_s: float
    # RabbitMQ counts the look as a delivery of each message.
    counted: bool


def peek(amqp_url: str, queue: str, limit: int = 10, *, anyway: bool = False) -> Peeked:
    """Look at the first ``limit`` messages of a queue, in their order.

    Raises QueueMissingError, AddressError, BrokerUnavailableError, or BrokerRefusedError, also if
    the look may make RabbitMQ delete or dead-letter a message, unless ``anyway``.
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
        counts = limit_of(arguments, version).counts
        counted = version < FREE_NACK_SINCE and counts
        if counted and not anyway:
            _refuse_near_limit(queue, arguments, version)
        open_queue = OpenQueue(connection, queue, nack_counts=version < FREE_NACK_SINCE)
        began = time.monotonic()
        messages = _first(open_queue, limit, counts=counts)
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


def _first(open_queue: OpenQueue, limit: int, *, counts: bool) -> tuple[QueuedMessage, ...]:
    return tuple(
        _message(position, *message, counts=counts)
        for position, message in enumerate(open_queue.shown(limit, _MOST_BYTES), 1)
    )


def _message(
    position: int, method: Any, properties: Any, body: bytes, *, counts: bool
) -> QueuedMessage:
    return QueuedMessage(
        position=position,
        came_back=delivered_before(
            properties.headers, redelivered=method.redelivered, counts=counts
        ),
        exchange=near_text(method.exchange),
        routing_key=near_text(method.routing_key),
        properties={
            name: _plain(value)
            for name in _PROPERTIES
            if (value := getattr(properties, name)) is not None
        },
        headers=near_headers(properties.headers),
        size=len(body),
        body=body[:BODY_BYTES],
    )


def _plain(value: Any) -> str | int:
    if isinstance(value, int):
        return value
    return near_text(value) if isinstance(value, bytes) else str(value)


def near_headers(headers: Any) -> Mapping[str, str | None]:
    """Return headers as texts; if they cannot be read, the reason under the name ``?``."""
    try:
        return header_texts(headers)
    except BadPropertyError as error:
        return {"?": str(error)}


def preview_of(body: bytes) -> str:
    """Return the first 200 bytes of a body as text, with blanks for unprintable characters."""
    text = body[:_BYTES].decode("utf-8", "replace")
    return "".join(character if character.isprintable() else " " for character in text)
