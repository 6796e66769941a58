"""One channel from its opening to its end: its consumer at the broker, the prefetch, and the
messages that were delivered and not yet handed out.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from heapq import heappop, heappush
from typing import Any

from tiercel.queues.consuming.messages import Delivery, EpochSettings, OpenMessages
from tiercel.queues.errors import BrokerUnavailableError
from tiercel.queues.limits import (
    BACK_OFFS_HELD,
    BYTES_HELD,
    MAX_BODY_BYTES,
    PREFETCH,
    UNEMITTED_S,
)
from tiercel.queues.retry import delivered_before

log = logging.getLogger(__name__)

# A broker that has a message and may send it sends it within milliseconds.
_QUIET_S = 0.25
_WITHHOLD_S = 0.05
# RabbitMQ passes 32 acks on to a quorum queue, and the others when the queue has taken these. What
# it has not passed on when the channel closes is lost, and the messages are delivered again.
_ACKS_PASS_S = 0.1
# Decay of the memory of a large message, per message.
_FADE = 15 / 16
# Messages held per tuple that may be in flight: its own, and the one to follow it.
_PER_TUPLE = 2
# Divisor of the prefetch: this part of it is for failed messages that are delivered again.
_AGAIN_PART = 4
# Room for messages that may fail next, per failed message waiting for its back-off.
_PER_WAITING = 2


class Released:
    """A line of released messages, the first delivered in front. Thread-safe.

    A run that ends releases its messages in any order. Handed out so, an old one would come after a
    new one, and be late in its window.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # A heap: by channel and delivery tag.
        self._heap: list[Delivery] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __getitem__(self, first: int) -> Delivery:
        return self._heap[first]

    def append(self, delivery: Delivery) -> None:
        with self._lock:
            heappush(self._heap, delivery)

    def popleft(self) -> Delivery:
        with self._lock:
            return heappop(self._heap)

    def clear(self) -> None:
        with self._lock:
            self._heap.clear()


Line = deque[Delivery] | Released


class HandOut:
    """Lines of messages not yet handed out: redelivered messages, in turn with messages released
    here; behind both the new messages, with a line per priority, the highest in front.

    A message may wait for any earlier message (``ordered_by``), and is redelivered after a long
    wait, so no line blocks a message of another line forever.

    A queue with priorities delivers an urgent message as soon as it may deliver any; here it
    overtakes new messages that arrived earlier. These wait no longer than they would in the queue:
    the more of them are held, the fewer urgent ones can arrive.

    One thread puts messages in and may remove them again; another one takes them. The ends of a
    deque are thread-safe, but checking its length first is not.
    """

    def __init__(self) -> None:
        self._came_back: deque[Delivery] = deque()
        self._released = Released()
        self._fresh: deque[Delivery] = deque()
        # By priority; messages without one are in ``_fresh``.
        self._urgent: dict[int, deque[Delivery]] = {}
        # Lines of new messages, in order; replaced and never changed, since both threads read it.
        self._new: tuple[deque[Delivery], ...] = (self._fresh,)
        self._released_next = False

    def add(self, delivery: Delivery) -> bool:
        """Put a message at the end of its line; return True if the line was empty."""
        line = self._came_back if delivery.delivery_count else self._line_of(delivery)
        line.append(delivery)
        return len(line) == 1

    def add_again(self, delivery: Delivery) -> None:
        """Put a released message before the new ones."""
        self._released.append(delivery)

    def take(self, limit: int) -> list[Delivery]:
        """Take the next messages, at most ``limit``."""
        found: list[Delivery] = []
        first: tuple[Line, Line] = (self._came_back, self._released)
        while len(found) < limit and (first[0] or first[1]):
            line = first[self._released_next] or first[not self._released_next]
            self._released_next = not self._released_next
            with suppress(IndexError):  # taken out meanwhile
                found.append(line.popleft())
        for line in self._new:
            with suppress(IndexError):
                while len(found) < limit:
                    found.append(line.popleft())
        return found

    def first_while(self, which: Callable[[Delivery], bool]) -> Iterator[Delivery]:
        """Take messages from the head of each line while ``which`` returns True for them."""
        for line in self._lines:
            try:
                while which(line[0]):
                    yield line.popleft()  # or the next one: the first may have been taken meanwhile
            except IndexError:
                continue

    def clear(self) -> None:
        for line in self._lines:
            line.clear()

    @property
    def _lines(self) -> tuple[Line, ...]:
        return (self._came_back, self._released, *self._new)

    def _line_of(self, delivery: Delivery) -> deque[Delivery]:
        """Return the line of a new message."""
        priority = delivery.properties.priority
        if not priority:
            return self._fresh
        line = self._urgent.get(priority)
        if line is None:
            line = self._urgent[priority] = deque()
            urgent = [self._urgent[each] for each in sorted(self._urgent, reverse=True)]
            self._new = (*urgent, self._fresh)
        return line


class Intake:
    """Decides the prefetch of the one consumer of a channel, and outlives the channel. Not
    thread-safe.

    It is small at first, because the messages in the queue may be large, and grows when they turn
    out to be small. It is 1 while too many bytes or more messages than expected are held: then only
    one more is requested, and the queue keeps its consumer. It is 0 (no consumer) only if nothing
    is expected. Messages held when it shrinks stay held.

    Messages waiting for their back-off are unacked at the broker, and use up the prefetch of their
    consumer. They are counted separately, and the prefetch is larger by their number, so a message
    that always fails holds up no other.
    """

    def __init__(self, prefetch: int = PREFETCH, bytes_held: int = BYTES_HELD) -> None:
        self._most = prefetch
        # The largest prefetch now.
        self._limit = prefetch
        self._bound = bytes_held
        # Size at which ``prefetch`` messages can be held.
        self._small = bytes_held / prefetch
        # The size to plan for: the largest of the last messages.
        self._size = float(MAX_BODY_BYTES)
        self._seen = False

    @property
    def again(self) -> int:
        """Bound on failed messages being delivered again at one time: the rest of the room is for
        others.
        """
        return max(1, self._limit // _AGAIN_PART)

    def expect(self, tuples: int) -> None:
        """Set the number of tuples that may be in flight; a small multiple of that many messages is
        held.

        0: take nothing.
        """
        self._limit = min(self._most, _PER_TUPLE * tuples)

    def saw(self, size: int) -> None:
        """Note the size of a message that arrived."""
        if self._seen and self._size <= self._small >= size:
            return  # all messages are small, so the prefetch is at its limit
        self._size = max(size, self._size * _FADE) if self._seen else float(size)
        self._seen = True

    def wanted(self, current: int, messages: OpenMessages) -> int:
        """Return the wanted prefetch, given the current one (0: no consumer), and the messages of
        the channel.

        A change costs a round trip, so the prefetch grows only if that doubles the room left by
        waiting messages, and shrinks only if that halves it. For a new consumer RabbitMQ counts
        from zero, no matter how many messages are still held, so it gets 1 until its prefetch fits.
        """
        limit = self._limit
        if limit == 0:
            return 0
        most_waiting = max(limit, BACK_OFFS_HELD)
        held, waiting = messages.bytes_held, len(messages.waiting)
        if current == limit and not waiting and held <= self._bound:
            return current  # the usual case, asked for each message
        if held > self._bound or waiting >= most_waiting:
            return 1
        first = max(1, self._bound // MAX_BODY_BYTES)
        affordable = min(limit, max(first, int(self._bound / max(self._size, 1.0))))
        spare = min(_PER_WAITING * waiting, most_waiting - waiting)
        count = len(messages.open) + len(messages.busy)
        fits = held <= self._bound // 2 and count <= limit
        if current <= 1 or 2 * (limit + spare) <= current:
            return affordable + spare if fits else 1
        grows = affordable >= 2 * (current - messages.waiting_here)
        return affordable + spare if fits and grows else current


class Epoch:
    """One channel. Runs on the I/O thread.

    Nothing can be sent on a closing channel: messages still open then stay open until ``void``.
    """

    def __init__(
        self, number: int, channel: Any, settings: EpochSettings, intake: Intake, hand_out: HandOut
    ) -> None:
        """All channels of a consumer share ``intake`` and ``hand_out``."""
        self.number = number
        self._channel = channel
        self._link = settings.link
        self._intake = intake
        self._hand_out = hand_out
        self._settings = settings
        self._limit = settings.broker_limit
        self.messages = OpenMessages(
            channel, settings, adjust=self.adjust, again=lambda: intake.again
        )
        self.counts = self.messages.counts
        self._book = self.messages.acks.book
        self._taking = False
        self._at_end: Callable[[], None] | None = None
        self.broker_consumer = BrokerConsumer(
            channel, number, settings, on_message=self._on_message, on_change=self.adjust
        )
        channel.add_on_cancel_callback(self._cancelled_by_broker)

    @property
    def is_open(self) -> bool:
        """True while messages can be settled."""
        return bool(self._channel.is_open)

    @property
    def is_full(self) -> bool:
        """True if the broker sends nothing before a message is settled. Any thread."""
        return 0 < self.broker_consumer.prefetch <= self._book.unsettled

    # -- taking messages ---------------------------------------------------------------------------

    def adjust(self, *, at_once: bool = False) -> None:
        """Start, cancel or replace the broker's consumer.

        To replace it, a new consumer subscribes first; the old one is cancelled when no message is
        on its way to it, or ``at_once``.
        """
        broker_consumer = self.broker_consumer
        if broker_consumer.ending or not self.is_open:
            return
        prefetch = broker_consumer.prefetch
        wanted = self._intake.wanted(prefetch, self.messages) if self._taking else 0
        if wanted and broker_consumer.changing:
            unsettled, stirred_s = self._book.unsettled_before, self.messages.stirred_s
            if at_once or broker_consumer.is_clear(unsettled, stirred_s):
                broker_consumer.retire()
                self.messages.acks.send(everything=True)
        elif wanted == prefetch:
            if self._at_end is not None and not wanted:
                self._end_now(self._at_end)
        elif wanted:
            self.messages.mark()
            broker_consumer.begin(wanted)
        else:
            broker_consumer.end()
            self.messages.acks.send(everything=True)

    def set_taking(self, *, taking: bool) -> None:
        """Take as many messages as the intake wants; or take none, and give back all messages not
        yet handed out.
        """
        self._taking = taking
        # Cancel first: a message given back to a live consumer is delivered again at once, only to
        # be given back once more.
        self.adjust()
        if not taking:
            self._give_back_all(self._hand_out.first_while(lambda _: True))

    def check(self) -> None:
        """Subscribe again if the broker's consumer is gone without notice; give back messages that
        have waited here for too long, and reject those whose back-off is over. Call it regularly.
        """
        if self.broker_consumer.lost or not self.is_open:
            self._link.restart(
                BrokerUnavailableError(f"the consumer of queue {self._settings.queue!r} is gone")
            )
            return
        # They might reach the consumer timeout before they are processed; a redelivery restarts it.
        old = list(self._hand_out.first_while(self._is_old))
        self._give_back_all(old)
        # With too large a prefetch they would be redelivered here at once.
        self.adjust(at_once=bool(old))
        self.messages.let_return(anew=True)
        self.flush()

    def end(self, then: Callable[[], None]) -> None:
        """Cancel, settle finished messages, give back all others, then call ``then``."""
        self._at_end = then
        if self.is_open:
            self.set_taking(taking=False)
        else:
            then()

    def void(self) -> None:
        """Forget everything: the channel is gone, and the broker requeues its open messages."""
        self.messages.void()
        self._hand_out.clear()

    def _give_back_all(self, deliveries: Iterable[Delivery]) -> None:
        if self.is_open:
            for delivery in deliveries:
                if self.messages.claim(delivery.tag) is not None:
                    self.messages.give_back(delivery)

    def _is_old(self, delivery: Delivery) -> bool:
        return (
            self._limit.returns_are_free
            and self._settings.clock() - delivery.arrived_s > UNEMITTED_S
        )

    def _cancelled_by_broker(self, _frame: Any) -> None:
        why = "deleted, moved, or not acknowledged in time"
        self._link.restart(
            BrokerUnavailableError(
                f"RabbitMQ cancelled the consumer of {self._settings.queue!r} ({why})"
            )
        )

    def _on_message(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        if not self.is_open:
            return  # the next channel delivers it again
        again = method.redelivered
        before: int | None = 0
        if again:
            counts = self._limit.counts
            before = delivered_before(properties.headers, redelivered=True, counts=counts)
        delivery = Delivery(
            self.number,
            method.delivery_tag,
            body,
            before,
            properties,
            self._settings.clock(),
            method.exchange,
            method.routing_key,
            again,
        )
        newest = method.consumer_tag == self.broker_consumer.consumer_tag
        size = delivery.size
        self.messages.arrived(delivery, size, newest=newest)
        self._intake.saw(size)
        if self._is_refused(delivery):
            self.adjust()
            return
        # Step 1 of docs/one-message.md.
        if log.isEnabledFor(logging.DEBUG):
            log.debug(
                "1. message %d of channel %d came from queue %r",
                delivery.tag,
                self.number,
                self._settings.queue,
                extra={"event": "message_step"},
            )
        was_empty = self._hand_out.add(delivery)
        self.adjust()
        if was_empty:
            self._settings.wake()

    def _is_refused(self, delivery: Delivery) -> bool:
        """Settle a message that must not be handed out; return False for all others."""
        size = len(delivery.body)
        is_last = self._limit.deletes and self._limit.is_last_delivery(delivery.delivery_count)
        if self._taking and not is_last and size <= MAX_BODY_BYTES:
            return False
        self.messages.claim(delivery.tag)
        if is_last:
            self.counts["rejected"] += 1
            self.messages.dead_letter_last(delivery)
        elif not self._taking:
            self.messages.give_back(delivery)
        else:
            self.counts["rejected"] += 1
            reason = f"the body of {size} bytes is above the limit of {MAX_BODY_BYTES}"
            log.warning(
                "a message of queue %s goes to the dead letters: %s",
                self._settings.queue,
                reason,
                extra={"event": "body_refused", "queue": self._settings.queue},
            )
            self.messages.dead_letter(delivery, reason)
        return True

    # -- settling them -----------------------------------------------------------------------------

    def release(self, delivery: Delivery) -> None:
        """Hand a message out once more without involving the broker; this counts as no failure.

        An old message is given back instead, since it might reach the consumer timeout while it is
        processed. So is a message that was redelivered.
        """
        goes_back = bool(delivery.delivery_count) and self._limit.returns_are_free
        if self._taking and not goes_back and not self._is_old(delivery):
            self.messages.add(delivery)
            self._hand_out.add_again(delivery)
            self._settings.wake()
        else:
            self.messages.give_back(delivery)

    def flush(self) -> None:
        """Send the acks that are due, unless they are withheld for a change of the prefetch; then a
        later call sends them.
        """
        if self.is_open:
            if self.messages.due:
                self.messages.let_return()
            self.adjust()
            if not self.broker_consumer.withholds_acks():
                self.messages.acks.send()

    def _end_now(self, then: Callable[[], None]) -> None:
        """Settle everything, then call ``then``; the broker no longer sends messages."""
        self._at_end = None
        self.messages.end_back_offs()
        self.flush()
        self.messages.acks.send(everything=True)
        self.messages.give_back_all()
        self._link.later(_ACKS_PASS_S, then)


class BrokerConsumer:
    """The consumer of a channel at the broker, if there is one. Runs on the I/O thread.

    In a quorum queue only a new consumer can have a new prefetch. So the new one subscribes before
    the old one is cancelled: the queue always has a consumer, and is not taken for unused
    (auto-delete, ``expires``). Meanwhile both receive messages, each up to its own prefetch.
    Messages of a cancelled consumer stay open on the channel. Messages still on their way to it are
    taken back by the quorum queue, which counts that as a return. So the cancel waits until none is
    on its way (``is_clear``). If the prefetch grows, and the broker has sent half of the old one,
    acks are withheld for a moment, so that it soon has sent all of it. With few messages,
    withholding would only delay acks: the cancel happens when the prefetch is reached.
    """

    def __init__(
        self,
        channel: Any,
        number: int,
        settings: EpochSettings,
        *,
        on_message: Callable[[Any, Any, Any, bytes], None],
        on_change: Callable[[], None],
    ) -> None:
        """``on_change`` is called when the broker has answered; after ``end`` no messages arrive
        from then on.
        """
        self._channel = channel
        self._settings = settings
        self._tag = f"{settings.tag}.{number}"
        self._on_message = on_message
        self._on_change = on_change
        self._begun = 0
        self.consumer_tag: str | None = None
        # The consumer to cancel when no message is on its way to it, and its prefetch.
        self._before: str | None = None
        self._before_prefetch = 0
        self._cancelling: set[str] = set()
        # Time at which its successor subscribed.
        self._change_since: float | None = None
        self._is_busy = False
        # The newest consumer's prefetch; 0: there is no consumer.
        self.prefetch = 0
        # True while messages may still arrive and no new consumer can subscribe.
        self.ending = False

    @property
    def changing(self) -> bool:
        """True while there is an older consumer besides the newest."""
        return self._before is not None or bool(self._cancelling)

    @property
    def lost(self) -> bool:
        """True if a consumer is gone without notice."""
        tags = {self.consumer_tag, self._before} - {None}
        return not tags.issubset(self._channel.consumer_tags)

    def is_clear(self, unsettled: int, stirred_s: float) -> bool:
        """Return True if no message is on its way to the consumer before the newest.

        ``unsettled`` is the number of that consumer's messages which the broker considers
        unsettled. It is clear if the broker may send no more, or could have sent more for a while
        (since ``stirred_s``) and has not, so the queue is empty.
        """
        if self._before is None or self._change_since is None:
            return False
        self._is_busy = 2 * unsettled >= self._before_prefetch
        quiet_s = self._settings.clock() - max(stirred_s, self._change_since)
        return unsettled >= self._before_prefetch or quiet_s >= _QUIET_S

    def withholds_acks(self) -> bool:
        """Return True while acks are withheld, since each lets the broker send another message.

        This happens once per change, and briefly.
        """
        if self._change_since is None or not self._is_busy:
            return False
        grows = self.prefetch > self._before_prefetch
        return grows and self._settings.clock() - self._change_since < _WITHHOLD_S

    def begin(self, prefetch: int) -> None:
        """Subscribe, in addition to the present consumer if there is one."""
        self._before, self._before_prefetch = self.consumer_tag, self.prefetch
        self.prefetch = prefetch
        self._begun += 1
        self.consumer_tag = f"{self._tag}.{self._begun}"
        self._channel.basic_qos(prefetch_count=prefetch)
        self._channel.basic_consume(
            self._settings.queue,
            self._on_message,
            consumer_tag=self.consumer_tag,
            arguments=dict(self._settings.consumer_arguments),
            callback=lambda _frame: self._subscribed(),
        )

    def retire(self) -> None:
        """Cancel the consumer before the newest."""
        self._cancel(self._before)
        self._before = self._change_since = None
        self._is_busy = False

    def end(self) -> None:
        """Cancel all consumers."""
        self.ending = True
        self.retire()
        self._cancel(self.consumer_tag)
        self.consumer_tag = None

    def _subscribed(self) -> None:
        if self._before is not None:
            self._change_since = self._settings.clock()
            self._on_change()

    def _cancel(self, tag: str | None) -> None:
        if tag is None:
            return
        self._cancelling.add(tag)
        # pika calls this for the cancel-ok of any consumer.
        self._channel.basic_cancel(tag, callback=self._cancelled)
        # By default pika rejects, with requeue, messages that arrive before the cancel-ok, which
        # counts as a failed delivery of messages that no bolt has seen. This way on_message gets
        # them.
        self._channel._cancelled.discard(tag)  # noqa: SLF001

    def _cancelled(self, frame: Any) -> None:
        self._cancelling.discard(frame.method.consumer_tag)
        if self._cancelling:
            return
        if self.ending:
            self.ending = False
            self.prefetch = 0
        self._on_change()
