"""One channel from its opening to its end: what came on it, and what became of each message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tiercel.queues.broker.link import Link
from tiercel.queues.consuming.acks import Acks
from tiercel.queues.consuming.failures import FailureBook
from tiercel.queues.consuming.intake import Intake
from tiercel.queues.consuming.subscription import Subscription
from tiercel.queues.consuming.waiting import Delivery, Waiting
from tiercel.queues.errors import BrokerUnavailableError
from tiercel.queues.limits import MAX_BODY_BYTES, UNEMITTED_S
from tiercel.queues.retry import BrokerLimit, DeadLetter, RetryPolicy, delivered_before, next_action

_LAST_DELIVERY = "came back {} times: the next time its queue would delete it"


@dataclass(frozen=True, kw_only=True)
class EpochSettings:
    """Settings that all channels of a consumer share."""

    queue: str
    # The consumer tag's beginning.
    tag: str
    # Back-off for which a failed message is held before it is rejected.
    retry: RetryPolicy
    # A message that failed so often before and fails again is dead-lettered.
    delivery_limit: int
    broker_limit: BrokerLimit
    failures: FailureBook
    # Called when there begins to be something to ``take``.
    wake: Callable[[], None]
    # Moves a copy to the dead-letter queue; ``dead_lettered`` or ``not_dead_lettered`` is called
    # some time later.
    dead_letter: Callable[[Delivery, str], None]
    clock: Callable[[], float]


class Epoch:
    """Everything of one channel. All of it runs on the I/O thread, except ``take``.

    A message is open until it is settled. While it is held for its back-off or being copied to the
    dead-letter queue it is busy: only the end of that settles it. Once the channel begins to close
    nothing can be said on it any more; what is held then is held until ``void``.
    """

    def __init__(
        self, number: int, channel: Any, link: Link, intake: Intake, settings: EpochSettings
    ) -> None:
        self.number = number
        self.counts: Counter[str] = Counter()
        self._channel = channel
        self._link = link
        self._intake = intake
        self._settings = settings
        self._limit = settings.broker_limit
        self._acks = Acks(channel, link, lambda: self.subscription.stirred(settings.clock()))
        self._book = self._acks.book
        self._waiting = Waiting()
        self._open: dict[int, Delivery] = {}
        self._busy: dict[int, Delivery] = {}
        self._timers: dict[int, object] = {}
        self._taking = False
        self._at_end: Callable[[], None] | None = None
        self.subscription = Subscription(
            channel,
            settings.queue,
            f"{settings.tag}.{number}",
            on_message=self._on_message,
            on_end=self.adjust,
        )
        channel.add_on_cancel_callback(self._cancelled_by_broker)

    @property
    def is_open(self) -> bool:
        """Messages can be settled."""
        return bool(self._channel.is_open)

    # -- taking messages ---------------------------------------------------------------------------

    def take(self, limit: int) -> list[Delivery]:
        """The next messages, ``limit`` at most. On any thread."""
        return self._waiting.take(limit)

    def adjust(self, *, at_once: bool = False) -> None:
        """Begin, end or change the subscription; for a change it ends when nothing is on its
        way, or ``at_once``.
        """
        subscription = self.subscription
        if subscription.ending or not self.is_open:
            return
        wanted = self._intake.wanted(subscription.prefetch) if self._taking else 0
        now = self._settings.clock()
        if wanted == subscription.prefetch:
            subscription.keep()
            if self._at_end is not None and not wanted:
                self._end_now(self._at_end)
        elif not subscription.prefetch:
            self._book.mark()
            subscription.begin(wanted, now)
        elif not wanted or at_once or subscription.is_clear(wanted, self._book.unsettled, now):
            subscription.end()
            self._acks.send(everything=True)

    def set_taking(self, *, taking: bool) -> None:
        """Take messages, as many as the intake wants.

        Or take none, and give back what was not handed out.
        """
        self._taking = taking
        if not taking:
            self._give_back_all(self._waiting.first_while(lambda _: True))
        self.adjust()

    def check(self) -> None:
        """Begin anew if the subscription is gone without notice, and look after what waits.

        Call it now and then.
        """
        if self.subscription.lost or not self.is_open:
            self._link.restart(
                BrokerUnavailableError(
                    f"the subscription to queue {self._settings.queue!r} is gone"
                )
            )
            return
        # They would be too old for the consumer timeout before they are processed; the next
        # delivery is a young one.
        old = list(self._waiting.first_while(self._is_old))
        self._give_back_all(old)
        # With too large a prefetch they would come straight back.
        self.adjust(at_once=bool(old))
        self.flush()

    def end(self, then: Callable[[], None]) -> None:
        """Cancel, settle what is finished, give back everything else, then call ``then``."""
        self._at_end = then
        if self.is_open:
            self.set_taking(taking=False)
        else:
            then()

    def void(self) -> None:
        """The channel is gone, the broker requeues what was open on it."""
        for handle in self._timers.values():
            self._link.forget(handle)
        self._timers.clear()
        self._acks.void()
        for delivery in (*self._open.values(), *self._busy.values()):
            self._intake.settled(len(delivery.body))
        self._open.clear()
        self._busy.clear()
        self._waiting.clear()

    def _give_back_all(self, deliveries: Iterable[Delivery]) -> None:
        if self.is_open:
            for delivery in deliveries:
                if self.claim(delivery.tag) is not None:
                    self.give_back(delivery)

    def _is_old(self, delivery: Delivery) -> bool:
        return (
            self._limit.returns_are_free
            and self._settings.clock() - delivery.arrived_s > UNEMITTED_S
        )

    def _cancelled_by_broker(self, _frame: Any) -> None:
        why = "deleted, moved, or not acknowledged in time"
        self._link.restart(
            BrokerUnavailableError(
                f"RabbitMQ cancelled the subscription to {self._settings.queue!r} ({why})"
            )
        )

    def _on_message(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        if not self.is_open:
            return  # it comes again on the next channel
        tag = method.delivery_tag
        now = self._settings.clock()
        self.subscription.stirred(now)
        count = delivered_before(properties.headers, redelivered=method.redelivered)
        delivery = Delivery(self.number, tag, body, count, properties, now)
        self._book.open(tag)
        self._intake.arrived(len(body))
        self.counts["delivered"] += 1
        self.counts["redelivered"] += bool(method.redelivered)
        if self._limit.deletes and self._limit.is_last_delivery(count):
            self.counts["rejected"] += 1
            self.dead_letter(delivery, _LAST_DELIVERY.format(count))
        elif not self._taking:
            self.give_back(delivery)
        elif len(body) > MAX_BODY_BYTES:
            self.counts["rejected"] += 1
            self.dead_letter(
                delivery, f"the body of {len(body)} bytes is above the limit of {MAX_BODY_BYTES}"
            )
        else:
            self._open[tag] = delivery
            if self._waiting.add(delivery):
                self._settings.wake()
        self.adjust()

    # -- settling them -----------------------------------------------------------------------------

    def claim(self, tag: int) -> Delivery | None:
        """Take an open message out, to settle it by one of the calls below.

        None if it is settled or busy.
        """
        return self._open.pop(tag, None)

    def finish_all(self, tags: Iterable[int]) -> int:
        """Take open messages out and ack them with the next ``flush``.

        Returns how many of these were open.
        """
        found = [delivery for tag in tags if (delivery := self._open.pop(tag, None)) is not None]
        for delivery in found:
            self._book.finish(delivery.tag)
        self._intake.settled(sum([len(delivery.body) for delivery in found]), len(found))
        if self._settings.failures:
            for delivery in found:
                self._forget_failures(delivery)
        self.counts["acked_to_broker"] += len(found)
        return len(found)

    def fail(self, delivery: Delivery, reason: str) -> None:
        """Reject a message that failed: again later, or to the dead-letter queue."""
        count = delivery.delivery_count
        failures = self._settings.failures.failed(delivery.body, delivery.properties, count)
        action = next_action(failures, self._settings.retry, self._settings.delivery_limit)
        if isinstance(action, DeadLetter) or self._limit.is_last_failure(count):
            here = f"failed {failures + 1} times here, at last"
            times = here if count is None else f"delivered {count + 1} times, failed at last"
            self.dead_letter(delivery, f"{times}: {reason or 'no reason given'}")
        else:
            self._hold(delivery, action.after_s)

    def release(self, delivery: Delivery) -> None:
        """Hand it out once more, from here, without blame. It costs the message nothing.

        One that is old is given back instead: it shall not be too old for the consumer timeout
        when it is done.
        """
        if self._taking and not self._is_old(delivery):
            self._open[delivery.tag] = delivery
            self._waiting.add_again(delivery)
            self._settings.wake()
        else:
            self.give_back(delivery)

    def give_back(self, delivery: Delivery) -> None:
        """Return it to the broker, without blame as far as the broker can tell."""
        self._channel.basic_nack(delivery.tag, requeue=True)
        self._settled(delivery, "given_back")

    def dead_letter(self, delivery: Delivery, reason: str) -> None:
        """Dead-letter a message that can never be processed."""
        self._busy[delivery.tag] = delivery
        self._settings.dead_letter(delivery, reason)

    def dead_lettered(self, tag: int) -> None:
        """The dead-letter queue has the copy: now the original may go."""
        if (delivery := self._busy.pop(tag, None)) is not None:
            self._book.finish(tag)
            self._intake.settled(len(delivery.body))
            self._forget_failures(delivery)
            self.counts["dead_lettered"] += 1

    def not_dead_lettered(self, tag: int) -> None:
        """The dead-letter queue did not take it: keep it in its own queue, and try again after
        the longest wait.
        """
        delivery = self._busy.pop(tag, None)
        if delivery is not None:
            self._hold(delivery, max(1.0, self._settings.retry.longest.total_seconds()))

    def flush(self) -> None:
        """Send the acks that are due, unless they wait for a change of the prefetch: then a later
        call sends them.
        """
        if self.is_open:
            self.adjust()
            if not self.subscription.withholds_acks(self._settings.clock()):
                self._acks.send()

    def _forget_failures(self, delivery: Delivery) -> None:
        if delivery.delivery_count != 0:
            self._settings.failures.settled(delivery.body, delivery.properties)

    def _hold(self, delivery: Delivery, wait_s: float) -> None:
        """Reject it after its back-off."""
        self._busy[delivery.tag] = delivery
        if wait_s <= 0:
            self._reject_held(delivery.tag)
        else:
            self._timers[delivery.tag] = self._link.later(
                wait_s, lambda: self._reject_held(delivery.tag)
            )

    def _reject_held(self, tag: int) -> None:
        self._timers.pop(tag, None)
        if not self.is_open:
            return  # it stays busy, so that void settles it
        if (delivery := self._busy.pop(tag, None)) is None:
            return
        if self._limit.is_last_delivery(delivery.delivery_count):
            self.dead_letter(delivery, _LAST_DELIVERY.format(delivery.delivery_count))
            return
        # Not nack: from RabbitMQ 4.3 on only a reject raises the delivery count, by which the
        # broker delays retries.
        self._channel.basic_reject(delivery.tag, requeue=True)
        self._settled(delivery, "requeued")
        self.adjust()

    def _settled(self, delivery: Delivery, counter: str) -> None:
        self.subscription.stirred(self._settings.clock())
        self._book.close(delivery.tag)
        self._intake.settled(len(delivery.body))
        self.counts[counter] += 1

    def _end_now(self, then: Callable[[], None]) -> None:
        """The broker sends no more: settle everything, then close."""
        self._at_end = None
        for tag, handle in list(self._timers.items()):
            self._link.forget(handle)
            self._reject_held(tag)
        self.flush()
        self._acks.send(everything=True)
        for delivery in (*self._open.values(), *self._busy.values()):
            self.give_back(delivery)
        self._open.clear()
        self._busy.clear()
        then()
