"""Moving a message to the dead-letter queue together with the reason, or to a delay queue, from
where RabbitMQ moves it back when its time has come.

It is copied with a publisher confirm, and acknowledged only then: a reject without requeue would
lose the message on a queue that has no dead-letter exchange, and has no room for a reason. A crash
in between leaves the copy and the original: the message comes twice, and is never lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from pika import BasicProperties

from tiercel.queues.broker.address import Address
from tiercel.queues.broker.connection import connected
from tiercel.queues.broker.declare import declare_dead_letter_queue
from tiercel.queues.broker.frames import Headers, Properties
from tiercel.queues.broker.management import delay_arguments, delay_ms, delay_queue
from tiercel.queues.errors import MessageTooLargeError, PublishRefusedError, QueuesError
from tiercel.queues.message.properties import (
    BROKER_HEADERS,
    SENDER_HEADER,
    Arrived,
    checked_sender,
    published_headers,
    since_header,
)
from tiercel.queues.publishing.outlet import Outlet, Publication
from tiercel.queues.retry import FAILURES_HEADER

log = logging.getLogger(__name__)

REASON_HEADER = "x-tiercel-reason"
QUEUE_HEADER = "x-tiercel-queue"
# When it was given up, as ISO 8601 writes it.
DIED_HEADER = "x-tiercel-died"
_REASON_BYTES = 2_000
# All properties must fit into one frame; this is the size that RabbitMQ and pika
# agree on by default.
FRAME_BYTES = 128 * 1024
_FRAME_OVERHEAD_BYTES = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Death:
    """Why, when, and in which queue a message was given up."""

    queue: str
    reason: str
    at: datetime


class DeadLetterWriter:
    """Copies messages of one queue to its dead-letter queue; connects when the first one comes.

    It has a connection of its own: RabbitMQ stops reading from a connection that publishes during a
    memory or disk alarm, and acknowledgements on it would wait too.
    """

    def __init__(self, address: Address, queue: str, dead: str) -> None:
        self._address = address
        self._queue = queue
        self._dead = dead
        self._outlet: Outlet | None = None

    def copy(
        self, message: Arrived, reason: str, done: Callable[[QueuesError | None], None]
    ) -> None:
        """Copy it; ``done`` is called once, on another thread, with None when the dead-letter
        queue has the copy.
        """
        if self._outlet is None or self._outlet.error is not None:
            self._outlet = Outlet(
                self._address, f"tiercel dead letters of {self._queue}", self._prepare
            )
        outlet = self._outlet
        body = message.body
        published = published_headers(message.exchange, message.routing_key)
        death = Death(queue=self._queue, reason=reason, at=datetime.now(UTC))
        copy = dead_letter_properties(message.properties, death, published, self._address.user)

        def first_try(error: QueuesError | None) -> None:
            if isinstance(error, PublishRefusedError):
                # The dead-letter queue may have been deleted: a new connection begins
                # with declaring it. Or RabbitMQ knows our user by another name.
                outlet.reconnect(error)
                plain = dead_letter_properties(message.properties, death, published)
                outlet.submit(Publication("", self._dead, body, plain, done))
            else:
                done(error)

        outlet.submit(Publication("", self._dead, body, copy, first_try))

    def close(self, timeout_s: float) -> None:
        """Wait for copies on their way, at most this long, then end."""
        if self._outlet is not None:
            self._outlet.drain(timeout_s)
            self._outlet.close(1.0)

    def _prepare(self) -> None:
        with connected(self._address, "tiercel declare") as connection:
            declare_dead_letter_queue(connection, self._address, self._dead)


def dead_letter_properties(
    properties: Any,
    death: Death,
    published: Mapping[str, str] = MappingProxyType({}),
    user: str | None = None,
) -> BasicProperties:
    """Return the properties of the copy: the original's, persistent, with its death and the place
    where it was published. ``user`` as in ``copy_properties``.

    Properties that only fit the original are left out. So are headers that cannot be read or do not
    fit into a frame beside the reason, which then says so.
    """
    headers = Headers.of(properties.headers)
    told = {**published, **since_header(headers)}
    if headers.unreadable:
        death = _without(death, f"headers left out: {headers.unreadable}")
    kept = clean_headers(headers).plus(told)
    copy = copy_properties(properties, kept.plus(_ours(death)), user)
    if size_of(copy) > FRAME_BYTES:
        death = _without(
            death,
            f"{len(headers)} headers of {len(headers.wire):,} bytes left out: too large with the "
            "reason",
        )
        kept = Headers.of(told)
        copy = copy_properties(properties, kept.plus(_ours(death)), user)
    return copy


def copy_properties(properties: Any, headers: Headers, user: str | None = None) -> BasicProperties:
    """A persistent copy with other headers.

    Without ``expiration``, which would delete it from the next queue too. ``user_id`` must be the
    user of the connection that publishes: where the original's was checked, the copy has ``user``,
    and the original's in a header, which only copies of this user may have. Without a ``user`` it
    has neither.
    """
    sender = checked_sender(properties, user) if user else None
    if sender is not None:
        headers = headers.plus({SENDER_HEADER: sender})
    elif SENDER_HEADER in headers:
        headers = headers.without(SENDER_HEADER.__eq__)
    return Properties(
        content_type=properties.content_type,
        content_encoding=properties.content_encoding,
        headers=headers,
        delivery_mode=2,
        priority=properties.priority,
        correlation_id=properties.correlation_id,
        reply_to=properties.reply_to,
        message_id=properties.message_id,
        timestamp=properties.timestamp,
        type=properties.type,
        app_id=properties.app_id,
        user_id=None if sender is None else user,
    )


def clean_headers(headers: Mapping[str, Any] | None) -> Headers:
    """The headers that may travel with a copy, byte for byte as they came."""
    return Headers.of(headers).without(BROKER_HEADERS.__contains__)


def size_of(properties: BasicProperties) -> int:
    """Bytes of the frame that carries them, which is never split."""
    return _FRAME_OVERHEAD_BYTES + sum(map(len, properties.encode()))


def _without(death: Death, what: str) -> Death:
    return replace(death, reason=f"{death.reason}; {what}")


def _ours(death: Death) -> dict[str, str]:
    reason = death.reason.encode("utf-8", "replace")[:_REASON_BYTES].decode("utf-8", "ignore")
    return {
        REASON_HEADER: reason,
        QUEUE_HEADER: death.queue,
        DIED_HEADER: death.at.isoformat(timespec="milliseconds"),
    }


class DelayWriter:
    """Copies messages of one queue to its delay queues; connects when the first one comes."""

    def __init__(self, address: Address, queue: str) -> None:
        self._address = address
        self._queue = queue
        self._outlet: Outlet | None = None

    def copy(
        self,
        message: Arrived,
        seconds: float,
        failures: int,
        done: Callable[[QueuesError | None], None],
    ) -> None:
        """Copy it with its ``failures``: to RabbitMQ the copy is a new message.

        ``done`` is called once with None when a delay queue has it, on another thread if it was
        sent.
        """
        published = published_headers(message.exchange, message.routing_key)
        copy = delay_properties(message.properties, failures, published, self._address.user)
        if size_of(copy) > FRAME_BYTES:
            done(MessageTooLargeError("its headers leave no room for the number of its failures"))
            return
        if self._outlet is None or self._outlet.error is not None:
            self._outlet = Outlet(self._address, f"tiercel delays of {self._queue}")
        outlet = self._outlet
        milliseconds = delay_ms(seconds)
        publication = Publication(
            "",
            delay_queue(self._queue, milliseconds),
            message.body,
            copy,
            done,
            arguments=delay_arguments(self._queue, milliseconds),
        )

        def first_try(error: QueuesError | None) -> None:
            if isinstance(error, PublishRefusedError):
                # The queue was deleted: the outlet declares it again. Or our user has another name.
                plain = delay_properties(message.properties, failures, published)
                outlet.submit(replace(publication, properties=plain))
            else:
                done(error)

        outlet.submit(replace(publication, done=first_try))

    def close(self, timeout_s: float) -> None:
        """Wait for copies on their way, at most this long, then end."""
        if self._outlet is not None:
            self._outlet.drain(timeout_s)
            self._outlet.close(1.0)


def delay_properties(
    properties: Any,
    failures: int,
    published: Mapping[str, str] = MappingProxyType({}),
    user: str | None = None,
) -> BasicProperties:
    """Return the properties of the copy: the original's, persistent, with the number of failures so
    far, the place where it was published, and the time since which it may have had effects.

    Without ``x-death``: RabbitMQ 3 takes a message for one that goes round, and drops it, if that
    names the work queue, where it is about to move it. ``copy_properties`` says which properties no
    copy has.
    """
    headers = clean_headers(properties.headers).without(lambda name: name == "x-death")
    told = {**published, **since_header(headers), FAILURES_HEADER: failures}
    return copy_properties(properties, headers.plus(told), user)
