"""The open messages of one channel, and how each is settled: a failed one is rejected here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from tiercel.queues.consuming.acks import Acks
from tiercel.queues.consuming.channel_settings import EpochSettings
from tiercel.queues.consuming.hand_out import Delivery
from tiercel.queues.retry import GiveUp, next_action


class OpenMessages:
    """Everything that came on one channel and is not settled. All of it runs on the I/O thread.

    A message is open until it is settled. While it is held for its back-off or being copied to the
    dead-letter queue it is busy: only the end of that settles it. Once the channel begins to close
    what is held is held until ``void``.
    """

    def __init__(
        self,
        channel: Any,
        settings: EpochSettings,
        *,
        stirred: Callable[[], None],
        adjust: Callable[[], None],
    ) -> None:
        """``stirred`` is called when something was said to the broker, ``adjust`` when what was
        held has left.
        """
        self.counts: Counter[str] = Counter()
        self.acks = Acks(channel, settings.link, stirred)
        self._book = self.acks.book
        self._channel = channel
        self._link = settings.link
        self._intake = settings.intake
        self._settings = settings
        self._limit = settings.broker_limit
        self._stirred = stirred
        self._adjust = adjust
        self._open: dict[int, Delivery] = {}
        self._busy: dict[int, Delivery] = {}
        self._timers: dict[int, object] = {}

    def add(self, delivery: Delivery) -> None:
        """It is open: for the first time, or once more."""
        self._open[delivery.tag] = delivery

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
        self._intake.let_go(sum([len(delivery.body) for delivery in found]), len(found))
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
        if isinstance(action, GiveUp) or self._limit.is_last_failure(count):
            here = f"failed {failures + 1} times here, at last"
            times = here if count is None else f"delivered {count + 1} times, failed at last"
            self.dead_letter(delivery, f"{times}: {reason or 'no reason given'}")
        else:
            self._hold(delivery, action.after_s)

    def give_back(self, delivery: Delivery) -> None:
        """Return it to the broker, without blame as far as the broker can tell."""
        self._channel.basic_nack(delivery.tag, requeue=True)
        self._settled(delivery, "given_back")

    def give_back_all(self) -> None:
        """Give back everything that is not settled."""
        for delivery in (*self._open.values(), *self._busy.values()):
            self.give_back(delivery)
        self._open.clear()
        self._busy.clear()

    def dead_letter(self, delivery: Delivery, reason: str) -> None:
        """Dead-letter a message that can never be processed."""
        self._busy[delivery.tag] = delivery
        self._settings.dead_letter(delivery, reason)

    def dead_letter_last(self, delivery: Delivery) -> None:
        """Dead-letter a message that the broker would delete in place of its next delivery."""
        count = delivery.delivery_count
        self.dead_letter(
            delivery, f"came back {count} times: the next time its queue would delete it"
        )

    def dead_lettered(self, tag: int) -> None:
        """The dead-letter queue has the copy: now the original may go."""
        if (delivery := self._busy.pop(tag, None)) is not None:
            self._book.finish(tag)
            self._intake.let_go(len(delivery.body))
            self._forget_failures(delivery)
            self.counts["dead_lettered"] += 1

    def not_dead_lettered(self, tag: int) -> None:
        """The dead-letter queue did not take it: keep it in its own queue, and try again after
        the longest wait.
        """
        delivery = self._busy.pop(tag, None)
        if delivery is not None:
            self._hold(delivery, max(1.0, self._settings.retry.longest.total_seconds()))

    def end_back_offs(self) -> None:
        """Reject now what is held for its back-off."""
        for tag, handle in list(self._timers.items()):
            self._link.forget(handle)
            self._reject_held(tag)

    def void(self) -> None:
        """The channel is gone."""
        for handle in self._timers.values():
            self._link.forget(handle)
        self._timers.clear()
        self.acks.void()
        for delivery in (*self._open.values(), *self._busy.values()):
            self._intake.let_go(len(delivery.body))
        self._open.clear()
        self._busy.clear()

    def _forget_failures(self, delivery: Delivery) -> None:
        if delivery.delivery_count != 0:
            self._settings.failures.forget(delivery.body, delivery.properties)

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
        if not self._channel.is_open:
            return  # it stays busy, so that void settles it
        if (delivery := self._busy.pop(tag, None)) is None:
            return
        if self._limit.is_last_delivery(delivery.delivery_count):
            self.dead_letter_last(delivery)
            return
        # Not nack: from RabbitMQ 4.3 on only a reject raises the delivery count, by which the
        # broker delays retries.
        self._channel.basic_reject(delivery.tag, requeue=True)
        self._settled(delivery, "requeued")
        self._adjust()

    def _settled(self, delivery: Delivery, counter: str) -> None:
        self._stirred()
        self._book.close(delivery.tag)
        self._intake.let_go(len(delivery.body))
        self.counts[counter] += 1
