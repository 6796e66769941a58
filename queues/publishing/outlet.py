"""Pipelined publishing with confirms: many messages in flight, and the fate of each reported."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pika import BasicProperties, spec

from tiercel.queues.broker.address import Address
from tiercel.queues.broker.frames import UNENCODABLE
from tiercel.queues.broker.link import Link
from tiercel.queues.errors import (
    BrokerFailedError,
    BrokerRefusedError,
    BrokerUnavailableError,
    MessageTooLargeError,
    NackedError,
    PublishRefusedError,
    QueuesError,
)

# RabbitMQ's names for the channels of clients that wait for direct replies.
_DIRECT_REPLY = "amq.rabbitmq.reply-to."

Done = Callable[[QueuesError | None], None]


@dataclass(slots=True, eq=False)
class Publication:
    """One message, which its exchange routes to queues by the routing key."""

    exchange: str
    # The name of the queue, if the exchange is the default one.
    routing_key: str
    body: bytes
    properties: BasicProperties
    # Called once, on the I/O thread: with None when the broker has the message, else with the
    # error.
    done: Done
    returned: bool = False
    # Arguments to declare the queue with first, once per channel; None: it exists.
    arguments: Mapping[str, Any] | None = None
    # RabbitMQ may drop the message silently if no queue takes it.
    may_be_dropped: bool = False
    # Number of times that RabbitMQ closed the connection with an internal error while the message
    # was not confirmed.
    failures: int = 0

    @property
    def place(self) -> str:
        """The queue or the exchange to which it goes, in words."""
        return f"exchange {self.exchange!r}" if self.exchange else f"queue {self.routing_key!r}"

    @property
    def mandatory(self) -> bool:
        """True if RabbitMQ must return the message when no queue takes it.

        False for a direct reply, which goes straight to its client without a queue: RabbitMQ
        delivers it, and would still return it.
        """
        is_direct_reply = not self.exchange and self.routing_key.startswith(_DIRECT_REPLY)
        return not self.may_be_dropped and not is_direct_reply

    def unroutable(self, where: object) -> str:
        """Return the reason for which the broker ``where`` returned the message, and advice."""
        if not self.exchange:
            return f"there is no {self.place} on {where}; declare it first or correct the name"
        return (
            f"{self.place} on {where} leads to no queue for the routing key {self.routing_key!r}; "
            "bind one, or correct the key or the headers"
        )


def returned(
    waiting: Iterable[Publication], method: Any, properties: BasicProperties, body: bytes
) -> Publication | None:
    """Return the first unconfirmed message that this return may be for.

    Messages with the same route (exchange, routing key and headers) are interchangeable. Message
    ids tell most of them apart.
    """
    alike = [
        message
        for message in waiting
        if not message.returned
        and message.routing_key == method.routing_key
        and message.exchange == method.exchange
        and message.properties.message_id == properties.message_id
        and message.body == body
    ]
    headers = dict(properties.headers or {})
    # The broker may have changed the form of a header: then the first is as good as any.
    same = (each for each in alike if dict(each.properties.headers or {}) == headers)
    return next(same, alike[0] if alike else None)


_WINDOW = 1_000
_WINDOW_BYTES = 32 * 1024 * 1024
_STALL_S = 5.0
# If nothing is confirmed for this long while messages are in flight, and no part of them leaves,
# they are sent again over a new connection.
#
# RabbitMQ owes a confirm or a refusal for each, but quorum queues that are deleted or killed
# meanwhile may never send them, and then no later message would be sent. The time doubles until
# something is confirmed: a broker may just be slow.
_LONGEST_STALL_S = 60.0
_LOOK_S = 1.0
# Less data than this on its way is no message that a slow link holds up: it may be a heartbeat.
_LITTLE_BYTES = 64 * 1024

# If a queue refused everything for this long, a new connection is made; the time doubles, up to the
# longest stall.
#
# A channel of RabbitMQ 3.10 that meets a quorum queue between two leaders keeps asking the dead
# one, and refuses for the rest of its life, while other channels find the new leader. Full queues
# refuse likewise: for them the new connection changes nothing.
_REFUSAL_S = 2.0

# After this many internal errors of RabbitMQ with the same message on its way, messages are sent
# one at a time; after more of them with one message alone, that message is refused. A broker that
# is in trouble for a moment refuses none: the waits between these attempts are seconds together.
_FAILURES_TO_SUSPECT = 2
_FAILURES_TO_REFUSE = 5


class Outlet:
    """Sends messages and waits for their confirms; thread-safe.

    Messages that were not confirmed when a connection broke, or for a long time, are sent again:
    the broker may have them twice, but has them at least once.
    """

    def __init__(
        self, address: Address, name: str, prepare: Callable[[], None] = lambda: None
    ) -> None:
        """``prepare`` runs before each connection, on the I/O thread. Raises AddressError."""
        self.prepare = prepare
        self._address = address
        self._waiting: deque[Publication] = deque()
        self._unconfirmed: dict[int, Publication] = {}
        self._sent = 0
        # All delivery tags up to this one are confirmed.
        self._confirmed = 0
        self._bytes = 0
        # Number of messages to send one at a time: one of them made the broker close the channel.
        self._suspects = 0
        self._asked = False
        # Time of the last confirm, of the first send after an idle time, or when data left last.
        self._moved_at = 0.0
        # Bytes that have left over this connection, and when they were last seen to, slowly.
        self._left, self.left_at = 0, 0.0
        self._stall_s = _STALL_S
        self._watched = False
        # Places that have refused everything on this channel, and the time of the first refusal.
        self._refusing: dict[str, float] = {}
        # The queues that were declared over this channel.
        self._declared: set[str] = set()
        self._refusal_s = _REFUSAL_S
        # No more messages are sent over this channel: a new one follows when the fate of all sent
        # messages is known.
        self._stale = False
        self._channel: Any = None
        self._idle = threading.Condition()
        self._count = 0
        # Reason why the outlet ended by itself; nothing can be sent any more.
        self.error: QueuesError | None = None
        # Reason why there is no connection now.
        self.trouble: QueuesError | None = None
        self._link = Link(address, self, name)
        self._link.start()

    # -- from any thread ---------------------------------------------------------------------------

    @property
    def blocked(self) -> bool:
        """True while RabbitMQ takes no messages (memory or disk alarm). When the alarm ends, it
        takes the messages sent meanwhile, also over a connection that is closed by then.
        """
        return self._link.blocked

    def submit(self, message: Publication) -> None:
        """Send a message as soon as there is room; ``message.done`` is called with its fate."""
        with self._idle:
            self._count += 1
        self._waiting.append(message)
        if not self._asked:
            self._asked = True
            self._link.call(self._pump)
        if self.error is not None:
            self._fail_all(self.error)

    def drain(self, timeout_s: float) -> bool:
        """Wait until the fate of all submitted messages is known; return False on a timeout."""
        with self._idle:
            return self._idle.wait_for(lambda: self._count == 0, timeout_s)

    def close(self, timeout_s: float) -> None:
        """End; messages without a confirm may or may not be in their queues. Idempotent."""
        self._link.call(self._link.finish)
        self._link.join(timeout_s)

    # -- on the I/O thread -------------------------------------------------------------------------

    def reconnect(self, why: QueuesError) -> None:
        """Connect again, beginning with ``prepare``; nothing is lost."""
        self._link.restart(BrokerUnavailableError(str(why)))

    def opened(self, channel: Any) -> None:
        self._sent = self._confirmed = self._left = 0
        self._refusing = dict.fromkeys(self._refusing, time.monotonic())
        self._stale = False
        self._declared.clear()
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_confirm, callback=lambda _frame: self._ready(channel))

    def lost(self, error: QueuesError) -> None:
        self._channel = None
        self.trouble = error
        unconfirmed = list(self._unconfirmed.values())
        self._unconfirmed.clear()
        self._bytes = 0
        self._find_guilty(error, unconfirmed)
        for message in reversed(unconfirmed):
            message.returned = False
            self._waiting.appendleft(message)

    def _find_guilty(self, error: QueuesError, unconfirmed: list[Publication]) -> None:
        """Take out the message that makes the broker close the channel, as it would do forever;
        while it is not known, send one message at a time.
        """
        if isinstance(error, BrokerFailedError):
            for message in unconfirmed:
                message.failures += 1
            failures = max((message.failures for message in unconfirmed), default=0)
            # The broker itself may be in trouble: then all messages pass later.
            if failures < _FAILURES_TO_SUSPECT:
                return
            is_proven = failures >= _FAILURES_TO_REFUSE
        elif isinstance(error, BrokerRefusedError | MessageTooLargeError):
            is_proven = True
        else:
            return
        if is_proven and len(unconfirmed) == 1:
            message = unconfirmed.pop()
            self._tell(message, self._verdict_on(message, error))
            self._link.healthy()
            self._suspects -= 1
        self._suspects = max(self._suspects, len(unconfirmed))

    def _verdict_on(self, message: Publication, error: QueuesError) -> QueuesError:
        if not isinstance(error, BrokerFailedError):
            return error
        return PublishRefusedError(
            f"RabbitMQ fails at a message for {message.place}, each time that it is sent: {error}; "
            "see RabbitMQ's log"
        )

    def failed(self, error: QueuesError) -> None:
        self.error = error
        self._fail_all(error)

    def _ready(self, channel: Any) -> None:
        self._channel = channel
        self.trouble = None
        self._pump()

    def _pump(self) -> None:
        # Cleared first: a thread that appends from here on either sees the flag cleared and sets it
        # again, or this loop sees its message.
        self._asked = False
        window = 1 if self._suspects else _WINDOW
        channel = None if self._stale else self._channel
        if channel is None:
            return
        with channel.connection.together():
            while (
                channel.is_open and len(self._unconfirmed) < window and self._bytes < _WINDOW_BYTES
            ):
                try:
                    message = self._waiting.popleft()
                except IndexError:
                    return
                self._send(message)

    def _send(self, message: Publication) -> None:
        try:
            self._declare(message)
            self._channel.basic_publish(
                message.exchange,
                message.routing_key,
                message.body,
                message.properties,
                mandatory=message.mandatory,
            )
        except UNENCODABLE as error:
            # pika encodes the whole message before it sends any of it: the broker has seen nothing.
            self._tell(
                message,
                PublishRefusedError(
                    f"a message for {message.place} cannot be written as AMQP: {error!r}"
                ),
            )
            return
        if not self._unconfirmed:
            self._moved_at = time.monotonic()
            self._watch()
        self._sent += 1
        self._unconfirmed[self._sent] = message
        self._bytes += len(message.body)

    def _declare(self, message: Publication) -> None:
        # Without waiting for the answer: the broker handles a channel in order, and a refusal
        # closes the channel.
        queue = message.routing_key
        if message.arguments is not None and queue not in self._declared:
            self._channel.queue_declare(queue, durable=True, arguments=dict(message.arguments))
            self._declared.add(queue)

    def _watch(self) -> None:
        """Check again soon, at the latest when the stall time is over."""
        if not self._watched:
            self._watched = True
            left_s = self._moved_at + self._stall_s - time.monotonic()
            self._link.later(min(_LOOK_S, max(0.0, left_s)), self._look)

    def _look(self) -> None:
        self._watched = False
        if not self._unconfirmed:
            return
        if self._leaves():
            self._moved_at = self.left_at = time.monotonic()
        elif self._link.blocked:
            self._moved_at = time.monotonic()
        elif time.monotonic() - self._moved_at >= self._stall_s:
            self._stall_s = min(2 * self._stall_s, _LONGEST_STALL_S)
            self._link.abandon(
                BrokerUnavailableError(f"RabbitMQ at {self._address} confirms nothing")
            )
            return
        self._watch()

    def _leaves(self) -> bool:
        """Return True if messages are leaving over a slow link, and have not left yet."""
        before = self._left
        self._left, waiting = self._channel.connection.left()
        return waiting > _LITTLE_BYTES and self._left > before

    def _on_return(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        if not method.exchange:
            self._declared.discard(method.routing_key)
        # A return has no delivery tag, and arrives before the confirm of its message.
        found = returned(self._unconfirmed.values(), method, properties, body)
        if found is not None:
            found.returned = True

    def _on_confirm(self, frame: Any) -> None:
        self._moved_at = time.monotonic()
        self._stall_s = _STALL_S
        method = frame.method
        taken = isinstance(method, spec.Basic.Ack)
        first = self._confirmed + 1 if method.multiple else method.delivery_tag
        for tag in range(first, method.delivery_tag + 1):
            message = self._unconfirmed.pop(tag, None)
            if message is not None:
                self._bytes -= len(message.body)
                self._suspects = max(0, self._suspects - 1)
                self._judge(message.place, taken=taken or message.returned)
                self._tell(message, self._verdict(message, taken=taken))
        if method.multiple:
            self._confirmed = method.delivery_tag
        self._link.healthy()
        if self._stale and not self._unconfirmed:
            self.reconnect(BrokerUnavailableError(f"{self._address} refuses published messages"))
        self._pump()

    def _judge(self, place: str, *, taken: bool) -> None:
        """Decide whether the channel is to blame for refusals: see ``_REFUSAL_S``."""
        if taken:
            if self._refusing.pop(place, None) is not None:
                self._refusal_s = _REFUSAL_S
            return
        now = time.monotonic()
        if now - self._refusing.setdefault(place, now) >= self._refusal_s and not self._stale:
            self._stale = True
            self._refusal_s = min(2 * self._refusal_s, _LONGEST_STALL_S)

    def _verdict(self, message: Publication, *, taken: bool) -> QueuesError | None:
        if message.returned:
            return PublishRefusedError(message.unroutable(self._address))
        if not taken:
            return NackedError(
                f"{message.place} on {self._address} did not take it; it is full or unavailable"
            )
        return None

    def _fail_all(self, error: QueuesError) -> None:
        self._waiting.extendleft(list(self._unconfirmed.values()))
        self._unconfirmed.clear()
        while True:
            try:
                message = self._waiting.popleft()
            except IndexError:
                return
            self._tell(message, error)

    def _tell(self, message: Publication, error: QueuesError | None) -> None:
        message.done(error)
        with self._idle:
            self._count -= 1
            if self._count == 0:
                self._idle.notify_all()
