"""Publishing many messages into a queue, each one confirmed by the broker."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from datetime import timedelta
from typing import Any, Self

from tiercel.queues.broker.address import Address
from tiercel.queues.errors import (
    BrokerUnavailableError,
    MessageTooLargeError,
    NackedError,
    PublishRefusedError,
    QueuesError,
)
from tiercel.queues.limits import MAX_BODY_BYTES
from tiercel.queues.message.writing import OutgoingMessage, write_headers, write_properties
from tiercel.queues.publishing.outlet import Done, Outlet, Publication

# Bounds on messages in memory, confirmed or not, and on their bytes.
_ROOM = 4_000
_ROOM_BYTES = 64 * 1024 * 1024
_LOOK_S = 0.1
# Seconds between two calls of ``on_wait``.
_SAY_S = 1.0
# Seconds between two attempts to publish nacked messages.
_AGAIN_S = 0.25
_PATIENCE = timedelta(seconds=15)
_NAME = "tiercel publish"
# None once the broker has the message, else the error.
_Fate = Future[QueuesError | None]

# Called with a returned message, and the reason.
Refused = Callable[[OutgoingMessage, QueuesError], None]


class Publisher:
    """Publishes persistent messages over one connection, which is reopened when it breaks.

    One ``publish`` at a time.

    A message is published at least once: unconfirmed messages are published again after a
    connection broke. Its ``message_id`` stays the same, so that a consumer can recognise it.
    """

    def __init__(self, amqp_url: str, patience: timedelta = _PATIENCE) -> None:
        """Connect in the background. Raises AddressError.

        ``patience`` is how long to keep trying without a connection, or with a queue that is full
        or has no leader.
        """
        self._patience_s = patience.total_seconds()
        self._address = Address.parse(amqp_url)
        self._outlet = Outlet(self._address, _NAME)
        self._lock = threading.Lock()

    def publish(
        self,
        queue: str,
        bodies: Iterable[bytes],
        *,
        on_confirmed: Callable[[int], None] = lambda _count: None,
        headers: Mapping[str, Any] | None = None,
    ) -> int:
        """Publish the bodies into a queue, as ``publish_all`` does; raises BadPropertyError for
        headers that cannot be written.
        """
        table = write_headers(headers) if headers else None

        def messages() -> Iterator[OutgoingMessage]:
            for body in bodies:
                properties = write_properties({})
                properties.headers = table
                yield OutgoingMessage(body=body, routing_key=queue, properties=properties)

        return self.publish_all(messages(), on_confirmed=on_confirmed)

    def publish_all(
        self,
        messages: Iterable[OutgoingMessage],
        *,
        on_confirmed: Callable[[int], None] = lambda _count: None,
        on_refused: Refused | None = None,
    ) -> int:
        """Publish the messages in order; return their number when the broker has confirmed all of
        them.

        Messages that the broker nacks, because the queue is full or a quorum queue has no leader,
        are published again after messages sent meanwhile, and no more are sent until they are
        accepted. ``on_confirmed`` is called on this thread with the number of newly confirmed
        messages. Raises MessageTooLargeError before such a body is sent, PublishRefusedError naming
        the first message that is in no queue, because there is none or it has accepted nothing for
        ``patience``, BrokerUnavailableError after ``patience`` without a connection,
        BrokerRefusedError. When it raises, messages before that one are in their queues, and later
        ones may be. An error of ``messages`` itself is raised when the messages before it are
        confirmed. With ``on_refused`` a message that is returned as unroutable is no error:
        ``on_refused`` is called, on another thread.
        """
        with self._lock:
            unconfirmed = Unconfirmed(on_confirmed)
            run = secrets.token_hex(8)
            source = iter(messages)
            count = 0
            while (message := self._next(source, count + 1, unconfirmed)) is not None:
                self._wait_for_room(unconfirmed, len(message.body))
                done = _unless_refused(message, unconfirmed.done(count), on_refused)
                publication = _publication(message, f"{run}-{count}", done)
                unconfirmed.add(count, publication)
                self._outlet.submit(publication)
                count += 1
            self._wait(unconfirmed, 0, 0)
            return count

    def publish_each(
        self,
        messages: Sequence[OutgoingMessage],
        on_wait: Callable[[bool], None] = lambda _alarm: None,
    ) -> list[QueuesError | None]:
        """Publish the messages in order; return the fate of each: None once confirmed by the
        broker, else the error.

        A message that is too large, returned or refused does not affect the others.
        BrokerUnavailableError is the fate of messages still open when for ``patience`` the broker
        has confirmed and refused nothing, and nothing has left for it; such a message may be in its
        queue, and is not sent later.
        None of these errors is raised. ``patience`` begins when a memory or disk alarm ends.
        ``on_wait`` is called about once per second while nothing is confirmed, with True during an
        alarm.
        """
        with self._lock:
            if self._outlet.error is not None:
                # The outlet ended because it was refused (login, virtual host); an operator may
                # have fixed that since.
                self._renew()
            run = secrets.token_hex(8)
            fates: list[_Fate] = []
            for index, message in enumerate(messages):
                fate = _Fate()
                fates.append(fate)
                if len(message.body) > MAX_BODY_BYTES:
                    fate.set_result(MessageTooLargeError(f"the message {_too_large(message)}"))
                else:
                    self._outlet.submit(_publication(message, f"{run}-{index}", fate.set_result))
            return self._await(fates, on_wait)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._outlet.close(5.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _await(
        self, fates: Sequence[_Fate], on_wait: Callable[[bool], None]
    ) -> list[QueuesError | None]:
        """Wait until all fates are known, or for ``patience`` none has changed and nothing left."""
        untold = set(fates)
        since = said = time.monotonic()
        while untold:
            told, untold = wait(untold, _LOOK_S)
            now = time.monotonic()
            # During an alarm the messages wait in the socket. RabbitMQ takes them when it ends:
            # published again by the caller, they would be there twice.
            alarm = self._outlet.blocked
            if told or alarm:
                since = now
            since = max(since, self._outlet.left_at)
            if now - said >= _SAY_S:
                on_wait(alarm)
                said = now
            if now - since > self._patience_s:
                why = self._outlet.trouble or f"RabbitMQ at {self._address} confirms nothing"
                # Messages still waiting in the outlet have failed for the caller, who will publish
                # them again: they must not be sent as well.
                self._renew()
                error = BrokerUnavailableError(f"gave up after {self._patience_s:.0f} s: {why}")
                return [fate.result() if fate.done() else error for fate in fates]
        return [fate.result() for fate in fates]

    def _renew(self) -> None:
        self._outlet.close(1.0)
        self._outlet = Outlet(self._address, _NAME)

    def _next(
        self, source: Iterator[OutgoingMessage], number: int, unconfirmed: Unconfirmed
    ) -> OutgoingMessage | None:
        """Return the next message; before raising an error wait until earlier messages are
        confirmed.
        """
        try:
            return _checked(next(source, None), number)
        except Exception:
            self._wait(unconfirmed, 0, 0)
            raise

    def _wait_for_room(self, unconfirmed: Unconfirmed, size: int) -> None:
        """Wait until there is room for one more message of this size in flight."""
        if unconfirmed.nacked:
            self._wait(unconfirmed, 0, 0)
        elif not unconfirmed.fits(_ROOM - 1, _ROOM_BYTES - size):
            # Until half of the messages are gone, so that the two threads do not wake each other
            # for every message.
            self._wait(unconfirmed, _ROOM // 2, _ROOM_BYTES // 2)

    def _wait(self, unconfirmed: Unconfirmed, count: int, size: int) -> None:
        """Wait until at most this many messages and bytes are in flight, and publish nacked
        messages again.
        """
        down_since: float | None = None
        nacked_since: float | None = None
        offered = time.monotonic()
        moved = False
        while True:
            fits = unconfirmed.wait(count, size, _LOOK_S)
            if confirmed := unconfirmed.take_confirmed():
                unconfirmed.on_confirmed(confirmed)
                nacked_since = None
                moved = True
            if unconfirmed.problem is not None:
                raise _refused(unconfirmed, unconfirmed.problem)
            if fits:
                return
            now = time.monotonic()
            nacked = unconfirmed.nacked
            if nacked is not None:
                nacked_since = nacked_since or now
                if now - nacked_since > self._patience_s:
                    raise _refused(unconfirmed, nacked)
                if now - offered >= _AGAIN_S:
                    # Only one message as a test until the queue accepts it; else all would be sent
                    # to a full queue for nothing.
                    for message in unconfirmed.take_nacked(None if moved else 1):
                        self._outlet.submit(message)
                    offered = now
                    moved = False
            trouble = self._outlet.trouble
            down_since = None if trouble is None else down_since or now
            if down_since is not None and now - down_since > self._patience_s:
                raise BrokerUnavailableError(
                    f"gave up after {self._patience_s:.0f} s: {trouble}"
                ) from trouble


def _refused(unconfirmed: Unconfirmed, error: QueuesError) -> QueuesError:
    """Return the error for a message that was not accepted."""
    if not isinstance(error, PublishRefusedError):
        return error
    refusal = PublishRefusedError(
        f"message {unconfirmed.first + 1} was refused: {error}", unconfirmed.first
    )
    refusal.__cause__ = error
    return refusal


def _checked(message: OutgoingMessage | None, number: int) -> OutgoingMessage | None:
    if message is not None and len(message.body) > MAX_BODY_BYTES:
        raise MessageTooLargeError(f"message {number} {_too_large(message)}")
    return message


def _too_large(message: OutgoingMessage) -> str:
    return f"has {len(message.body)} bytes, the limit is {MAX_BODY_BYTES}"


def _publication(message: OutgoingMessage, message_id: str, done: Done) -> Publication:
    properties = message.properties
    if properties.message_id is None:
        properties.message_id = message_id
    return Publication(
        message.exchange,
        message.routing_key,
        message.body,
        properties,
        done,
        may_be_dropped=not message.mandatory,
    )


def _unless_refused(message: OutgoingMessage, done: Done, on_refused: Refused | None) -> Done:
    if on_refused is None:
        return done

    def fate(error: QueuesError | None) -> None:
        # Only a message that is returned, that pika cannot encode, or at which the broker fails,
        # raises exactly this class.
        if type(error) is PublishRefusedError:
            on_refused(message, error)
            done(None)
        else:
            done(error)

    return fate


class Unconfirmed:
    """Messages of one ``publish`` in flight, until the broker has them.

    Each is known by its position in the batch.
    """

    def __init__(self, on_confirmed: Callable[[int], None]) -> None:
        # Called with the number of newly confirmed messages.
        self.on_confirmed = on_confirmed
        # Reason why a message will never be accepted.
        self.problem: QueuesError | None = None
        self._changed = threading.Condition()
        self._open: dict[int, Publication] = {}
        self._nacked: dict[int, NackedError] = {}
        self._size = self._confirmed = 0
        self._wanted = (-1, -1)

    def add(self, index: int, message: Publication) -> None:
        """Add a message that is about to be sent."""
        with self._changed:
            self._open[index] = message
            self._size += len(message.body)

    def done(self, index: int) -> Callable[[QueuesError | None], None]:
        """Return the callback for the fate of a message that was added."""

        def done(error: QueuesError | None) -> None:
            with self._changed:
                if isinstance(error, NackedError):
                    self._nacked[index] = error
                elif error is not None:
                    self.problem = self.problem or error
                else:
                    self._size -= len(self._open.pop(index).body)
                    self._confirmed += 1
                if error is not None or self.fits(*self._wanted):
                    self._changed.notify()

        return done

    def wait(self, count: int, size: int, timeout_s: float) -> bool:
        """Wait until at most this much is in flight; False after a problem or ``timeout_s``."""
        with self._changed:
            self._wanted = (count, size)
            self._changed.wait_for(
                lambda: self.problem is not None or self.fits(count, size), timeout_s
            )
            self._wanted = (-1, -1)
            return self.fits(count, size)

    def fits(self, count: int, size: int) -> bool:
        """Return True if no more than this much is in flight, and nothing went wrong."""
        return self.problem is None and len(self._open) <= count and self._size <= size

    def take_confirmed(self) -> int:
        """Return the number of messages confirmed since the last call."""
        with self._changed:
            confirmed = self._confirmed
            self._confirmed = 0
            return confirmed

    @property
    def first(self) -> int:
        """The position of the first added message that the broker does not have."""
        with self._changed:
            return next(iter(self._open))

    @property
    def nacked(self) -> NackedError | None:
        """Reason why the broker refused a message; None if no message must be published again."""
        if not self._nacked:
            return None
        with self._changed:
            return next(iter(self._nacked.values()), None)

    def take_nacked(self, most: int | None = None) -> list[Publication]:
        """Return at most ``most`` nacked messages, in order, to publish them again."""
        with self._changed:
            taken = sorted(self._nacked)[:most]
            for index in taken:
                del self._nacked[index]
            return [self._open[index] for index in taken]
