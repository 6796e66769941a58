"""One channel from its opening to its end: what came on it, and what became of each message."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from queues.errors import BrokerUnavailableError
from queues.intake import Intake
from queues.limits import MAX_BODY_BYTES
from queues.link import Link
from queues.retry import DeadLetter, RetryPolicy, delivered_before, next_action
from queues.settle import SettleBook


class Delivery(NamedTuple):
    """One opened message."""

    epoch: int
    tag: int
    body: bytes
    delivery_count: int | None
    """How often it failed before, as far as the broker counts: 0 the first time, None where it does not know."""
    properties: Any
    """As pika's ``BasicProperties``."""


@dataclass(frozen=True, kw_only=True)
class EpochSettings:
    """What is the same for all channels of a consumer."""

    queue: str
    tag: str
    """The consumer tag's beginning."""
    retry: RetryPolicy
    """How long to hold a failed message before it is rejected."""
    delivery_limit: int
    wake: Callable[[], None]
    """Called when the inbox stops being empty."""
    bury: Callable[[Delivery, str], None]
    """Moves a copy to the dead-letter queue; ``buried`` or ``not_buried`` is called some time later."""


class Epoch:
    """Everything of one channel. All of it runs on the I/O thread, except that the inbox may be taken from elsewhere.

    A message is open until it is settled. While it is held for its back-off or being copied to the dead-letter queue it is
    busy: nobody else can settle it.
    """

    def __init__(self, number: int, channel: Any, link: Link, intake: Intake, settings: EpochSettings) -> None:
        self.number = number
        self.inbox: deque[Delivery] = deque()
        self.counts: Counter[str] = Counter()
        self._channel, self._link, self._intake, self._settings = channel, link, intake, settings
        self._book = SettleBook()
        self._open: dict[int, Delivery] = {}
        self._busy: dict[int, Delivery] = {}
        self._timers: dict[int, object] = {}
        self._prefetch = 0
        self._subscriptions = 0
        self._consumer_tag: str | None = None
        self._cancelling = self._paused = False
        self._at_end: Callable[[], None] | None = None
        channel.add_on_cancel_callback(self._cancelled_by_broker)

    # -- taking messages ---------------------------------------------------------------------------------------------------

    def adjust(self) -> None:
        """Begin, end or change the subscription, as far as it is not what it should be."""
        if self._cancelling or not self._channel.is_open:
            return
        wanted = 0 if self._paused else self._intake.wanted(self._prefetch)
        if wanted == self._prefetch:
            if self._at_end is not None and not wanted:
                self._end_now(self._at_end)
        elif self._prefetch:
            self._unsubscribe()
        else:
            self._subscribe(wanted)

    def pause(self) -> None:
        """Take no more, and give back what nobody has opened yet."""
        self._paused = True
        while self.inbox:
            try:
                delivery = self.inbox.popleft()
            except IndexError:
                break
            if self.claim(delivery.tag) is not None:
                self.give_back(delivery)
        self.adjust()

    def resume(self) -> None:
        self._paused = False
        self.adjust()

    def check(self) -> None:
        """Begin anew if the subscription is gone without a word."""
        subscribed = self._consumer_tag is None or self._consumer_tag in self._channel.consumer_tags
        if not subscribed or not self._channel.is_open:
            self._link.restart(BrokerUnavailableError(f"the subscription to queue {self._settings.queue!r} is gone"))

    def end(self, then: Callable[[], None]) -> None:
        """Cancel, settle what is finished, give back everything else, then call ``then``."""
        self._at_end = then
        if self._channel.is_open:
            self.pause()
        else:
            then()

    def void(self) -> None:
        """The channel is gone, the broker requeues what was open on it."""
        for handle in self._timers.values():
            self._link.forget(handle)
        self._timers.clear()
        for delivery in (*self._open.values(), *self._busy.values()):
            self._intake.settled(len(delivery.body))
        self._open.clear()
        self._busy.clear()
        self.inbox.clear()

    def _subscribe(self, prefetch: int) -> None:
        self._prefetch = prefetch
        self._subscriptions += 1
        tag = f"{self._settings.tag}.{self.number}.{self._subscriptions}"
        self._channel.basic_qos(prefetch_count=prefetch)
        self._consumer_tag = self._channel.basic_consume(self._settings.queue, self._on_message, consumer_tag=tag)

    def _unsubscribe(self) -> None:
        self._cancelling = True
        tag, self._consumer_tag = self._consumer_tag, None
        self._channel.basic_cancel(tag, callback=self._on_cancelled)
        # By itself pika would reject with requeue what still comes before the cancel-ok, which counts as a failed delivery
        # of messages that nobody has seen. This way they come to _on_message.
        self._channel._cancelled.discard(tag)  # noqa: SLF001

    def _on_cancelled(self, _frame: Any) -> None:
        self._cancelling, self._prefetch = False, 0
        self.adjust()

    def _cancelled_by_broker(self, _frame: Any) -> None:
        why = "deleted, moved, or not acknowledged in time"
        self._link.restart(BrokerUnavailableError(f"RabbitMQ cancelled the subscription to {self._settings.queue!r} ({why})"))

    def _on_message(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        tag = method.delivery_tag
        count = delivered_before(properties.headers, redelivered=method.redelivered)
        delivery = Delivery(self.number, tag, body, count, properties)
        self._book.open(tag)
        self._intake.arrived(len(body))
        self.counts["delivered"] += 1
        if method.redelivered:
            self.counts["redelivered"] += 1
        if self._paused:
            self.give_back(delivery)
        elif len(body) > MAX_BODY_BYTES:
            self.counts["rejected"] += 1
            self.bury(delivery, f"the body of {len(body)} bytes is above the limit of {MAX_BODY_BYTES}")
        else:
            self._open[tag] = delivery
            self.inbox.append(delivery)
            if len(self.inbox) == 1:
                self._settings.wake()
        self.adjust()

    # -- settling them -----------------------------------------------------------------------------------------------------

    def claim(self, tag: int) -> Delivery | None:
        """Take an open message out, to settle it by one of the calls below; None if it is settled or busy."""
        return self._open.pop(tag, None)

    def finish(self, delivery: Delivery) -> None:
        """Ack it with the next ``flush``."""
        self._book.finish(delivery.tag)
        self._intake.settled(len(delivery.body))
        self.counts["acked_to_broker"] += 1

    def finish_all(self, tags: Iterable[int]) -> int:
        """Take open messages out and ack them with the next ``flush``; returns how many of these were open."""
        found = [delivery for tag in tags if (delivery := self._open.pop(tag, None)) is not None]
        for delivery in found:
            self._book.finish(delivery.tag)
        self._intake.settled(sum([len(delivery.body) for delivery in found]))
        self.counts["acked_to_broker"] += len(found)
        return len(found)

    def fail(self, delivery: Delivery, reason: str) -> None:
        """It was processed without success: again later, or to the dead-letter queue."""
        settings = self._settings
        action = next_action(delivery.delivery_count, settings.retry, settings.delivery_limit)
        if isinstance(action, DeadLetter):
            self.bury(
                delivery, f"delivered {(delivery.delivery_count or 0) + 1} times, failed at last: {reason or 'no reason given'}"
            )
        else:
            self._reject_after(delivery, action.after_s)

    def give_back(self, delivery: Delivery) -> None:
        """It did nothing wrong."""
        self._channel.basic_nack(delivery.tag, requeue=True)
        self._settled(delivery, "given_back")

    def bury(self, delivery: Delivery, reason: str) -> None:
        """It can never be processed."""
        self._busy[delivery.tag] = delivery
        self._settings.bury(delivery, reason)

    def buried(self, tag: int) -> None:
        """The dead-letter queue has the copy: now the original may go."""
        delivery = self._busy.pop(tag, None)
        if delivery is not None:
            self.finish(delivery)
            self.counts["acked_to_broker"] -= 1
            self.counts["dead_lettered"] += 1

    def not_buried(self, tag: int) -> None:
        """The dead-letter queue did not take it: keep it in its own queue, and try again after the longest wait."""
        delivery = self._busy.pop(tag, None)
        if delivery is not None:
            self._reject_after(delivery, max(1.0, self._settings.retry.longest.total_seconds()))

    def flush(self) -> None:
        """Send the acks that are due."""
        if self._channel.is_open:
            for ack in self._book.take():
                self._channel.basic_ack(ack.tag, multiple=ack.multiple)
            self.adjust()

    def _reject_after(self, delivery: Delivery, wait_s: float) -> None:
        if wait_s <= 0:
            self._reject(delivery)
            return
        self._busy[delivery.tag] = delivery
        self._timers[delivery.tag] = self._link.later(wait_s, lambda: self._reject_held(delivery.tag))

    def _reject_held(self, tag: int) -> None:
        self._timers.pop(tag, None)
        delivery = self._busy.pop(tag, None)
        if delivery is not None and self._channel.is_open:
            self._reject(delivery)

    def _reject(self, delivery: Delivery) -> None:
        # Not nack: from RabbitMQ 4.3 on only a reject raises the delivery count, and a message that always fails must not
        # be delivered for ever.
        self._channel.basic_reject(delivery.tag, requeue=True)
        self._settled(delivery, "requeued")

    def _settled(self, delivery: Delivery, counter: str) -> None:
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
        for delivery in (*self._open.values(), *self._busy.values()):
            self.give_back(delivery)
        self._open.clear()
        self._busy.clear()
        then()
