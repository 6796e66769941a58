"""Consuming from one queue on a dedicated I/O thread, with manual acks.

Every new channel is a new *epoch*: delivery tags begin at 1 again, and calls about messages of an
older epoch are dropped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tiercel.queues.broker.address import Address
from tiercel.queues.broker.connection import connected
from tiercel.queues.broker.declare import Declared, WorkQueue, declare_work_queue, short_timeout
from tiercel.queues.broker.link import Link
from tiercel.queues.broker.management import (
    Policies,
    delays_end,
    losses,
    policy_limit,
    policy_timeout,
    read_policies,
)
from tiercel.queues.consuming.channel import Epoch, HandOut, Intake
from tiercel.queues.consuming.failures import FailureBook
from tiercel.queues.consuming.messages import Delivery, EpochSettings, How, Later, Verb
from tiercel.queues.errors import QueuesError
from tiercel.queues.limits import BYTES_HELD, PREFETCH
from tiercel.queues.publishing.copies import Copies, CopyFate, DeadLetterWriter, DelayWriter
from tiercel.queues.retry import NO_WAIT, BrokerLimit

log = logging.getLogger(__name__)

_REPORT_S = 0.25
# Longest wait for the I/O thread to take a call: while it connects it takes none.
_SAID_S = 0.5
# AMQP allows 255; the number of the channel and of the consumer follow.
_TAG_BYTES = 200


@dataclass(frozen=True, kw_only=True)
class ConsumerSettings:
    """Settings of a consumer: its queue, and how its reader is woken."""

    queue: WorkQueue
    # Called on the I/O thread when there are messages to ``get``, or an error.
    wake: Callable[[], None]
    # Adds to a named counter. Called on the I/O thread.
    count: Callable[[str, int], None]
    # Shown in RabbitMQ's lists of connections and consumers.
    name: str = "tiercel"
    # Number of consumers that share the queue, each in its own process.
    tasks: int = 1
    prefetch: int = PREFETCH
    bytes_held: int = BYTES_HELD
    clock: Callable[[], float] = time.monotonic
    # RabbitMQ's HTTP API, if there is one, from which the policies are read.
    management_url: str | None = None


class Consumer:
    """Opens messages and settles them; ``get`` and the settling calls are thread-safe
    and never block.

    It connects, declares the queue and subscribes, and does so again whenever the connection, the
    channel or its consumer is gone. Messages that were open then are delivered again, in a new
    epoch. Settling a message twice, or one of an older epoch, is ignored and counted as ``stale``.
    """

    def __init__(self, address: Address, settings: ConsumerSettings) -> None:
        self._address = address
        self._settings = settings
        self._error: QueuesError | None = None
        self._epoch: Epoch | None = None
        self._number = 0
        self._counts: Counter[str] = Counter()
        self._intake = Intake(settings.prefetch, settings.bytes_held)
        self._hand_out = HandOut()
        # Takes the messages that are ready now, up to a number.
        self.get: Callable[[int], list[Delivery]] = self._hand_out.take
        self._failures = FailureBook(settings.tasks, settings.queue.delivery_limit)
        self._retry = settings.queue.retry
        self._limit = BrokerLimit()
        self._arguments: Mapping[str, int] = {}
        # Read at the start, and at later connections until the HTTP API tells them.
        self._policies: Policies | None = None
        self._delays_doubted = False
        self._settlements: deque[tuple[int, Sequence[int], How, str]] = deque()
        self._asked = self._paused = self._ending = False
        self._expecting = True
        queue = settings.queue.name
        self._copies = Copies[Delivery](
            DeadLetterWriter(address, queue, settings.queue.dead),
            DelayWriter(address, queue),
            lambda delivery, fate: self._settle(delivery.epoch, [delivery.tag], fate),
        )
        self._link = Link(address, self, settings.name)

    # -- from any thread ---------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to connect, and return at once."""
        self._link.call(self._report)
        self._link.start()

    @property
    def waiting(self) -> int:
        """Number of failed messages held for their back-off."""
        epoch = self._epoch
        return 0 if epoch is None else len(epoch.messages.waiting)

    @property
    def is_full(self) -> bool:
        """True if the broker sends no message before an open one is settled, or is away."""
        epoch = self._epoch
        return epoch is None or epoch.is_full

    def open_messages(self) -> tuple[int, Mapping[int, Delivery]]:
        """Return the number of the current channel, and its open messages by delivery tag, which
        change meanwhile: for lookups only.
        """
        epoch = self._epoch
        return (-1, {}) if epoch is None else (epoch.number, epoch.messages.open)

    def error(self) -> QueuesError | None:
        """Return the refusal that ended this consumer and needs an operator, or None."""
        return self._error

    def ack(self, epoch: int, *tags: int) -> None:
        """Ack processed messages: they leave the queue."""
        self._settle(epoch, tags, Verb.ACK)

    def fail(self, epoch: int, tag: int, reason: str = "") -> None:
        """Reject a message that failed or timed out: it is delivered again after the back-off, or
        dead-lettered with the reason.
        """
        self._settle(epoch, [tag], Verb.FAIL, reason)

    def retry_later(self, epoch: int, tag: int, later: Later) -> None:
        """Have a failed message delivered again after the given time, and not before.

        It waits in a delay queue and is not held here. If no delay queue can take it, it is held as
        for ``fail``.
        """
        if self._policies is not None and not self._policies.told and not self._delays_doubted:
            self._delays_doubted = True
            self._doubt_delays()
        self._settle(epoch, [tag], later)

    def release(self, epoch: int, tag: int) -> None:
        """Give a message back without counting a failure: ``get`` hands it out again soon, while
        this consumer takes messages.
        """
        self._settle(epoch, [tag], Verb.RELEASE)

    def dead_letter(self, epoch: int, tag: int, reason: str) -> None:
        """Dead-letter a message that can never be processed, without further deliveries."""
        self._settle(epoch, [tag], Verb.DEAD_LETTER, reason)

    def pause(self) -> None:
        """Take no more messages, and give back messages that ``get`` has not handed out.

        Open messages can still be settled.
        """
        self._link.call(lambda: self._set_paused(paused=True))

    def resume(self) -> None:
        """Take messages again."""
        self._link.call(lambda: self._set_paused(paused=False))

    def expect(self, tuples: int) -> None:
        """Ask for about twice as many messages from now on; 0: hold only messages that ``get`` has
        handed out.
        """
        self._link.call(lambda: self._set_expected(tuples))

    def stop(self, grace: timedelta) -> bool:
        """Settle the messages that were acked or failed, give back the rest, and close; return True
        if that was done within ``grace``.

        Otherwise the broker requeues everything when the connection breaks. Idempotent.
        """
        deadline = time.monotonic() + grace.total_seconds()
        self.pause()
        # Earlier calls run first, so the copies that they request are waited for, too.
        said = threading.Event()
        self._link.call(said.set)
        said.wait(min(_SAID_S, grace.total_seconds() / 4))
        self._copies.close(max(0.0, deadline - time.monotonic()) / 2)
        self._link.call(self._finish)
        # The last acks need a moment, also if the grace time is over.
        return self._link.join(max(0.5, deadline - time.monotonic()))

    def _settle(self, epoch: int, tags: Sequence[int], how: How, reason: str = "") -> None:
        self._settlements.append((epoch, tags, how, reason))
        if not self._asked:
            self._asked = True
            self._link.call(self._flush)

    # -- on the I/O thread -------------------------------------------------------------------------

    def prepare(self) -> None:
        """Implement ``LinkUser.prepare``: the queue may have been deleted while we were away."""
        management_url = self._settings.management_url
        with connected(self._address, "tiercel declare") as connection:
            declared = declare_work_queue(
                connection, self._address, self._settings.queue, management_url
            )
        self._retry = NO_WAIT if declared.delays_retries else self._settings.queue.retry
        self._arguments = declared.consumer_timeout.arguments
        known = self._policies
        policies = self._look_at_policies()
        self._policies = policies
        name, arguments = self._settings.queue.name, declared.arguments or {}
        self._limit, lowered = policy_limit(name, declared.limit, arguments, policies)
        if known is None or policies.told is not known.told:
            self._warn(declared, policies, lowered)

    def _look_at_policies(self) -> Policies:
        """Return the policies, read again if the HTTP API did not tell them the last time."""
        known = self._policies
        if known is not None and known.told:
            return known
        found = read_policies(self._settings.management_url, self._address)
        return found if known is None or found.told else known

    def _warn(self, declared: Declared, policies: Policies, lowered: str) -> None:
        """Warn once if RabbitMQ may delete messages, or takes them back too early."""
        queue = self._settings.queue
        if lowered:
            log.warning(
                "%s", lowered, extra={"event": "delivery_limit_lowered", "queue": queue.name}
            )
        for name, arguments in ((queue.name, declared.arguments or {}), (queue.dead, {})):
            if lost := losses(name, arguments, policies):
                log.warning("%s", lost, extra={"event": "queue_may_lose", "queue": name})
        if early := delays_end(policies, queue.name):
            log.warning("%s", early, extra={"event": "delays_held", "queue": queue.name})
        policy = policy_timeout(queue.name, policies)
        if short := short_timeout(declared.consumer_timeout, queue, policy):
            log.warning("%s", short, extra={"event": "consumer_timeout_short", "queue": queue.name})

    def _doubt_delays(self) -> None:
        """Log that a policy which this worker cannot see may delete postponed messages."""
        name = self._settings.queue.name
        log.info(
            "messages of %s that a bolt wants later wait in RabbitMQ's queues %s.delay.*; a policy "
            "with expires would delete them, and cannot be seen from here: leave these queues out "
            "of its pattern, or %s",
            name, name,
            "name RabbitMQ's HTTP API in TIERCEL_MANAGEMENT"
            if self._settings.management_url is None
            else "start again when tiercel check says that the HTTP API answers and tells policies",
            extra={"event": "delays_doubted", "queue": name},
        )  # fmt: skip

    def opened(self, channel: Any) -> None:
        """Implement ``LinkUser.opened``: a new epoch."""
        self._number += 1
        self._counts["channels"] += 1
        queue = self._settings.queue
        settings = EpochSettings(
            queue=queue.name,
            tag=self._settings.name.replace(" ", ".").encode()[:_TAG_BYTES].decode(errors="ignore"),
            link=self._link,
            retry=self._retry,
            delivery_limit=queue.delivery_limit,
            broker_limit=self._limit,
            failures=self._failures,
            wake=self._settings.wake,
            copies=self._copies,
            consumer_arguments=self._arguments,
            clock=self._settings.clock,
            policies=self._policies or Policies(),
        )
        self._epoch = Epoch(self._number, channel, settings, self._intake, self._hand_out)
        self._take_or_not()

    def lost(self, error: QueuesError) -> None:  # noqa: ARG002 - the link logs it
        """Implement ``LinkUser.lost``: the broker requeues the open messages."""
        epoch = self._epoch
        self._epoch = None
        if epoch is not None:
            self._counts.update(epoch.counts)
            epoch.void()
        if self._ending:
            self._finished()

    def failed(self, error: QueuesError) -> None:
        """Implement ``LinkUser.failed``."""
        self._error = error
        self._settings.wake()

    def _flush(self) -> None:
        # Cleared first: a thread that appends from here on either sees the flag cleared and sets it
        # again, or this loop takes its settlement.
        self._asked = False
        epoch = self._epoch
        settlements = self._settlements
        while settlements:
            number, tags, how, reason = settlements.popleft()
            if epoch is None or number != epoch.number:
                self._counts["stale"] += len(tags)
            elif how is Verb.ACK:
                self._counts["stale"] += len(tags) - epoch.messages.finish_all(tags)
            else:
                self._apply(epoch, tags[0], how, reason)
        if epoch is not None:
            epoch.flush()

    def _apply(self, epoch: Epoch, tag: int, how: How, reason: str) -> None:
        # A closing channel takes no more settlements: the next one delivers its messages again.
        if not epoch.is_open:
            self._counts["stale"] += 1
        elif isinstance(how, CopyFate):
            epoch.messages.copied(tag, how)
        elif (delivery := epoch.messages.claim(tag)) is None:
            self._counts["stale"] += 1
        elif isinstance(how, Later):
            epoch.messages.retry_later(delivery, how)
        elif how is Verb.FAIL:
            epoch.messages.fail(delivery, reason)
        elif how is Verb.RELEASE:
            epoch.release(delivery)
        else:
            epoch.messages.dead_letter(delivery, reason)

    def _set_paused(self, *, paused: bool) -> None:
        self._paused = paused
        self._take_or_not()

    def _set_expected(self, tuples: int) -> None:
        self._intake.expect(tuples)
        self._expecting = tuples > 0
        self._take_or_not()

    def _take_or_not(self) -> None:
        if self._epoch is not None:
            self._epoch.set_taking(taking=self._expecting and not self._paused)

    def _report(self) -> None:
        """Report the counters, and check the broker's consumer."""
        self._link.later(_REPORT_S, self._report)
        if self._epoch is not None:
            self._epoch.check()
        self._pass_counts_on()

    def _pass_counts_on(self) -> None:
        if self._epoch is not None:
            self._counts.update(self._epoch.counts)
            self._epoch.counts.clear()
        counts = {name: count for name, count in self._counts.items() if count}
        self._counts.clear()
        for name, count in counts.items():
            self._settings.count(name, count)

    def _finish(self) -> None:
        self._flush()
        self._ending = True
        if self._epoch is None:
            self._finished()
        else:
            self._epoch.end(self._finished)

    def _finished(self) -> None:
        self._pass_counts_on()
        self._link.finish()
