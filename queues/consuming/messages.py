"""The open messages of one channel, each acked, rejected after its back-off, or moved by copy."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

from tiercel.queues.broker.link import Link
from tiercel.queues.broker.management import Policies, delay_ms, ends_too_early
from tiercel.queues.consuming.failures import FailureBook
from tiercel.queues.limits import HELD_LATER_S
from tiercel.queues.publishing.copies import Copies, CopyFate
from tiercel.queues.retry import BrokerLimit, GiveUp, RetryPolicy, failed_before, next_action

# Each single ack is an entry in the log of a quorum queue. A few are sent at once; most of many
# become part of a contiguous prefix some milliseconds later, which is one ack.
_FEW = 16
_PATIENCE_S = 0.1


class Ack(NamedTuple):
    """One ``basic.ack``."""

    tag: int
    # Covers every tag up to this one; all of them are finished, or were settled on the wire before.
    multiple: bool


class AckBook:
    """The delivery tags of one channel. Not thread-safe; used on the channel's I/O thread only.

    A tag is *opened* when its message arrives, then either *finished* (to be acked by the next
    ``take``) or *closed* (rejected or nacked on the wire by the caller, before the next ``take``).
    Settling a tag twice would make the broker close the channel, so the second call returns False.
    Only open tags are remembered, however long one of them stays open.
    """

    def __init__(self) -> None:
        self._last = 0
        # Every lower tag is settled, or acked by the next ``take``.
        self._low = 1
        self._open: set[int] = set()
        self._finished: list[int] = []
        # Tags that the broker considers unsettled: of its newest consumer, and of the previous one.
        self._newest: set[int] = set()
        self._before: set[int] = set()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def unsettled_before(self) -> int:
        """Number of messages of the consumer before the last ``mark`` that the broker considers
        unsettled.
        """
        return len(self._before)

    @property
    def unsettled(self) -> int:
        """The same number of the newest consumer. Any thread."""
        return len(self._newest)

    def mark(self) -> None:
        """Note that a new consumer subscribes at the broker."""
        self._before = self._newest
        self._newest = set()

    def is_of_newest(self, tag: int) -> bool:
        """Return True if this unsettled message was delivered to the newest consumer."""
        return tag in self._newest

    def open(self, tag: int, *, newest: bool = True) -> None:
        """Note a message that was delivered to the newest consumer, or the one before it.

        Tags rise; a skipped tag was never delivered and counts as settled.
        """
        self._last = tag
        self._open.add(tag)
        (self._newest if newest else self._before).add(tag)

    def finish(self, tag: int) -> bool:
        """Have a tag acked by the next ``take``; return False if it is not open."""
        if tag not in self._open:
            return False
        self._open.remove(tag)
        self._finished.append(tag)
        return True

    def close(self, tag: int) -> bool:
        """Note that a tag was settled on the wire otherwise; return False if it is not open."""
        if tag not in self._open:
            return False
        self._open.remove(tag)
        self._newest.discard(tag)
        self._before.discard(tag)
        return True

    @property
    def finished(self) -> int:
        """Number of messages waiting for ``take`` to ack them."""
        return len(self._finished)

    def take(self, *, singles: bool = True) -> list[Ack]:
        """Return the acks to send now, in order; each finished tag is covered exactly once.

        Without ``singles``, ack only the contiguous prefix; finished tags above it may become part
        of a later prefix.
        """
        if not self._finished:
            return []
        finished = self._finished
        low = self._low
        # ``low`` only rises, so each tag is checked once in the life of a channel.
        while low <= self._last and low not in self._open:
            low += 1
        self._low = low
        prefix = [tag for tag in finished if tag < low]
        above = [tag for tag in finished if tag >= low]
        self._finished = [] if singles else above
        single = [Ack(tag, multiple=False) for tag in above] if singles else []
        for tags in (self._newest, self._before):
            tags.difference_update(finished if singles else prefix)
        if not prefix:
            return single
        # The broker refuses a multiple ack whose own tag is settled already, so its highest tag
        # must be a finished one.
        return [Ack(max(prefix), multiple=len(prefix) > 1), *single]


class Acks:
    """Sends acks for the finished messages in ``book``: one for the prefix, and single acks."""

    def __init__(self, channel: Any, link: Link, sent: Callable[[], None]) -> None:
        """``sent`` is called when acks have been sent."""
        self.book = AckBook()
        self._channel = channel
        self._link = link
        self._sent = sent
        self._later: object | None = None

    def send(self, *, everything: bool = False) -> None:
        """Send the acks of finished messages; many that are not contiguous wait for a moment,
        unless ``everything``.
        """
        few = everything or self.book.finished <= _FEW
        self._take(singles=few)
        if not few and self.book.finished and self._later is None:
            self._later = self._link.later(_PATIENCE_S, self._now)

    def void(self) -> None:
        """Forget the timer: the channel is gone."""
        if self._later is not None:
            self._link.forget(self._later)
            self._later = None

    def _now(self) -> None:
        self._later = None
        if self._channel.is_open:
            self._take(singles=True)

    def _take(self, *, singles: bool) -> None:
        acks = self.book.take(singles=singles)
        for ack in acks:
            # Step 9 of docs/one-message.md.
            log.debug(
                "9. delivery tag %d%s is acked to RabbitMQ",
                ack.tag,
                " and all before it" * ack.multiple,
                extra={"event": "message_step"},
            )
            self._channel.basic_ack(ack.tag, multiple=ack.multiple)
        if acks:
            self._sent()


log = logging.getLogger(__name__)

# Longest wait of a message whose back-off is over for messages redelivered before it: they may be
# waiting for it in turn (``ordered_by``), or a bolt may hold them for very long.
_LONGEST_DUE_S = 10.0


class Delivery(NamedTuple):
    """One opened message."""

    epoch: int
    tag: int
    body: bytes
    # Number of earlier deliveries by the broker's count: 0 the first time, None if it does not
    # count.
    delivery_count: int | None
    # As pika's ``BasicProperties``.
    properties: Any
    # Time of delivery, in monotonic seconds.
    arrived_s: float = 0.0
    # As the broker gives them; text that is not UTF-8 is bytes.
    exchange: str | bytes = ""
    routing_key: str | bytes = ""
    redelivered: bool = False

    @property
    def size(self) -> int:
        """Bytes of the message: its body, its headers and its other properties."""
        return len(self.body) + getattr(self.properties, "size", 0)


class Verb(Enum):
    """Outcome of a message, as its reader decides."""

    ACK = auto()
    FAIL = auto()
    RELEASE = auto()
    DEAD_LETTER = auto()


class Later(NamedTuple):
    """A bolt's request to have a failed message again after a few seconds."""

    seconds: float
    reason: str
    blame: bool


# End of an open message: decided by its reader, or by the fate of its copy.
How = Verb | Later | CopyFate


@dataclass(frozen=True, kw_only=True)
class EpochSettings:
    """Settings that all channels of a consumer share."""

    queue: str
    # The beginning of the consumer tag.
    tag: str
    link: Link
    # Back-off for which a failed message is held before it is rejected.
    retry: RetryPolicy
    # A message that fails once more after this many failures is dead-lettered.
    delivery_limit: int
    broker_limit: BrokerLimit
    failures: FailureBook
    # Called when a message arrives and none was ready to hand out.
    wake: Callable[[], None]
    # Copies messages to other queues; ``copied`` is called for each, some time later.
    copies: Copies[Delivery]
    clock: Callable[[], float]
    # The policies that may spoil a delay queue.
    policies: Policies
    # Arguments of ``basic.consume``.
    consumer_arguments: Mapping[str, Any] = field(default_factory=dict)


class OpenMessages:
    """The unsettled messages of one channel. Runs on the I/O thread.

    A message is open until it is settled. While it is being copied to another queue it is busy, and
    while it is held for its back-off it waits: only the end of the copy or the back-off settles it.
    Only the delivery tag of a waiting message is kept, and it takes no room from others. Once the
    channel begins to close, all messages are held until ``void``.
    """

    def __init__(
        self,
        channel: Any,
        settings: EpochSettings,
        *,
        adjust: Callable[[], None],
        again: Callable[[], int],
    ) -> None:
        """``adjust`` is called when a held message has left; ``again`` returns the largest number
        of failed messages that may be open again at one time.
        """
        self.counts: Counter[str] = Counter()
        self.acks = Acks(channel, settings.link, self._stirred)
        self._book = self.acks.book
        self._channel = channel
        self._link = settings.link
        self._settings = settings
        self._limit = settings.broker_limit
        self._adjust = adjust
        self._most_again = again
        # Last time at which a message arrived, or was settled at the broker, which may send the
        # next.
        self.stirred_s = 0.0
        # Bytes of all messages.
        self.bytes_held = 0
        self.open: dict[int, Delivery] = {}
        self.busy: dict[int, Delivery] = {}
        # Messages waiting for their back-off, without bodies; their timers until it is over; and
        # then the time at which it was over, with the tag.
        self.waiting: dict[int, Delivery] = {}
        self._timers: dict[int, object] = {}
        self.due: deque[tuple[float, int]] = deque()
        # Number of waiting messages that were delivered to the broker's current consumer.
        self.waiting_here = 0
        # Number of open redelivered messages, and of messages just returned to be delivered again.
        self._again = 0
        self._returning = 0
        # Requests for the messages that are being copied to a delay queue.
        self._wishes: dict[int, Later] = {}

    def arrived(self, delivery: Delivery, size: int, *, newest: bool) -> None:
        """Note a message of ``size`` bytes that the broker delivered, over its newest consumer or
        the one before.
        """
        self._book.open(delivery.tag, newest=newest)
        self.counts["delivered"] += 1
        self.counts["redelivered"] += bool(delivery.redelivered)
        self.stirred_s = delivery.arrived_s
        self.bytes_held += size
        self.add(delivery)

    def add(self, delivery: Delivery) -> None:
        """Note an open message, for the first time or again."""
        self.open[delivery.tag] = delivery
        if delivery.redelivered:
            self._again += 1
            self._returning = max(0, self._returning - 1)

    def mark(self) -> None:
        """Note that a new consumer subscribes at the broker, whose prefetch counts from zero."""
        self._book.mark()
        self.waiting_here = 0

    def claim(self, tag: int) -> Delivery | None:
        """Take an open message out, to be settled by one of the calls below; return None if it is
        settled or busy.
        """
        delivery = self.open.pop(tag, None)
        if delivery is not None:
            self._again -= delivery.redelivered
        return delivery

    def finish_all(self, tags: Iterable[int]) -> int:
        """Ack open messages with the next ``flush``; return how many were open, 0 if the channel is
        closing.
        """
        if not self._channel.is_open:
            return 0
        found = [delivery for tag in tags if (delivery := self.open.pop(tag, None)) is not None]
        for delivery in found:
            self._book.finish(delivery.tag)
        if self._again:
            for delivery in found:
                self._again -= delivery.redelivered
                self._forget_failures(delivery)
        self.counts["acked_to_broker"] += len(found)
        self.bytes_held -= sum([delivery.size for delivery in found])
        return len(found)

    def fail(self, delivery: Delivery, reason: str) -> None:
        """Reject a failed message after its back-off, or move it to the dead-letter queue."""
        failures = self._failed(delivery)
        action = next_action(failures, self._settings.retry, self._settings.delivery_limit)
        if isinstance(action, GiveUp) or self._limit.is_last_failure(delivery.delivery_count):
            self._give_up(delivery, failures, reason)
        else:
            self._hold(delivery, action.after_s)

    def retry_later(self, delivery: Delivery, later: Later) -> None:
        """Have a failed message delivered again after a time: a copy of it waits in a delay queue.

        It is held here if a policy would delete that queue too early. Without blame this counts as
        no failure.
        """
        if later.blame:
            failures = self._failed(delivery)
            action = next_action(failures, self._settings.retry, self._settings.delivery_limit)
            if isinstance(action, GiveUp):
                self._give_up(delivery, failures, later.reason)
                return
            failures += 1
        else:
            here = self._settings.failures.so_far(
                delivery.body, delivery.properties, delivery.delivery_count
            )
            failures = here + failed_before(delivery.properties.headers)
        queue, milliseconds = self._settings.queue, delay_ms(later.seconds)
        if ends_too_early(self._settings.policies, queue, milliseconds) is not None:
            self._hold(delivery, min(later.seconds, HELD_LATER_S))
            return
        self.busy[delivery.tag] = delivery
        self._wishes[delivery.tag] = later
        self._settings.copies.delay(delivery, later.seconds, failures)

    def give_back(self, delivery: Delivery) -> None:
        """Return a message to the broker, without a counted failure if the broker allows that."""
        self._channel.basic_nack(delivery.tag, requeue=True)
        self._settled(delivery, "given_back")

    def give_back_all(self) -> None:
        """Give back all unsettled messages, including the waiting ones."""
        for delivery in (*self.open.values(), *self.busy.values()):
            self.give_back(delivery)
        self._clear()

    def dead_letter(self, delivery: Delivery, reason: str) -> None:
        """Dead-letter a message that can never be processed."""
        self.busy[delivery.tag] = delivery
        self._settings.copies.dead_letter(delivery, reason, moves=self._limit.moves)

    def dead_letter_last(self, delivery: Delivery) -> None:
        """Dead-letter a message that the broker would delete instead of delivering it again."""
        count = delivery.delivery_count
        self.dead_letter(
            delivery, f"came back {count} times: the next time its queue would delete it"
        )

    def copied(self, tag: int, fate: CopyFate) -> None:
        """Ack the original, once another queue has the copy.

        If the other queue did not take the copy, keep the original in its own queue, and try again
        after the requested time, or after the longest wait.
        """
        later = self._wishes.pop(tag, None)
        if (delivery := self.busy.pop(tag, None)) is None:
            return
        if fate in (CopyFate.REFUSED, CopyFate.NO_ROOM):
            self._keep(delivery, later, fate)
            return
        if fate is CopyFate.LEFT_TO_BROKER:
            self._channel.basic_reject(tag, requeue=False)
            self._forget_failures(delivery)
            self._settled(delivery, CopyFate.DEAD_LETTERED.value)
            return
        self._book.finish(tag)
        self.bytes_held -= delivery.size
        if fate is CopyFate.DELAYED:
            # The copy's header counts all failures, including those noted at the first delivery.
            self._settings.failures.forget(delivery.body, delivery.properties)
        else:
            self._forget_failures(delivery)
        self.counts[fate.value] += 1

    def _keep(self, delivery: Delivery, later: Later | None, fate: CopyFate) -> None:
        """Hold a message that the other queue did not take."""
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
        """Reject all messages held for their back-off now."""
        self._forget_timers()
        for tag in list(self.waiting):
            self._reject_held(tag)

    def let_return(self, *, anew: bool = False) -> None:
        """Reject messages whose back-off is over, so that they are delivered again: as many as
        there is room for, since the broker delivers them before all others.

        ``anew``: messages returned earlier that have not been redelivered here went to another
        worker.
        """
        if anew:
            self._returning = 0
        late_s = self._settings.clock() - _LONGEST_DUE_S
        while self.due and self._channel.is_open:
            has_room = self._again + self._returning < self._most_again()
            if not has_room and self.due[0][0] > late_s:
                break
            self._returning += 1
            self._reject_held(self.due.popleft()[1])

    def void(self) -> None:
        """Forget all messages: the channel is gone."""
        self._forget_timers()
        self.acks.void()
        self._clear()

    def _clear(self) -> None:
        self.open.clear()
        self.busy.clear()
        self._wishes.clear()
        self.waiting.clear()
        self.due.clear()
        self._again = self._returning = self.waiting_here = self.bytes_held = 0

    def _forget_timers(self) -> None:
        for handle in self._timers.values():
            self._link.forget(handle)
        self._timers.clear()

    def _failed(self, delivery: Delivery) -> int:
        """Note a failure; return how often the message had failed before, including failures before
        it was in a delay queue.
        """
        # Each channel of this worker may have ended while the message was open, and so may an
        # earlier worker.
        here = self._settings.failures.failed(
            delivery.body, delivery.properties, delivery.delivery_count, returns=delivery.epoch
        )
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
        # At its first delivery, a message is in the book only if it was in a delay queue, or if its
        # first failure was its last. Else an entry is of an equal message.
        if (
            delivery.delivery_count != 0
            or failed_before(delivery.properties.headers)
            or self._limit.is_last_failure(0)
        ):
            self._settings.failures.forget(delivery.body, delivery.properties)

    def _hold(self, delivery: Delivery, wait_s: float) -> None:
        """Reject a message after its back-off."""
        if wait_s <= 0:
            self._reject(delivery)
            return
        tag, kept = delivery.tag, delivery
        if not self._limit.is_last_delivery(delivery.delivery_count):
            kept = delivery._replace(body=b"", properties=None)
        self.waiting[tag] = kept
        self.bytes_held -= delivery.size - kept.size
        self.waiting_here += self._book.is_of_newest(tag)
        self._timers[tag] = self._link.later(wait_s, lambda: self._back_off_over(tag))

    def _back_off_over(self, tag: int) -> None:
        del self._timers[tag]
        self.due.append((self._settings.clock(), tag))
        self.let_return()

    def _reject_held(self, tag: int) -> None:
        if not self._channel.is_open:
            return  # it stays waiting, so that void settles it
        if (delivery := self.waiting.pop(tag, None)) is None:
            return
        self.waiting_here -= self._book.is_of_newest(tag)
        self._reject(delivery)
        self._adjust()

    def _reject(self, delivery: Delivery) -> None:
        if self._limit.is_last_delivery(delivery.delivery_count):
            self.dead_letter_last(delivery)
            return
        # Not nack: from RabbitMQ 4.3 on only a reject raises the delivery count, which determines
        # the broker's delay of retries.
        self._channel.basic_reject(delivery.tag, requeue=True)
        self._settled(delivery, "requeued")

    def _settled(self, delivery: Delivery, counter: str) -> None:
        self._stirred()
        self._book.close(delivery.tag)
        self.bytes_held -= delivery.size
        self.counts[counter] += 1

    def _stirred(self) -> None:
        self.stirred_s = self._settings.clock()
