"""Publishing many messages into a queue, each one confirmed by the broker."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from pika import BasicProperties

from queues.address import Address
from queues.errors import BrokerUnavailableError, MessageTooLargeError, PublishRefusedError, QueuesError
from queues.limits import MAX_BODY_BYTES
from queues.outlet import Outgoing, Outlet

_ROOM = 4_000
_ROOM_BYTES = 64 * 1024 * 1024
"""Messages and bytes of them in memory, confirmed or not yet."""
_LOOK_S = 0.1
_PATIENCE = timedelta(seconds=15)
_NAME = "tiercel publish"


class Publisher:
    """Publishes persistent messages over one connection, which is made again when it breaks. One ``publish`` at a time.

    A message is published at least once: what was not confirmed when a connection broke is published again. Its
    ``message_id`` stays the same, so that a consumer could tell.
    """

    def __init__(self, amqp_url: str, patience: timedelta = _PATIENCE) -> None:
        """Connects in the background. ``patience`` is how long to go on without a connection. Raises AddressError."""
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
        """Publish the bodies in order; returns their number when the broker has confirmed all of them.

        ``on_confirmed`` is called on this thread with how many more were confirmed. Raises MessageTooLargeError before such
        a body is sent, PublishRefusedError (queue missing or full) naming the first message refused, BrokerUnavailableError
        after ``patience`` without a connection, BrokerRefusedError. When it raises, messages before that one are in the
        queue, and some after it may be.
        """
        with self._lock:
            batch = _Batch()
            run = secrets.token_hex(8)
            count = 0
            for index, body in enumerate(bodies):
                if len(body) > MAX_BODY_BYTES:
                    self._wait(batch, on_confirmed, 0, 0)
                    raise MessageTooLargeError(f"message {index + 1} has {len(body)} bytes, the limit is {MAX_BODY_BYTES}")
                properties = BasicProperties(
                    headers=dict(headers) if headers else None, delivery_mode=2, message_id=f"{run}-{index}"
                )
                if not batch.fits(_ROOM - 1, _ROOM_BYTES - len(body)):
                    # Until half of it is gone, so that the two threads do not wake each other for every message.
                    self._wait(batch, on_confirmed, _ROOM // 2, _ROOM_BYTES // 2)
                batch.add(len(body))
                self._outlet.submit(Outgoing(queue, body, properties, batch.done(index, len(body))))
                count = index + 1
            self._wait(batch, on_confirmed, 0, 0)
            return count

    def publish_each(self, messages: Sequence[tuple[str, bytes]]) -> list[QueuesError | None]:
        """Publish (queue, body) messages in order; returns the fate of each: None once confirmed by the broker, else why not.

        They are told one by one: a message that is too large, returned or refused does not concern its neighbours.
        BrokerUnavailableError is the fate of what had none after ``patience`` in which the broker told nothing; such a message
        may be in its queue, and is not sent later. Raises none of these.
        """
        with self._lock:
            if self._outlet.error is not None:
                # It ended because it was refused (login, virtual host); by now somebody may have changed that.
                self._renew()
            fates = _Fates(len(messages))
            run = secrets.token_hex(8)
            for index, (queue, body) in enumerate(messages):
                done = fates.done(index)
                if len(body) > MAX_BODY_BYTES:
                    done(MessageTooLargeError(f"the message has {len(body)} bytes, the limit is {MAX_BODY_BYTES}"))
                else:
                    properties = BasicProperties(delivery_mode=2, message_id=f"{run}-{index}")
                    self._outlet.submit(Outgoing(queue, body, properties, done))
            return self._await(fates)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._outlet.close(5.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _await(self, fates: _Fates) -> list[QueuesError | None]:
        """Wait until all are told, or none for as long as ``patience``."""
        told, since = 0, time.monotonic()
        while not fates.wait(_LOOK_S):
            if fates.told != told:
                told, since = fates.told, time.monotonic()
            elif time.monotonic() - since > self._patience_s:
                why = self._outlet.trouble or f"RabbitMQ at {self._address} confirms nothing"
                # What still waits in the outlet has failed for the caller, who will bring it again: it must not go out too.
                self._renew()
                return fates.result(BrokerUnavailableError(f"gave up after {self._patience_s:.0f} s: {why}"))
        return fates.result(None)

    def _renew(self) -> None:
        self._outlet.close(1.0)
        self._outlet = Outlet(self._address, _NAME)

    def _wait(self, batch: _Batch, on_confirmed: Callable[[int], None], count: int, size: int) -> None:
        """Wait until at most so many messages and bytes are on their way."""
        down_since: float | None = None
        while True:
            fits = batch.wait(count, size, _LOOK_S)
            confirmed = batch.take_confirmed()
            if confirmed:
                on_confirmed(confirmed)
            if batch.problem is not None:
                index, error = batch.problem
                if isinstance(error, PublishRefusedError):
                    raise PublishRefusedError(f"message {index + 1} was refused: {error}", index) from error
                raise error
            if fits:
                return
            trouble = self._outlet.trouble
            if trouble is None:
                down_since = None
                continue
            down_since = down_since or time.monotonic()
            if time.monotonic() - down_since > self._patience_s:
                raise BrokerUnavailableError(f"gave up after {self._patience_s:.0f} s: {trouble}") from trouble


class _Fates:
    """What became of the messages of one ``publish_each``; told on the I/O thread."""

    def __init__(self, count: int) -> None:
        self.told = 0
        self._changed = threading.Condition()
        self._told = [False] * count
        self._errors: list[QueuesError | None] = [None] * count

    def done(self, index: int) -> Callable[[QueuesError | None], None]:
        def done(error: QueuesError | None) -> None:
            with self._changed:
                self._told[index], self._errors[index] = True, error
                self.told += 1
                if self.told == len(self._told):
                    self._changed.notify()

        return done

    def wait(self, timeout_s: float) -> bool:
        """True as soon as all are told; False after ``timeout_s``."""
        with self._changed:
            return self._changed.wait_for(lambda: self.told == len(self._told), timeout_s)

    def result(self, untold: QueuesError | None) -> list[QueuesError | None]:
        """The fate of each as it is now; ``untold`` for those that have none."""
        with self._changed:
            return [error if told else untold for told, error in zip(self._told, self._errors, strict=True)]


class _Batch:
    """What one ``publish`` has on its way; filled on its thread, emptied on the I/O thread."""

    def __init__(self) -> None:
        self.problem: tuple[int, QueuesError] | None = None
        """The first message that was refused, and why."""
        self._changed = threading.Condition()
        self._count = self._size = self._confirmed = 0
        self._wanted = (-1, -1)

    def add(self, size: int) -> None:
        with self._changed:
            self._count += 1
            self._size += size

    def done(self, index: int, size: int) -> Callable[[QueuesError | None], None]:
        def done(error: QueuesError | None) -> None:
            with self._changed:
                self._count -= 1
                self._size -= size
                if error is None:
                    self._confirmed += 1
                elif self.problem is None or index < self.problem[0]:
                    self.problem = (index, error)
                if error is not None or self.fits(*self._wanted):
                    self._changed.notify()

        return done

    def wait(self, count: int, size: int, timeout_s: float) -> bool:
        """True as soon as at most so much is on its way; False after a problem or ``timeout_s``."""
        with self._changed:
            self._wanted = (count, size)
            self._changed.wait_for(lambda: self.problem is not None or self.fits(count, size), timeout_s)
            self._wanted = (-1, -1)
            return self.fits(count, size)

    def take_confirmed(self) -> int:
        """How many more were confirmed since the last call."""
        with self._changed:
            confirmed, self._confirmed = self._confirmed, 0
            return confirmed

    def fits(self, count: int, size: int) -> bool:
        """Whether at most so many messages and bytes are on their way, and nothing went wrong."""
        return self.problem is None and self._count <= count and self._size <= size
