"""A fake broker and channel, for orders of events that a real one shows once in a year.

They refuse the same calls as RabbitMQ and pika: settling a message twice, and any call on a channel
that is not open.
"""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from types import SimpleNamespace
from unittest.mock import patch

from pika import BasicProperties
from pika.exceptions import ChannelWrongStateError
from pika.spec import Basic

from tiercel.queues.broker.address import Address
from tiercel.queues.broker.declare import WorkQueue
from tiercel.queues.consuming.consumer import Consumer, ConsumerSettings
from tiercel.queues.errors import BrokerUnavailableError, PublishRefusedError
from tiercel.queues.retry import RetryPolicy

QUEUE = WorkQueue(
    name="q", retry=RetryPolicy(first=timedelta(seconds=1), longest=timedelta(seconds=8))
)


class Message:
    def __init__(self, body):
        self.body = body
        self.count = 0
        self.headers = {}


class FakeChannel:
    """One channel; ``queue`` holds the ready messages."""

    # Messages that may have been on their way to a consumer when it was cancelled: a quorum queue
    # requeues them.
    endangered = 0
    # The least number of consumers, after a cancel.
    fewest = 1

    def __init__(self, queue):
        self.is_open, self.consumer_tags, self._cancelled = True, [], set()
        self.queue = queue
        self.unacked = {}
        self.closing = False
        self._tag = 0
        # By consumer tag; the next message goes to the first one.
        self.consumers = {}
        self._answers = deque()
        self._on_cancel = None

    def add_on_cancel_callback(self, callback):
        self._on_cancel = callback

    def basic_qos(self, prefetch_count):
        self._must_be_open()
        assert prefetch_count >= 1, "0 means no limit"
        self._prefetch = prefetch_count

    def basic_consume(self, _queue, on_message, consumer_tag, arguments, callback):
        self._must_be_open()
        assert consumer_tag not in self.consumers
        self.consumers[consumer_tag] = SimpleNamespace(
            callback=on_message, prefetch=self._prefetch, open=set(), cancelled=False
        )
        self.consumer_tags.append(consumer_tag)
        self.consumer_arguments = arguments
        self._answers.append(lambda: callback(None))

    def basic_cancel(self, tag, callback):
        self._must_be_open()
        consumer = self.consumers[tag]
        assert not consumer.cancelled
        consumer.cancelled = True
        self.endangered += min(consumer.prefetch - len(consumer.open), len(self.queue))
        self.consumer_tags.remove(tag)
        self.fewest = min(self.fewest, len(self.consumer_tags))

        def cancel_ok():
            del self.consumers[tag]
            callback(SimpleNamespace(method=SimpleNamespace(consumer_tag=tag)))

        self._answers.append(cancel_ok)

    def basic_ack(self, tag, multiple):
        self._must_be_open()
        assert tag in self.unacked, f"406: unknown delivery tag {tag}"
        for each in [each for each in self.unacked if each <= tag] if multiple else [tag]:
            self._settled(each)

    def basic_reject(self, tag, requeue):
        self._back(tag)

    def basic_nack(self, tag, requeue):
        self._back(tag)

    # -- the broker's side -------------------------------------------------------------------------

    @property
    def prefetches(self):
        """Return the prefetches of the consumers that are not cancelled."""
        return [each.prefetch for each in self.consumers.values() if not each.cancelled]

    def deliver(self, most):
        """Deliver as many messages as the prefetch allows, to one consumer after the other; also
        between a cancel and its answer.
        """
        done = 0
        while done < most and self.queue and (consumer_tag := self._next_with_room()):
            # The next message goes to the other consumer, if there is one.
            consumer = self.consumers[consumer_tag] = self.consumers.pop(consumer_tag)
            message = self.queue.popleft()
            self._tag = self._tag + 1
            done = done + 1
            self.unacked[self._tag] = message
            consumer.open.add(self._tag)
            method = Basic.Deliver(consumer_tag, self._tag, message.count > 0, "", "q")
            headers = {**message.headers, "x-delivery-count": message.count}
            consumer.callback(self, method, BasicProperties(headers=headers), message.body)
        return done

    def answer(self):
        """Confirm that a consumer has begun or is cancelled; return False if there is none."""
        if not (self._answers and self.is_open):
            return False
        self._answers.popleft()()
        return True

    def _next_with_room(self):
        with_room = (tag for tag, each in self.consumers.items() if len(each.open) < each.prefetch)
        return next(with_room, None)

    def cancel_by_broker(self):
        if self.consumers and self.is_open:
            self.consumers = {}
            self.consumer_tags = []
            self._answers.clear()
            self._on_cancel(None)

    def close(self):
        self.is_open = False

    def _back(self, tag):
        self._must_be_open()
        assert tag in self.unacked, f"406: unknown delivery tag {tag}"
        message = self.unacked[tag]
        self._settled(tag)
        message.count += 1
        self.queue.append(message)

    def _settled(self, tag):
        del self.unacked[tag]
        for consumer in self.consumers.values():
            consumer.open.discard(tag)

    def _must_be_open(self):
        if not self.is_open:
            raise ChannelWrongStateError("Channel is closing.")


class FakeLink:
    """Runs calls at once, and timers when the test says so."""

    def __init__(self, *_):
        self.channel = None
        self.timers = {}

    def call(self, function):
        function()

    def later(self, _delay_s, function):
        handle = object()
        self.timers[handle] = function
        return handle

    def forget(self, handle):
        self.timers.pop(handle, None)

    def restart(self, _why):
        self.channel.close()

    def start(self):
        pass

    def finish(self):
        pass

    def join(self, _timeout_s):
        return True

    def run_timers(self):
        due = self.timers
        self.timers = {}
        for function in due.values():
            function()


class FakeDeadLetterWriter:
    def __init__(self):
        self.asked = deque()
        self.dead = []

    def copy(self, message, reason, done):
        self.asked.append((message.body, reason, done))

    def answer(self, *, taken):
        if self.asked:
            body, reason, done = self.asked.popleft()
            if taken:
                self.dead.append((body, reason))
            done(None if taken else PublishRefusedError("full"))

    def close(self, _timeout_s):
        pass


class FakeDelayWriter:
    """Records the delay copies as (body, seconds, failures)."""

    def __init__(self):
        self.asked = deque()
        self.delayed = []

    def copy(self, message, seconds, failures, done):
        self.asked.append((message.body, seconds, failures, done))

    def answer(self, *, taken):
        if self.asked:
            *copy, done = self.asked.popleft()
            if taken:
                self.delayed.append(tuple(copy))
            done(None if taken else PublishRefusedError("no permission"))

    def close(self, _timeout_s):
        pass


def held_by(consumer):
    """Return the size and the number of the messages that a consumer holds now."""
    if consumer._epoch is None:
        return SimpleNamespace(size=0, messages=0)
    held = consumer._epoch.messages
    return SimpleNamespace(size=held.bytes_held, messages=len(held.open) + len(held.busy))


class ConsumerBench:
    """A consumer on a channel that fails on the test's demand."""

    def __init__(self, *, queue=QUEUE, prefetch=100, bytes_held=2**28, tasks=1, limit=None):
        self.counts, self.queue, self.woken, self.now = {}, deque(), 0, 0.0
        settings = ConsumerSettings(
            queue=queue,
            wake=self._wake,
            count=self._count,
            tasks=tasks,
            prefetch=prefetch,
            bytes_held=bytes_held,
            clock=lambda: self.now,
        )
        with patch("tiercel.queues.consuming.consumer.Link", FakeLink):
            self.consumer = Consumer(Address.parse("amqp://host"), settings)
        self.link = self.consumer._link
        copies = self.consumer._copies
        self.dead_letter_writer = copies._dead_letter_writer = FakeDeadLetterWriter()
        self.delay_writer = copies._delay_writer = FakeDelayWriter()
        if limit is not None:
            self.consumer._limit = limit
        self.channel = None
        self.open()

    def _wake(self):
        self.woken += 1

    def _count(self, name, count):
        self.counts[name] = self.counts.get(name, 0) + count

    def put(self, *bodies):
        self.queue.extend(Message(body) for body in bodies)

    def open(self):
        self.channel = self.link.channel = FakeChannel(self.queue)
        self.consumer.opened(self.channel)

    def lose(self):
        """Lose the channel for good; its messages are ready again."""
        self.channel.close()
        self.consumer.lost(BrokerUnavailableError("gone"))
        for message in self.channel.unacked.values():
            message.count += 1
            self.queue.append(message)
        self.channel.unacked = {}
        self.channel.consumers = {}

    def run_until_idle(self):
        """Run until the broker is silent, and the consumer has noticed it for a second."""
        for quiet_s in (1.0, 0.0):
            while True:
                answered = self.channel.answer()
                if not self.channel.deliver(1) and not answered:
                    break
            if quiet_s and self.channel.is_open:
                self.now += quiet_s
                self.consumer._epoch.check()

    @property
    def withheld(self):
        """Return the acks that wait for a change of the prefetch."""
        epoch = self.consumer._epoch
        return 0 if epoch is None else len(epoch._book._finished)

    @property
    def held(self):
        return held_by(self.consumer)

    def report(self):
        self.consumer._report()
        return self.counts
