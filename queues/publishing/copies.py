"""Moving a message to the dead-letter queue with the reason, or to a delay queue, from which
RabbitMQ moves it back when the delay is over.

The message is copied with a publisher confirm, and acked only then: a reject without requeue would
lose the message of a queue without a dead-letter exchange, and cannot carry a reason. A crash in
between leaves the copy and the original: the message is delivered twice, and never lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from pika import BasicProperties

from tiercel.queues.broker.address import Address
from tiercel.queues.broker.connection import connected
from tiercel.queues.broker.declare import declare_dead_letter_queue
from tiercel.queues.broker.frames import Headers, Properties
from tiercel.queues.broker.management import delay_arguments, delay_ms, delay_queue
from tiercel.queues.errors import (
    AccessRefusedError,
    MessageTooLargeError,
    NackedError,
    PublishRefusedError,
    QueuesError,
)
from tiercel.queues.limits import HELD_LATER_S
from tiercel.queues.message.properties import (
    BROKER_HEADERS,
    SENDER_HEADER,
    Arrived,
    checked_sender,
    published_headers,
    since_header,
)
from tiercel.queues.message.writing import TEXTS
from tiercel.queues.publishing.outlet import Done, Outlet, Publication
from tiercel.queues.retry import FAILURES_HEADER

log = logging.getLogger(__name__)

REASON_HEADER = "x-tiercel-reason"
QUEUE_HEADER = "x-tiercel-queue"
# Time of the message's death, in ISO 8601.
DIED_HEADER = "x-tiercel-died"
_REASON_BYTES = 2_000
# All properties must fit into one frame; this is the size that RabbitMQ and pika
# agree on by default.
FRAME_BYTES = 128 * 1024
_FRAME_OVERHEAD_BYTES = 20
# Seconds for which the same refusal is not logged again as a warning.
_SAY_AGAIN_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Death:
    """Reason, time and queue of a message's death."""

    queue: str
    reason: str
    at: datetime


class CopyWriter:
    """Copies messages of one queue; connects for the first message.

    It has a separate connection: RabbitMQ stops reading from a connection that publishes during a
    memory or disk alarm, and acks on it would wait too.
    """

    def __init__(self, address: Address, queue: str, name: str) -> None:
        """``name`` is shown in RabbitMQ's list of connections."""
        self._address = address
        self._queue = queue
        self._name = name
        self._outlet: Outlet | None = None
        # The last copy that RabbitMQ refused as too large: its bytes, the time, and the refusal.
        self._too_large: tuple[int, float, MessageTooLargeError] | None = None

    def close(self, timeout_s: float) -> None:
        """Wait at most this long for copies in flight, then end."""
        if self._outlet is not None:
            self._outlet.drain(timeout_s)
            self._outlet.close(1.0)

    def _send(self, copy: Publication, plain: Callable[[], BasicProperties]) -> None:
        """Publish a copy; if it is refused, publish it again with ``plain`` properties: RabbitMQ
        may know our user by another name.

        A queue that is full or has no leader refuses none: its message is offered again later.
        RabbitMQ ends the connection for a copy that is too large, so no other of that size is sent
        for a minute.
        """
        if self._too_large is not None:
            size, at, refusal = self._too_large
            if len(copy.body) >= size and time.monotonic() - at < _SAY_AGAIN_S:
                copy.done(refusal)
                return
        if self._outlet is None or self._outlet.error is not None:
            self._outlet = Outlet(self._address, self._name, self._prepare)
        outlet = self._outlet

        def first_try(error: QueuesError | None) -> None:
            if isinstance(error, PublishRefusedError) and not isinstance(error, NackedError):
                self._refused(outlet, error)
                outlet.submit(replace(copy, properties=plain()))
                return
            if isinstance(error, MessageTooLargeError):
                self._too_large = (len(copy.body), time.monotonic(), error)
            copy.done(error)

        outlet.submit(replace(copy, done=first_try))

    def _prepare(self) -> None:
        """Declare the queues, before each connection and on its thread."""

    def _refused(self, outlet: Outlet, error: QueuesError) -> None:
        """Handle a refusal, before the copy is published again."""


class DeadLetterWriter(CopyWriter):
    """Copies messages of one queue to its dead-letter queue."""

    def __init__(self, address: Address, queue: str, dead: str) -> None:
        super().__init__(address, queue, f"tiercel dead letters of {queue}")
        self._dead = dead

    def copy(
        self, message: Arrived, reason: str, done: Callable[[QueuesError | None], None]
    ) -> None:
        """Copy one message; ``done`` is called once, on another thread, with None when the
        dead-letter queue has the copy.
        """
        published = published_headers(message.exchange, message.routing_key)
        death = Death(queue=self._queue, reason=reason, at=datetime.now(UTC))
        made = partial(dead_letter_properties, message.properties, death, published)
        copy = Publication("", self._dead, message.body, made(self._address.user), done)
        self._send(copy, made)

    def _prepare(self) -> None:
        # A user that may not declare the queue publishes into the one that exists.
        with (
            connected(self._address, "tiercel declare") as connection,
            suppress(AccessRefusedError),
        ):
            declare_dead_letter_queue(connection, self._address, self._dead)

    def _refused(self, outlet: Outlet, error: QueuesError) -> None:
        # The dead-letter queue may have been deleted: a new connection first declares it.
        outlet.reconnect(error)


def dead_letter_properties(
    properties: Any,
    death: Death,
    published: Mapping[str, str] = MappingProxyType({}),
    user: str | None = None,
) -> BasicProperties:
    """Return the properties of the copy: the original's, persistent, with its death and the place
    where it was published. ``user`` as in ``copy_properties``.

    Properties that only suit the original are left out. So are headers that cannot be read or do
    not fit into a frame together with the reason, which then says so.
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
    """Return persistent properties with other headers.

    ``expiration`` is dropped, since it would delete the copy from the next queue too. ``user_id``
    must be the user of the publishing connection: if the original's was checked, the copy gets
    ``user``, and the original's user in a header, which only copies of this user may have. Without
    a ``user`` it gets neither.
    """
    sender = checked_sender(properties, user) if user else None
    if sender is not None:
        headers = headers.plus({SENDER_HEADER: sender})
    elif SENDER_HEADER in headers:
        headers = headers.without(SENDER_HEADER.__eq__)
    kept = {name: getattr(properties, name) for name in (*TEXTS, "priority", "timestamp")}
    kept["user_id"] = None if sender is None else user
    return Properties(**kept, headers=headers, delivery_mode=2)


def clean_headers(headers: Mapping[str, Any] | None) -> Headers:
    """Return the headers that a copy may have, byte for byte as they arrived."""
    return Headers.of(headers).without(BROKER_HEADERS.__contains__)


def size_of(properties: BasicProperties) -> int:
    """Return the bytes of the frame with these properties, which is never split."""
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


class _NoRoomError(MessageTooLargeError):
    """The headers of a message leave no room for one more."""


class DelayWriter(CopyWriter):
    """Copies messages of one queue to its delay queues, and declares each with its first copy."""

    def __init__(self, address: Address, queue: str) -> None:
        super().__init__(address, queue, f"tiercel delays of {queue}")

    def copy(
        self,
        message: Arrived,
        seconds: float,
        failures: int,
        done: Callable[[QueuesError | None], None],
    ) -> None:
        """Copy one message with its ``failures``: to RabbitMQ the copy is a new message. ``done``
        is called once, with None when a delay queue has the copy; on another thread if it was sent.
        """
        published = published_headers(message.exchange, message.routing_key)
        made = partial(delay_properties, message.properties, failures, published)
        copy = made(self._address.user)
        if size_of(copy) > FRAME_BYTES:
            done(_NoRoomError("its headers leave no room for the number of its failures"))
            return
        milliseconds = delay_ms(seconds)
        queue = delay_queue(self._queue, milliseconds)
        arguments = delay_arguments(self._queue, milliseconds)
        publication = Publication("", queue, message.body, copy, done, arguments=arguments)
        self._send(publication, made)


def delay_properties(
    properties: Any,
    failures: int,
    published: Mapping[str, str] = MappingProxyType({}),
    user: str | None = None,
) -> BasicProperties:
    """Return the properties of the copy: the original's, persistent, with the number of failures so
    far, the place where it was published, and the time from which it may have had effects.

    ``x-death`` is dropped: if it names the work queue, RabbitMQ 3 assumes that the message goes in
    circles and drops it instead of moving it there. ``copy_properties`` documents which properties
    no copy has.
    """
    headers = clean_headers(properties.headers).without(lambda name: name == "x-death")
    told = {**published, **since_header(headers), FAILURES_HEADER: failures}
    return copy_properties(properties, headers.plus(told), user)


class CopyFate(Enum):
    """Result of copying a message; the values are names of counters."""

    DEAD_LETTERED = "dead_lettered"
    DELAYED = "delayed"
    # The other queue did not take it.
    REFUSED = "copies_refused"
    # RabbitMQ takes no message of this size, but moves a rejected one to the dead-letter queue.
    LEFT_TO_BROKER = "left_to_broker"
    # No delay queue can take it: its headers leave no room for more.
    NO_ROOM = "no_room"


Message = TypeVar("Message", bound=Arrived)


class Copies(Generic[Message]):
    """Copies messages to the dead-letter queue or a delay queue. The original is settled only when
    the fate of its copy is known.
    """

    def __init__(
        self,
        dead_letter_writer: DeadLetterWriter,
        delay_writer: DelayWriter,
        told: Callable[[Message, CopyFate], None],
    ) -> None:
        """``told`` is called once per message, on any thread."""
        self._dead_letter_writer = dead_letter_writer
        self._delay_writer = delay_writer
        self._told = told
        # The last refusal that was logged as a warning, and the time.
        self._said: dict[tuple[CopyFate, str], float] = {}

    def dead_letter(self, message: Message, reason: str, *, moves: bool) -> None:
        """Publish a copy to the dead-letter queue. ``moves``: a message that is rejected gets there
        too, without a reason.
        """
        large = f"RabbitMQ itself dead-letters a message, without its reason ({reason})"
        self._copy(
            message,
            CopyFate.DEAD_LETTERED,
            "a message stays in its queue for now",
            lambda done: self._dead_letter_writer.copy(message, reason, done),
            large if moves else "",
        )

    def delay(self, message: Message, seconds: float, failures: int) -> None:
        """Publish a copy to a delay queue, with the number of failures so far."""
        self._copy(
            message,
            CopyFate.DELAYED,
            f"a message wanted in {seconds:,.10g} s is held here, for {HELD_LATER_S:.0f} s at most",
            lambda done: self._delay_writer.copy(message, seconds, failures, done),
        )

    def close(self, timeout_s: float) -> None:
        """Wait at most this long for copies in flight, then end."""
        self._dead_letter_writer.close(timeout_s / 2)
        self._delay_writer.close(timeout_s / 2)

    def _copy(
        self,
        message: Message,
        fate: CopyFate,
        refused: str,
        copy: Callable[[Done], None],
        large: str = "",
    ) -> None:
        def done(error: QueuesError | None) -> None:
            if error is None:
                self._told(message, fate)
            elif isinstance(error, _NoRoomError):
                self._told(message, CopyFate.NO_ROOM)
            elif large and isinstance(error, MessageTooLargeError):
                self._log(fate, large, str(error))
                self._told(message, CopyFate.LEFT_TO_BROKER)
            else:
                self._log(fate, refused, str(error))
                self._told(message, CopyFate.REFUSED)

        try:
            copy(done)
        except Exception as error:  # noqa: BLE001 - no error of one message may harm its neighbours
            done(PublishRefusedError(f"it cannot be copied: {error!r}"))

    def _log(self, fate: CopyFate, refused: str, why: str) -> None:
        """Log a refusal: a queue that is full refuses each message every few seconds."""
        now = time.monotonic()
        is_news = now - self._said.get((fate, why), float("-inf")) >= _SAY_AGAIN_S
        if is_news:
            self._said = {(fate, why): now}
        dead = fate is CopyFate.DEAD_LETTERED
        log.log(
            logging.WARNING if is_news else logging.DEBUG,
            "%s: %s",
            refused,
            why,
            extra={"event": "dead_letter_refused" if dead else "delay_refused"},
        )
