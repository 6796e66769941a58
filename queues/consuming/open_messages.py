"""The open messages of one channel, and how each is settled: a failed one is rejected here."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

from tiercel.queues.broker.delays import delay_ms, ends_too_early
from tiercel.queues.consuming.acks import Acks
from tiercel.queues.consuming.channel_settings import EpochSettings
from tiercel.queues.consuming.copies import CopyFate
from tiercel.queues.consuming.hand_out import Delivery
from tiercel.queues.consuming.verbs import Later
from tiercel.queues.limits import HELD_LATER_S
from tiercel.queues.retry import GiveUp, failed_before, next_action

# One whose back-off is over waits no longer than this for others that came again before it: these
# may be waiting for it in turn (``ordered_by``), or a bolt may hold them for very long.
_LONGEST_DUE_S = 10.0


class OpenMessages:
    """Everything that came on one channel and is not settled. All of it runs on the I/O thread.

    A message is open until it is settled. While it is being copied to another queue it is busy, and
    while it is held for its back-off it waits: only the end of that settles it. Of one that waits
    no more than the delivery tag is kept, and it takes no room of those that do not wait. Once the
    channel begins to close what is held is held until ``void``.
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
        # Those that wait for their back-off, without bodies; the timers of those whose back-off is
        # not over; of the others since when it is, and the tag.
        self._waiting: dict[int, Delivery] = {}
        self._timers: dict[int, object] = {}
        self.due: deque[tuple[float, int]] = deque()
        # Of those that wait, the ones that came over the broker's consumer of now.
        self.waiting_here = 0
        # Open messages that were delivered before, and those that were returned for that just now.
        self._again = 0
        self._returning = 0
        # Of those that are being copied to a delay queue.
        self._wishes: dict[int, Later] = {}

    def add(self, delivery: Delivery) -> None:
        """It is open: for the first time, or once more."""
        self._open[delivery.tag] = delivery
        if delivery.redelivered:
            self._again += 1
            self._returning = max(0, self._returning - 1)

    def mark(self) -> None:
        """A new consumer of the broker's begins, whose prefetch counts from zero."""
        self._book.mark()
        self.waiting_here = 0

    def claim(self, tag: int) -> Delivery | None:
        """Take an open message out, to settle it by one of the calls below.

        None if it is settled or busy.
        """
        delivery = self._open.pop(tag, None)
        if delivery is not None:
            self._again -= delivery.redelivered
        return delivery

    def finish_all(self, tags: Iterable[int]) -> int:
        """Take open messages out and ack them with the next ``flush``.

        Returns how many of these were open.
        """
        found = [delivery for tag in tags if (delivery := self._open.pop(tag, None)) is not None]
        for delivery in found:
            self._book.finish(delivery.tag)
        self._again -= sum([delivery.redelivered for delivery in found])
        self._intake.let_go(sum([delivery.size for delivery in found]), len(found))
        if self._settings.failures:
            for delivery in found:
                self._forget_failures(delivery)
        self.counts["acked_to_broker"] += len(found)
        return len(found)

    def fail(self, delivery: Delivery, reason: str) -> None:
        """Reject a message that failed: again later, or to the dead-letter queue."""
        failures = self._failed(delivery)
        action = next_action(failures, self._settings.retry, self._settings.delivery_limit)
        if isinstance(action, GiveUp) or self._limit.is_last_failure(delivery.delivery_count):
            self._give_up(delivery, failures, reason)
        else:
            self._hold(delivery, action.after_s)

    def retry_later(self, delivery: Delivery, later: Later) -> None:
        """Have a message that failed come again after a time: a copy of it waits in a delay queue.

        It is held here where a policy would end that queue too early. Without blame the number of
        its failures stays as it is.
        """
        if later.blame:
            failures = self._failed(delivery)
            action = next_action(failures, self._settings.retry, self._settings.delivery_limit)
            if isinstance(action, GiveUp):
                self._give_up(delivery, failures, later.reason)
                return
            failures += 1
        else:
            failures = self._failures_so_far(delivery)
        queue, milliseconds = self._settings.queue, delay_ms(later.seconds)
        if ends_too_early(self._settings.policies, queue, milliseconds) is not None:
            self._hold(delivery, min(later.seconds, HELD_LATER_S))
            return
        self._busy[delivery.tag] = delivery
        self._wishes[delivery.tag] = later
        self._settings.copies.delay(delivery, later.seconds, failures)

    def give_back(self, delivery: Delivery) -> None:
        """Return it to the broker, without blame as far as the broker can tell."""
        self._channel.basic_nack(delivery.tag, requeue=True)
        self._settled(delivery, "given_back")

    def give_back_all(self) -> None:
        """Give back everything that is not settled; nothing waits any more."""
        for delivery in (*self._open.values(), *self._busy.values()):
            self.give_back(delivery)
        self._clear()

    def dead_letter(self, delivery: Delivery, reason: str) -> None:
        """Dead-letter a message that can never be processed."""
        self._busy[delivery.tag] = delivery
        self._settings.copies.dead_letter(delivery, reason)

    def dead_letter_last(self, delivery: Delivery) -> None:
        """Dead-letter a message that the broker would delete in place of its next delivery."""
        count = delivery.delivery_count
        self.dead_letter(
            delivery, f"came back {count} times: the next time its queue would delete it"
        )

    def copied(self, tag: int, fate: CopyFate) -> None:
        """Another queue has the copy: now the original may go.

        Where that did not take it, keep it in its own queue, and try again after the time that was
        wanted, or after the longest wait.
        """
        later = self._wishes.pop(tag, None)
        if (delivery := self._busy.pop(tag, None)) is None:
            return
        if fate in (CopyFate.REFUSED, CopyFate.NO_ROOM):
            self._keep(delivery, later, fate)
            return
        self._book.finish(tag)
        self._intake.let_go(delivery.size)
        if fate is CopyFate.DELAYED:
            # The copy's header knows them, also those that were noted at the first delivery.
            self._settings.failures.forget(delivery.body, delivery.properties)
        else:
            self._forget_failures(delivery)
        self.counts[fate.value] += 1

    def _keep(self, delivery: Delivery, later: Later | None, fate: CopyFate) -> None:
        """Hold a message that no other queue took."""
        if later is None:
            self._hold(delivery, max(1.0, self._settings.retry.longest.total_seconds()))
        elif fate is CopyFate.NO_ROOM and later.seconds > HELD_LATER_S:
            self.dead_letter(
                delivery,
                f"wanted again in {later.seconds:,.0f} s, which no delay queue can do for it: its "
                f"headers leave no room; {later.reason}",
            )
        else:
            self._hold(delivery, max(1.0, min(later.seconds, HELD_LATER_S)))

    def end_back_offs(self) -> None:
        """Reject now what is held for its back-off."""
        self._forget_timers()
        for tag in list(self._waiting):
            self._reject_held(tag)

    def let_return(self, *, anew: bool = False) -> None:
        """Reject those whose back-off is over, so that they come again: as many as there is room
        for, since the broker delivers them before all others.

        ``anew``: those that were returned before and did not come are another worker's by now.
        """
        if anew:
            self._returning = 0
        late_s = self._settings.clock() - _LONGEST_DUE_S
        while self.due and self._channel.is_open:
            has_room = self._again + self._returning < self._intake.again
            if not has_room and self.due[0][0] > late_s:
                break
            self._returning += 1
            self._reject_held(self.due.popleft()[1])

    def void(self) -> None:
        """The channel is gone."""
        self._forget_timers()
        self.acks.void()
        for _ in self._waiting:
            self._intake.waited()
        for delivery in (*self._open.values(), *self._busy.values(), *self._waiting.values()):
            self._intake.let_go(delivery.size)
        self._clear()

    def _clear(self) -> None:
        self._open.clear()
        self._busy.clear()
        self._wishes.clear()
        self._waiting.clear()
        self.due.clear()
        self._again = self._returning = self.waiting_here = 0

    def _forget_timers(self) -> None:
        for handle in self._timers.values():
            self._link.forget(handle)
        self._timers.clear()

    def _failed(self, delivery: Delivery) -> int:
        """Note a failure; returns how often the message had failed before, also as the message
        that it was before it lay in a delay queue.
        """
        count = delivery.delivery_count
        # Each channel of this worker may have ended around it, and the worker before this one.
        here = self._settings.failures.failed(
            delivery.body, delivery.properties, count, returns=delivery.epoch
        )
        return here + failed_before(delivery.properties.headers)

    def _failures_so_far(self, delivery: Delivery) -> int:
        count = delivery.delivery_count
        here = self._settings.failures.so_far(delivery.body, delivery.properties, count)
        return here + failed_before(delivery.properties.headers)

    def _give_up(self, delivery: Delivery, failures: int, reason: str) -> None:
        count = delivery.delivery_count
        if failed_before(delivery.properties.headers):
            times = f"failed {failures + 1} times, at last"
        elif count is None:
            times = f"failed {failures + 1} times here, at last"
        else:
            times = f"delivered {count + 1} times, failed at last"
        self.dead_letter(delivery, f"{times}: {reason or 'no reason given'}")

    def _forget_failures(self, delivery: Delivery) -> None:
        if delivery.delivery_count != 0:
            self._settings.failures.forget(delivery.body, delivery.properties)

    def _hold(self, delivery: Delivery, wait_s: float) -> None:
        """Reject it after its back-off."""
        if wait_s <= 0:
            self._reject(delivery)
            return
        tag = delivery.tag
        kept = delivery
        if not self._limit.is_last_delivery(delivery.delivery_count):
            kept = delivery._replace(body=b"", properties=None)
        self._waiting[tag] = kept
        self._intake.waits(delivery.size - kept.size)
        self.waiting_here += self._book.is_of_newest(tag)
        self._timers[tag] = self._link.later(wait_s, lambda: self._back_off_over(tag))

    def _back_off_over(self, tag: int) -> None:
        del self._timers[tag]
        self.due.append((self._settings.clock(), tag))
        self.let_return()

    def _reject_held(self, tag: int) -> None:
        if not self._channel.is_open:
            return  # it waits on, so that void settles it
        if (delivery := self._waiting.pop(tag, None)) is None:
            return
        self.waiting_here -= self._book.is_of_newest(tag)
        self._intake.waited()
        self._reject(delivery)
        self._adjust()

    def _reject(self, delivery: Delivery) -> None:
        if self._limit.is_last_delivery(delivery.delivery_count):
            self.dead_letter_last(delivery)
            return
        # Not nack: from RabbitMQ 4.3 on only a reject raises the delivery count, by which the
        # broker delays retries.
        self._channel.basic_reject(delivery.tag, requeue=True)
        self._settled(delivery, "requeued")

    def _settled(self, delivery: Delivery, counter: str) -> None:
        self._stirred()
        self._book.close(delivery.tag)
        self._intake.let_go(delivery.size)
        self.counts[counter] += 1
