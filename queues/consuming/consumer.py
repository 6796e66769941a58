"""Consuming from one queue on an I/O thread of its own, with acknowledgements by hand.

Every new channel is a new *epoch*: delivery tags begin at 1 again, and whatever is said about an
older epoch is dropped.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from typing import Any

from tiercel.queues.broker.address import Address
from tiercel.queues.broker.connection import connected
from tiercel.queues.broker.declare import WorkQueue, declare_work_queue
from tiercel.queues.broker.link import Link
from tiercel.queues.consuming.channel import Epoch
from tiercel.queues.consuming.channel_settings import EpochSettings
from tiercel.queues.consuming.failures import FailureBook
from tiercel.queues.consuming.hand_out import Delivery
from tiercel.queues.consuming.intake import Intake
from tiercel.queues.errors import PublishRefusedError, QueuesError
from tiercel.queues.limits import BYTES_HELD, PREFETCH
from tiercel.queues.publishing.dead_letter_copy import DeadLetterWriter
from tiercel.queues.retry import NO_WAIT, BrokerLimit

log = logging.getLogger(__name__)

_REPORT_S = 0.25


@dataclass(frozen=True, kw_only=True)
class ConsumerSettings:
    """Settings of a consumer: its queue, and how its reader is woken."""

    queue: WorkQueue
    # Called on the I/O thread when there is something to ``get``, or an error.
    wake: Callable[[], None]
    # Adds to a named counter; called on the I/O thread.
    count: Callable[[str, int], None]
    # Shown in RabbitMQ's lists of connections and consumers.
    name: str = "tiercel"
    # So many consumers share the queue, each in a process of its own.
    tasks: int = 1
    prefetch: int = PREFETCH
    bytes_held: int = BYTES_HELD
    clock: Callable[[], float] = time.monotonic


class _Verb(Enum):
    ACK = auto()
    FAIL = auto()
    RELEASE = auto()
    DEAD_LETTER = auto()
    DEAD_LETTERED = auto()
    NOT_DEAD_LETTERED = auto()


class Consumer:
    """Opens messages and settles them; ``get`` and the settling calls are thread-safe
    and never block.

    It declares the queue, connects, subscribes, and does so again whenever the connection, the
    channel or its consumer is gone. Messages that were open then come again, in a new epoch.
    Settling a message twice, or one of an older epoch, is dropped and counted as ``stale``.
    """

    def __init__(self, address: Address, settings: ConsumerSettings) -> None:
        self._address = address
        self._settings = settings
        self._error: QueuesError | None = None
        self._epoch: Epoch | None = None
        self._number = 0
        self._counts: Counter[str] = Counter()
        self._intake = Intake(settings.prefetch, settings.bytes_held)
        self._failures = FailureBook(settings.tasks)
        self._retry = settings.queue.retry
        self._limit = BrokerLimit()
        self._settlements: deque[tuple[int, Sequence[int], _Verb, str]] = deque()
        self._asked = self._paused = self._ending = False
        self._expecting = True
        self._dead_letter_writer = DeadLetterWriter(
            address, settings.queue.name, settings.queue.dead
        )
        self._link = Link(address, self, settings.name)

    # -- from any thread ---------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to connect; returns at once."""
        self._link.call(self._report)
        self._link.start()

    def get(self, limit: int) -> list[Delivery]:
        """The next messages, as many as there are just now and ``limit`` at most."""
        epoch = self._epoch
        return [] if epoch is None else epoch.take(limit)

    def error(self) -> QueuesError | None:
        """Return why it has ended by itself: a refusal that an operator must act on."""
        return self._error

    def ack(self, epoch: int, *tags: int) -> None:
        """Ack messages that were processed: they leave the queue."""
        self._settle(epoch, tags, _Verb.ACK)

    def fail(self, epoch: int, tag: int, reason: str = "") -> None:
        """Reject a message that failed or timed out: it is delivered again after the back-off, or
        dead-lettered with the reason.
        """
        self._settle(epoch, [tag], _Verb.FAIL, reason)

    def release(self, epoch: int, tag: int) -> None:
        """Give a message back without blame: ``get`` hands it out once more, soon, while this
        consumer takes messages.
        """
        self._settle(epoch, [tag], _Verb.RELEASE)

    def dead_letter(self, epoch: int, tag: int, reason: str) -> None:
        """Dead-letter a message that can never be processed, without further deliveries."""
        self._settle(epoch, [tag], _Verb.DEAD_LETTER, reason)

    def pause(self) -> None:
        """Take no more messages, and give back those that ``get`` has not handed out.

        What is open can still be settled.
        """
        self._link.call(lambda: self._set_paused(paused=True))

    def resume(self) -> None:
        """Take messages again."""
        self._link.call(lambda: self._set_paused(paused=False))

    def expect(self, tuples: int) -> None:
        """Ask for about twice as many messages from now on; 0: hold none but those that
        ``get`` has handed out.
        """
        self._link.call(lambda: self._set_expected(tuples))

    def stop(self, grace: timedelta) -> bool:
        """Settle what was acked or failed, give back the rest, close.

        True if that was done within ``grace``.

        If it was not, the broker requeues everything when the connection breaks. Idempotent.
        """
        deadline = time.monotonic() + grace.total_seconds()
        self.pause()
        self._dead_letter_writer.close(max(0.0, deadline - time.monotonic()) / 2)
        self._link.call(self._finish)
        return self._link.join(max(0.1, deadline - time.monotonic()))

    def _settle(self, epoch: int, tags: Sequence[int], verb: _Verb, reason: str = "") -> None:
        self._settlements.append((epoch, tags, verb, reason))
        if not self._asked:
            self._asked = True
            self._link.call(self._flush)

    # -- on the I/O thread -------------------------------------------------------------------------

    def prepare(self) -> None:
        """``LinkUser.prepare``: the queue may have been deleted while we were away."""
        with connected(self._address, "tiercel declare") as connection:
            declared = declare_work_queue(connection, self._address, self._settings.queue)
        self._retry = NO_WAIT if declared.delays_retries else self._settings.queue.retry
        self._limit = declared.limit

    def opened(self, channel: Any) -> None:
        """``LinkUser.opened``: a new epoch."""
        self._number += 1
        self._counts["channels"] += 1
        queue = self._settings.queue
        settings = EpochSettings(
            queue=queue.name,
            tag=self._settings.name.replace(" ", "."),
            link=self._link,
            intake=self._intake,
            retry=self._retry,
            delivery_limit=queue.delivery_limit,
            broker_limit=self._limit,
            failures=self._failures,
            wake=self._settings.wake,
            dead_letter=self._copy_to_dead_letters,
            clock=self._settings.clock,
        )
        self._epoch = Epoch(self._number, channel, settings)
        self._take_or_not()

    def lost(self, error: QueuesError) -> None:  # noqa: ARG002 - the link logs it
        """``LinkUser.lost``: the broker requeues what was open."""
        epoch = self._epoch
        self._epoch = None
        if epoch is not None:
            self._counts.update(epoch.counts)
            epoch.void()
        if self._ending:
            self._finished()

    def failed(self, error: QueuesError) -> None:
        """``LinkUser.failed``."""
        self._error = error
        self._settings.wake()

    def _flush(self) -> None:
        # Cleared first: a thread that appends from here on either sees it cleared and asks again,
        # or is seen by this loop.
        self._asked = False
        epoch = self._epoch
        settlements = self._settlements
        while settlements:
            number, tags, verb, reason = settlements.popleft()
            # A channel that is closing takes nothing any more: its messages come again on the next.
            if epoch is None or number != epoch.number or not epoch.is_open:
                self._counts["stale"] += len(tags)
            elif verb is _Verb.ACK:
                self._counts["stale"] += len(tags) - epoch.messages.finish_all(tags)
            else:
                self._apply(epoch, tags[0], verb, reason)
        if epoch is not None:
            epoch.flush()

    def _apply(self, epoch: Epoch, tag: int, verb: _Verb, reason: str) -> None:
        if verb is _Verb.DEAD_LETTERED:
            epoch.messages.dead_lettered(tag)
        elif verb is _Verb.NOT_DEAD_LETTERED:
            epoch.messages.not_dead_lettered(tag)
        elif (delivery := epoch.messages.claim(tag)) is None:
            self._counts["stale"] += 1
        elif verb is _Verb.FAIL:
            epoch.messages.fail(delivery, reason)
        elif verb is _Verb.RELEASE:
            epoch.release(delivery)
        else:
            epoch.messages.dead_letter(delivery, reason)

    def _copy_to_dead_letters(self, delivery: Delivery, reason: str) -> None:
        def done(error: QueuesError | None) -> None:
            if error is None:
                self._settle(delivery.epoch, [delivery.tag], _Verb.DEAD_LETTERED)
                return
            log.warning(
                "a message stays in its queue for now: %s",
                error,
                extra={"event": "dead_letter_refused"},
            )
            self._settle(delivery.epoch, [delivery.tag], _Verb.NOT_DEAD_LETTERED)

        try:
            self._dead_letter_writer.copy(delivery, reason, done)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, its neighbours are not
            done(PublishRefusedError(f"it cannot be copied: {error!r}"))

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
        """Pass the counters on, and look after the broker's consumer."""
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
