"""Messages held by a spout: if nothing fails, RabbitMQ delivers each one once, however the bound on
tuples in flight changes; and messages that always fail do not block others.
"""

import threading
import time
from collections import Counter, deque
from dataclasses import replace
from datetime import timedelta
from itertools import cycle

import numpy as np
import pytest

from tests.support.broker import Desk, plain_channel, put, ready, unique
from tests.support.proxy import Proxy
from tests.support.spout_worker import RUN, SPEC, MemoryWorker
from tests.support.waiting import wait_until
from tiercel import BasicBolt, Publisher, QueueSpout, TopologyBuilder
from tiercel.acker.inbox.chunk import decode
from tiercel.acker.inbox.contract import Claims
from tiercel.acker.ledger import Failure, Token, Updates
from tiercel.acker.memory import MemoryLedger
from tiercel.queues.broker.declare import WorkQueue, declare_queue
from tiercel.queues.retry import DELIVERY_LIMIT, NO_WAIT, RetryPolicy
from tiercel.spark_jobs.topology.graph import inboxes_of, line_at
from tiercel.workers.spout.admission import Admission
from tiercel.workers.spout.loop import SpoutSettings

UP_AND_DOWN = [2, 16, 128, 1_024, 8_192, 1_000, 100, 10, 2, 500, 20]


# Twenty failures within twenty seconds.
RETRY = RetryPolicy(first=timedelta(seconds=0.2), longest=timedelta(seconds=1))


def filled(amqp_url, count, retry=NO_WAIT):
    queue = WorkQueue(name=unique(), retry=retry)
    declare_queue(amqp_url, queue)
    with Publisher(amqp_url) as publisher:
        publisher.publish(queue.name, (b"%d" % number for number in range(count)))
    return queue.name


def process(desk, count, at_once=100):
    """Take and ack this many messages; return how often each was delivered."""
    seen = Counter()

    def some():
        deliveries = desk.consumer.get(at_once)
        if deliveries:
            desk.consumer.ack(deliveries[0].epoch, *[delivery.tag for delivery in deliveries])
            seen.update(delivery.body for delivery in deliveries)
        return seen.total() >= count

    wait_until(some, 60, f"{count} messages")
    return seen


@pytest.mark.newest
@pytest.mark.rest
def test_a_bound_that_grows_and_falls_on_a_busy_queue_brings_no_message_back(amqp_url):
    count = 30_000
    queue = filled(amqp_url, count)
    seen = Counter()
    with Desk(amqp_url, queue, prefetch=30_000) as desk:
        for bound in UP_AND_DOWN:
            desk.consumer.expect(bound)
            seen += process(desk, min(3_000, 20 * bound), at_once=bound)
        desk.consumer.expect(1_000)
        seen += process(desk, count - seen.total())
        desk.wait_for("acked_to_broker", count)
    assert (desk.counts["redelivered"], desk.counts["given_back"]) == (0, 0)
    assert desk.counts["delivered"] == count
    assert set(seen.values()) == {1}
    assert ready(amqp_url, queue) == 0


@pytest.mark.newest
def test_a_queue_that_ends_without_a_consumer_outlives_each_change_of_the_bound(amqp_url):
    """A new prefetch needs a new consumer, which starts before the old one is cancelled."""
    queue, expires_s = unique(), 4
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(queue, durable=True, arguments={"x-expires": 1_000 * expires_s})
    with Desk(amqp_url, queue, prefetch=1_000) as desk:
        desk.consumer.expect(50)
        put(amqp_url, queue, *[b"%d" % number for number in range(300)])
        held = []
        wait_until(lambda: held.extend(desk.consumer.get(1_000)) or len(held) >= 100)
        for bound in (2, 400):
            desk.consumer.expect(bound)
            began = time.monotonic()
            wait_until(lambda began=began: time.monotonic() - began > 1.5 * expires_s)
        wait_until(lambda: held.extend(desk.consumer.get(1_000)) or len(held) == 300)
        desk.consumer.ack(held[0].epoch, *[delivery.tag for delivery in held])
        desk.wait_for("acked_to_broker", 300)
    assert (desk.counts["redelivered"], desk.counts["given_back"]) == (0, 0)
    assert desk.counts["delivered"] == 300


@pytest.mark.newest
def test_workers_take_turns_at_a_queue_with_a_single_active_consumer_while_their_bounds_change(
    amqp_url,
):
    queue, count = unique(), 2_000
    arguments = {"x-queue-type": "quorum", "x-single-active-consumer": True}
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(queue, durable=True, arguments=arguments)
    put(amqp_url, queue, *[b"%d" % number for number in range(count)])
    seen = Counter()
    with Desk(amqp_url, queue) as one, Desk(amqp_url, queue) as other:
        bounds = cycle(UP_AND_DOWN)

        def some():
            for desk in (one, other):
                desk.consumer.expect(next(bounds))
                deliveries = desk.consumer.get(40)
                if deliveries:
                    desk.consumer.ack(deliveries[0].epoch, *[each.tag for each in deliveries])
                    seen.update(each.body for each in deliveries)
            return len(seen) == count

        wait_until(some, 60, f"{count} messages")
        wait_until(lambda: one.counts["acked_to_broker"] + other.counts["acked_to_broker"] >= count)
    assert ready(amqp_url, queue) == 0


@pytest.mark.newest
def test_it_is_full_while_the_broker_sends_nothing_before_a_message_is_settled(amqp_url):
    queue, held = filled(amqp_url, 200), []
    with Desk(amqp_url, queue, prefetch=50) as desk:
        desk.consumer.expect(1_000)
        wait_until(lambda: held.extend(desk.consumer.get(1_000)) or desk.consumer.is_full)
        wait_until(lambda: held.extend(desk.consumer.get(1_000)) or len(held) >= 50)
        desk.consumer.ack(held[0].epoch, *[delivery.tag for delivery in held])
        process(desk, 200 - len(held))
        wait_until(lambda: not desk.consumer.is_full)
    assert desk.consumer.is_full, "without a connection it gets nothing either"


class Sleeper(BasicBolt):
    """Takes as long as ``Stack`` decides."""


class Stack:
    """A spout worker on a real queue, and tasks that sleep in place of Spark's, with the twins
    between them.
    """

    TASKS = range(2, 6)

    def __init__(
        self, amqp_url, queue, *, seconds, message_timeout, bound=None, retry=NO_WAIT, poison=()
    ):
        """Let the bodies of ``poison`` always fail."""
        self.seconds = seconds
        self.poison = set(poison)
        self.executed = Counter()
        self.ended = threading.Event()
        spout = QueueSpout(queue, retry=retry)
        builder = TopologyBuilder("t")
        builder.set_spout("messages", spout)
        builder.set_bolt("sleep", Sleeper(), parallelism=len(self.TASKS)).shuffle_grouping(
            "messages"
        )
        settings = SpoutSettings(
            message_timeout=message_timeout,
            admission=Admission.for_topology(bound, message_timeout),
            grace=timedelta(seconds=1),
        )
        ledger = MemoryLedger(replace(SPEC, message_timeout=message_timeout))
        self.worker = MemoryWorker(builder.build(), spout, settings, ledger=ledger)
        self.worker.inboxes.adopt(RUN, inboxes_of(self.worker.topology))
        self.attend = self.worker.attend
        self.working = self.worker.working({"amqp_url": amqp_url})
        self.threads = [threading.Thread(target=self._execute, args=(task,)) for task in self.TASKS]

    def __enter__(self):
        self.working.__enter__()
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *error):
        self.working.__exit__(*error)
        self.ended.set()
        for thread in self.threads:
            thread.join(10)
            assert not thread.is_alive()

    @property
    def counts(self):
        return Counter(self.worker.metrics.totals().get("messages", {}).get(1, {}))

    def _execute(self, task):
        """Execute one tuple at a time, as a bolt task does with slow work, and ack it."""
        inboxes = self.worker.inboxes
        line = line_at(self.worker.topology, task)
        inbox = inboxes.open(RUN, task, inboxes.draw(RUN, task), line)
        steps = deque(range(1, 1_000_000))
        while not self.ended.is_set():
            for entry in inbox.take(1_000, 2**20, timedelta(seconds=0.05), None, Claims(1)):
                chunk = decode(entry.payload)
                mine = slice(entry.first, entry.first + entry.tuples)
                bodies = chunk.values.column(0).to_pylist()[mine]
                roots = chunk.lineage.roots.tolist()[mine]
                edges = chunk.lineage.edges.tolist()[mine]
                for body, root, edge in zip(bodies, roots, edges, strict=True):
                    time.sleep(self.seconds)
                    self.executed[body] += 1
                    updates = Updates(
                        roots=np.array([root], np.uint64), xors=np.array([edge], np.uint64)
                    )
                    failures = [Failure(root=root, component="sleep", task=task, reason="poison")]
                    self.worker.ledger.apply(
                        Token(run=RUN, task=task, step=steps.popleft()),
                        updates,
                        failures if body in self.poison else [],
                    )


@pytest.mark.parametrize(
    "start_s",
    [
        pytest.param(0.0, id="a driver is there"),
        pytest.param(2.0, id="the driver comes late", marks=pytest.mark.rest),
    ],
)
def test_each_message_of_slow_work_is_delivered_once(amqp_url, start_s):
    """300 messages of a second each, four tasks and default settings, all scaled to a tenth.

    The last messages wait for more than two message timeouts.
    """
    count = 300
    queue = filled(amqp_url, count)
    with Stack(amqp_url, queue, seconds=0.1, message_timeout=timedelta(seconds=3)) as stack:
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began >= start_s)
        stack.attend()
        wait_until(lambda: stack.counts["acked_to_broker"] == count, 120, "all to be acked")
        wait_until(lambda: ready(amqp_url, queue) == 0)
        print(f"{time.monotonic() - began:.1f} s, {dict(stack.counts)}")  # noqa: T201
    assert set(stack.executed.values()) == {1}
    assert len(stack.executed) == count
    assert stack.counts["delivered"] == count
    for counter in ("redelivered", "given_back", "requeued", "released", "timeout", "failed"):
        assert stack.counts[counter] == 0, counter


def with_failing_first(amqp_url, failing, good=400):
    """Fill a queue with messages that always fail before good ones; return it and the failing
    bodies.
    """
    queue = filled(amqp_url, failing + good, RETRY)
    return queue, set(map(str, range(failing)))


def stack_of(amqp_url, queue, poison, bound=None):
    return Stack(
        amqp_url,
        queue,
        seconds=0.01,
        message_timeout=timedelta(seconds=30),
        retry=RETRY,
        bound=bound,
        poison=poison,
    )


def good_ones(stack):
    return len(set(stack.executed) - stack.poison)


def good_ones_s(amqp_url, queue, poison, bound=None):
    """Return the seconds until the first good message is done, and until all are."""
    with stack_of(amqp_url, queue, poison, bound) as stack:
        stack.attend()
        began = time.monotonic()
        wait_until(lambda: good_ones(stack), 60, "the first good message")
        first_s = time.monotonic() - began
        wait_until(lambda: good_ones(stack) == 400, 120, "the good messages")
        return first_s, time.monotonic() - began


def slowness(amqp_url, bound):
    """Return how many times slower good messages alone are than on an idle machine."""
    _, alone_s = good_ones_s(amqp_url, filled(amqp_url, 400, RETRY), set(), bound)
    at_once = min(bound or len(Stack.TASKS), len(Stack.TASKS))
    # 10 ms in the bolt, and half as much in between.
    return max(1.0, alone_s / (400 * 0.015 / at_once))


def check_in_time(amqp_url, first_s, all_s, bound=None):
    if first_s > 5 or all_s > 30:
        slow = slowness(amqp_url, bound)
        assert first_s <= 5 * slow
        assert all_s <= 30 * slow


@pytest.mark.parametrize("bound", [None, 1])
@pytest.mark.parametrize("failing", [4, pytest.param(8, marks=pytest.mark.rest), 50])
def test_messages_that_always_fail_keep_no_others_waiting(amqp_url, failing, bound):
    """The first good message is done within 5 s, and all within 30 s; a busy machine gets more
    time.
    """
    queue, poison = with_failing_first(amqp_url, failing)
    first_s, all_s = good_ones_s(amqp_url, queue, poison, bound)
    print(f"first {first_s:.1f} s, all {all_s:.1f} s")  # noqa: T201
    check_in_time(amqp_url, first_s, all_s, bound)


def test_where_one_in_two_always_fails_the_others_are_done_as_soon(amqp_url):
    queue = filled(amqp_url, 400, RETRY)
    with stack_of(amqp_url, queue, set(map(str, range(0, 400, 2)))) as stack:
        stack.attend()
        wait_until(lambda: good_ones(stack) == 200, 30, "the good messages")


@pytest.mark.newest
@pytest.mark.rest
@pytest.mark.parametrize("way", ["ended", "killed"])
def test_failures_are_counted_over_restarts_of_the_spout_worker(amqp_url, way):
    """Three workers run one after the other, and each sees some of the failures."""
    failing = 50
    queue, poison = with_failing_first(amqp_url, failing, good=0)
    executed = Counter()
    for _ in range(2):
        with Proxy(amqp_url) as wire, stack_of(wire.url, queue, poison) as stack:
            stack.attend()
            wait_until(lambda: min(stack.executed[body] for body in poison) >= 4, 60)
            if way == "killed":
                wire.close()
        executed += stack.executed
    with Publisher(amqp_url) as publisher:
        publisher.publish(queue, (b"good %d" % number for number in range(400)))
    with stack_of(amqp_url, queue, poison) as stack:
        stack.attend()
        began = time.monotonic()
        wait_until(lambda: good_ones(stack), 60, "the first good message")
        first_s = time.monotonic() - began
        wait_until(lambda: good_ones(stack) == 400, 120, "the good messages")
        all_s = time.monotonic() - began
        wait_until(lambda: stack.counts["dead_lettered"] == failing, 60, "the dead letters")
        print(f"{time.monotonic() - began:.1f} s, {stack.counts}")  # noqa: T201
    executed += stack.executed
    check_in_time(amqp_url, first_s, all_s)
    assert ready(amqp_url, f"{queue}.dead") == failing
    tried = [executed[body] for body in poison]
    # A worker counts one return as the end of the worker before it.
    assert DELIVERY_LIMIT - 3 <= min(tried) <= max(tried) <= DELIVERY_LIMIT + 1 + 4
