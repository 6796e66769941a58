"""One channel from its opening to its end: its consumer at the broker, and its deliveries.

It subscribes, cancels, and replaces the consumer when the prefetch changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from tiercel.queues.consuming.intake import Delivery, HandOut
from tiercel.queues.consuming.messages import EpochSettings, OpenMessages
from tiercel.queues.errors import BrokerUnavailableError
from tiercel.queues.limits import MAX_BODY_BYTES, UNEMITTED_S
from tiercel.queues.retry import delivered_before

log = logging.getLogger(__name__)

# A broker that has a message and may send it sends it within milliseconds.
_QUIET_S = 0.25
_WITHHOLD_S = 0.05
# Number of releases after which a message returns to the broker: a restart of the driver causes
# one.
RELEASES = 2


class Epoch:
    """One channel. Runs on the I/O thread, except ``hand_out.take``.

    Nothing can be sent on a closing channel: messages still open then stay open until ``void``.
    """

    def __init__(self, number: int, channel: Any, settings: EpochSettings) -> None:
        self.number = number
        self._channel = channel
        self._link = settings.link
        self._intake = settings.intake
        self._settings = settings
        self._limit = settings.broker_limit
        self.messages = OpenMessages(
            channel,
            settings,
            stirred=lambda: self.broker_consumer.stirred(settings.clock()),
            adjust=self.adjust,
        )
        self.counts = self.messages.counts
        self._book = self.messages.acks.book
        self.hand_out = HandOut()
        self._taking = False
        self._at_end: Callable[[], None] | None = None
        self.broker_consumer = BrokerConsumer(
            channel,
            settings.queue,
            f"{settings.tag}.{number}",
            on_message=self._on_message,
            on_change=self.adjust,
            arguments=settings.consumer_arguments,
        )
        channel.add_on_cancel_callback(self._cancelled_by_broker)

    @property
    def is_open(self) -> bool:
        """True while messages can be settled."""
        return bool(self._channel.is_open)

    # -- taking messages ---------------------------------------------------------------------------

    def adjust(self, *, at_once: bool = False) -> None:
        """Start, cancel or replace the broker's consumer.

        To replace it, a new consumer subscribes first; the old one is cancelled when no message is
        on its way to it, or ``at_once``.
        """
        broker_consumer = self.broker_consumer
        if broker_consumer.ending or not self.is_open:
            return
        is_changing = broker_consumer.changing
        waiting = self.messages.waiting_here
        wanted = self._intake.wanted(broker_consumer.prefetch, waiting) if self._taking else 0
        now = self._settings.clock()
        if is_changing and wanted:
            if at_once or broker_consumer.is_clear(self._book.unsettled_before, now):
                broker_consumer.retire()
                self.messages.acks.send(everything=True)
        elif wanted == broker_consumer.prefetch:
            if self._at_end is not None and not wanted:
                self._end_now(self._at_end)
        elif wanted:
            self.messages.mark()
            broker_consumer.begin(wanted, now)
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
            self._give_back_all(self.hand_out.first_while(lambda _: True))

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
        old = list(self.hand_out.first_while(self._is_old))
        self._give_back_all(old)
        # With too large a prefetch they would be redelivered here at once.
        self.adjust(at_once=bool(old))
        self.messages.let_return(anew=True)
        self.flush()

    def end(self, then: Callable[[], None]) -> None:
        """Cancel, settle what is finished, give back everything else, then call ``then``."""
        self._at_end = then
        if self.is_open:
            self.set_taking(taking=False)
        else:
            then()

    def void(self) -> None:
        """Forget everything: the channel is gone, and the broker requeues its open messages."""
        self.messages.void()
        self.hand_out.clear()

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
        now = self._settings.clock()
        self.broker_consumer.stirred(now)
        again = method.redelivered
        delivery = Delivery(
            self.number,
            method.delivery_tag,
            body,
            delivered_before(properties.headers, redelivered=True) if again else 0,
            properties,
            now,
            method.exchange,
            method.routing_key,
            again,
        )
        newest = method.consumer_tag == self.broker_consumer.consumer_tag
        self.messages.arrived(delivery, newest=newest)
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
        was_empty = self.hand_out.add(delivery)
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
            self.messages.dead_letter(
                delivery, f"the body of {size} bytes is above the limit of {MAX_BODY_BYTES}"
            )
        return True

    # -- settling them -----------------------------------------------------------------------------

    def release(self, delivery: Delivery) -> None:
        """Hand a message out once more without involving the broker; this counts as no failure.

        An old message is given back instead, since it might reach the consumer timeout while it is
        processed. So is a message that was redelivered, or is released again and again: messages
        waiting for another one (``ordered_by``) that the broker has not delivered yet must not fill
        the prefetch.
        """
        often = bool(delivery.delivery_count) or delivery.releases >= RELEASES
        goes_back = often and self._limit.returns_are_free
        if self._taking and not goes_back and not self._is_old(delivery):
            again = delivery._replace(releases=delivery.releases + 1)
            self.messages.add(again)
            self.hand_out.add_again(again)
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
            if not self.broker_consumer.withholds_acks(self._settings.clock()):
                self.messages.acks.send()

    def _end_now(self, then: Callable[[], None]) -> None:
        """Settle everything, then close the channel; the broker no longer sends messages."""
        self._at_end = None
        self.messages.end_back_offs()
        self.flush()
        self.messages.acks.send(everything=True)
        self.messages.give_back_all()
        then()


class BrokerConsumer:
    """The consumer of a channel at the broker, if there is one.

    Runs on the I/O thread; times are monotonic seconds.

    In a quorum queue only a new consumer can have a new prefetch. So the new one subscribes before
    the old one is cancelled: the queue always has a consumer, and is not taken for unused
    (auto-delete, ``expires``). Meanwhile both receive messages, each up to its own prefetch.
    Messages of a cancelled consumer stay open on the channel. Messages still on their way to it are
    taken back by the quorum queue, which counts that as a return. So the cancel waits until none is
    on its way (``is_clear``). If the prefetch grows, and the broker has sent half of the old one,
    acks are withheld for a moment, so that it soon has sent all of it. With few messages,
    withholding would only delay acks: the cancel happens when the prefetch is reached.
    """

    def __init__(  # noqa: PLR0913 - one consumer's settings and callbacks
        self,
        channel: Any,
        queue: str,
        tag: str,
        *,
        on_message: Callable[[Any, Any, Any, bytes], None],
        on_change: Callable[[], None],
        arguments: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Consumer tags begin with ``tag``; ``arguments`` go to ``basic.consume``.

        ``on_change`` is called when the broker has answered; after ``end`` no messages arrive from
        then on.
        """
        self._channel = channel
        self._queue = queue
        self._tag = tag
        self._on_message = on_message
        self._on_change = on_change
        self._arguments = arguments
        self._begun = 0
        self.consumer_tag: str | None = None
        # The consumer to cancel when no message is on its way to it, and its prefetch.
        self._before: str | None = None
        self._before_prefetch = 0
        self._cancelling: set[str] = set()
        self._stirred_s = 0.0
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

    def stirred(self, now: float) -> None:
        """Note that a message arrived, or that one was settled at the broker, which may send the
        next.
        """
        self._stirred_s = now

    def is_clear(self, unsettled: int, now: float) -> bool:
        """Return True if no message is on its way to the consumer before the newest.

        ``unsettled`` is the number of that consumer's messages which the broker considers
        unsettled. It is clear if the broker may send no more, or could have sent more for a while
        and has not, so the queue is empty.
        """
        if self._before is None or self._change_since is None:
            return False
        self._is_busy = 2 * unsettled >= self._before_prefetch
        return unsettled >= self._before_prefetch or now - self._stirred_s >= _QUIET_S

    def withholds_acks(self, now: float) -> bool:
        """Return True while acks are withheld, since each lets the broker send another message.

        This happens once per change, and briefly.
        """
        since = self._change_since
        grows = self.prefetch > self._before_prefetch
        return grows and self._is_busy and since is not None and now - since < _WITHHOLD_S

    def begin(self, prefetch: int, now: float) -> None:
        """Subscribe, in addition to the present consumer if there is one."""
        self._before, self._before_prefetch = self.consumer_tag, self.prefetch
        self.prefetch = prefetch
        self._stirred_s = now
        self._begun += 1
        self.consumer_tag = f"{self._tag}.{self._begun}"
        self._channel.basic_qos(prefetch_count=prefetch)
        self._channel.basic_consume(
            self._queue,
            self._on_message,
            consumer_tag=self.consumer_tag,
            arguments=dict(self._arguments),
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
            self._change_since = self._stirred_s
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
