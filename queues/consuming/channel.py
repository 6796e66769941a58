"""One channel from its opening to its end: its subscription, and what came on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tiercel.queues.consuming.broker_consumer import BrokerConsumer
from tiercel.queues.consuming.channel_settings import EpochSettings
from tiercel.queues.consuming.hand_out import Delivery, HandOut
from tiercel.queues.consuming.open_messages import OpenMessages
from tiercel.queues.errors import BrokerUnavailableError
from tiercel.queues.limits import MAX_BODY_BYTES, UNEMITTED_S
from tiercel.queues.retry import delivered_before

# Releases after which a message comes again by the broker: a driver that is restarted releases it
# once.
RELEASES = 2


class Epoch:
    """Everything of one channel. All of it runs on the I/O thread, except ``take``.

    Once the channel begins to close nothing can be said on it any more; the messages that are open
    then stay so until ``void``.
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
        self._hand_out = HandOut()
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
        """Messages can be settled."""
        return bool(self._channel.is_open)

    # -- taking messages ---------------------------------------------------------------------------

    def take(self, limit: int) -> list[Delivery]:
        """The next messages, ``limit`` at most. On any thread."""
        return self._hand_out.take(limit)

    def adjust(self, *, at_once: bool = False) -> None:
        """Begin, end or change the broker's consumer.

        For a change the next one begins, and the one before it ends when nothing is on its way to
        it, or ``at_once``.
        """
        broker_consumer = self.broker_consumer
        if broker_consumer.ending or not self.is_open:
            return
        waiting = self.messages.waiting_here
        wanted = self._intake.wanted(broker_consumer.prefetch, waiting) if self._taking else 0
        now = self._settings.clock()
        if broker_consumer.changing and wanted:
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
        """Take messages, as many as the intake wants.

        Or take none, and give back what was not handed out.
        """
        self._taking = taking
        # First: what is given back to a consumer that is still there comes again at once, to be
        # given back once more.
        self.adjust()
        if not taking:
            self._give_back_all(self._hand_out.first_while(lambda _: True))

    def check(self) -> None:
        """Begin anew if the broker's consumer is gone without notice, and look after what waits.

        Call it now and then.
        """
        if self.broker_consumer.lost or not self.is_open:
            self._link.restart(
                BrokerUnavailableError(f"the consumer of queue {self._settings.queue!r} is gone")
            )
            return
        # They would be too old for the consumer timeout before they are processed; the next
        # delivery is a young one.
        old = list(self._hand_out.first_while(self._is_old))
        self._give_back_all(old)
        # With too large a prefetch they would come straight back.
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
        """The channel is gone, the broker requeues what was open on it."""
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
            return  # it comes again on the next channel
        tag = method.delivery_tag
        now = self._settings.clock()
        self.broker_consumer.stirred(now)
        again = method.redelivered
        count = delivered_before(properties.headers, redelivered=again)
        delivery = Delivery(
            self.number,
            tag,
            body,
            count,
            properties,
            now,
            method.exchange,
            method.routing_key,
            again,
        )
        self._book.open(tag, newest=method.consumer_tag == self.broker_consumer.consumer_tag)
        self._intake.arrived(delivery.size)
        self.counts["delivered"] += 1
        self.counts["redelivered"] += bool(again)
        if self._limit.deletes and self._limit.is_last_delivery(count):
            self.counts["rejected"] += 1
            self.messages.dead_letter_last(delivery)
        elif not self._taking:
            self.messages.give_back(delivery)
        elif len(body) > MAX_BODY_BYTES:
            self.counts["rejected"] += 1
            self.messages.dead_letter(
                delivery, f"the body of {len(body)} bytes is above the limit of {MAX_BODY_BYTES}"
            )
        else:
            self.messages.add(delivery)
            if self._hand_out.add(delivery):
                self._settings.wake()
        self.adjust()

    # -- settling them -----------------------------------------------------------------------------

    def release(self, delivery: Delivery) -> None:
        """Hand it out once more, from here, without blame. It costs the message nothing.

        One that is old is given back instead: it shall not be too old for the consumer timeout
        when it is done. So is one that the broker delivers not for the first time, and one that is
        released again and again: what waits for another message (``ordered_by``), which the broker
        may not have delivered yet, must not fill the prefetch.
        """
        often = bool(delivery.delivery_count) or delivery.releases >= RELEASES
        goes_back = often and self._limit.returns_are_free
        if self._taking and not goes_back and not self._is_old(delivery):
            again = delivery._replace(releases=delivery.releases + 1)
            self.messages.add(again)
            self._hand_out.add_again(again)
            self._settings.wake()
        else:
            self.messages.give_back(delivery)

    def flush(self) -> None:
        """Send the acks that are due, unless they wait for a change of the prefetch: then a later
        call sends them.
        """
        if self.is_open:
            if self.messages.due:
                self.messages.let_return()
            self.adjust()
            if not self.broker_consumer.withholds_acks(self._settings.clock()):
                self.messages.acks.send()

    def _end_now(self, then: Callable[[], None]) -> None:
        """The broker sends no more: settle everything, then close."""
        self._at_end = None
        self.messages.end_back_offs()
        self.flush()
        self.messages.acks.send(everything=True)
        self.messages.give_back_all()
        then()
