"""Events reach a consumer in any order: it subscribes again, and counts its messages correctly."""

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fake_broker import QUEUE, ConsumerBench
from tiercel.queues.broker.declare import WorkQueue
from tiercel.queues.consuming.messages import Later
from tiercel.queues.limits import BACK_OFFS_HELD
from tiercel.queues.retry import BrokerLimit, RetryPolicy

MIB = 1024 * 1024


def test_a_broker_consumer_that_asks_for_one_for_its_bytes_asks_for_more_when_its_messages_wait():
    bench = ConsumerBench(prefetch=30_000)
    bench.put(*[bytes(100)] * 200, *[bytes(10 * MIB)] * 40)
    bench.run_until_idle()
    deliveries = bench.consumer.get(1000)
    assert bench.channel.prefetches == [1], "the bound on bytes"
    for delivery in deliveries:
        bench.consumer.fail(delivery.epoch, delivery.tag, "the database is away")
    bench.run_until_idle()
    assert max(bench.channel.prefetches) > 1
    assert (bench.held.size, bench.held.messages) == (0, 0)
    assert bench.consumer.waiting == len(deliveries)
    bench.link.run_timers()
    assert bench.held.size == 0


@pytest.mark.parametrize("bound", [1, 2, 16])
def test_messages_that_wait_for_their_back_off_keep_no_other_waiting(bound):
    bench = ConsumerBench(prefetch=30_000)
    bench.consumer.expect(bound)
    bench.put(*[b"poison"] * 50, b"good")
    seen = []
    while b"good" not in seen:
        bench.run_until_idle()
        handed = bench.consumer.get(bound)
        assert handed, "no back-off is over"
        seen += [delivery.body for delivery in handed]
        for delivery in handed:
            bench.consumer.fail(delivery.epoch, delivery.tag)
    assert bench.consumer.waiting == 51
    assert bench.held.messages <= 2 * bound


def test_where_more_messages_fail_than_a_few_the_queue_waits_with_them():
    bench = ConsumerBench(prefetch=30_000)
    bench.consumer.expect(10)
    bench.put(*[b"%d" % number for number in range(5_000)])
    for _ in range(1_000):
        bench.run_until_idle()
        for delivery in bench.consumer.get(10):
            bench.consumer.fail(delivery.epoch, delivery.tag, "the database is away")
    assert BACK_OFFS_HELD <= bench.consumer.waiting <= BACK_OFFS_HELD + 40
    assert bench.channel.prefetches == [1]
    bench.link.run_timers()
    while bench.consumer.waiting >= BACK_OFFS_HELD:
        bench.report()
    bench.run_until_idle()
    assert max(bench.channel.prefetches) > 1


def test_messages_that_come_again_leave_most_of_the_room_to_others():
    bench = ConsumerBench(prefetch=30_000)
    bench.consumer.expect(10)
    bench.put(*[b"poison"] * 40)
    while bench.consumer.waiting < 40:
        bench.run_until_idle()
        for delivery in bench.consumer.get(10):
            bench.consumer.fail(delivery.epoch, delivery.tag)
    bench.link.run_timers()
    bench.put(*[b"good"] * 100)
    bench.run_until_idle()
    open_ones = [delivery.body for delivery in bench.consumer.get(100)]
    assert 1 <= open_ones.count(b"poison") <= 5
    assert open_ones.count(b"good") >= 10


def test_a_back_off_that_is_over_waits_for_no_message_that_another_worker_has():
    bench = ConsumerBench(prefetch=30_000)
    bench.consumer.expect(2)
    bench.put(*[b"poison"] * 8)
    while bench.consumer.waiting < 8:
        bench.run_until_idle()
        for delivery in bench.consumer.get(10):
            bench.consumer.fail(delivery.epoch, delivery.tag)
    bench.link.run_timers()
    for _ in range(8):
        bench.queue.clear()  # another worker's message
        bench.report()
    assert bench.consumer.waiting == 0


def test_a_back_off_that_is_over_waits_ten_seconds_for_what_came_again_before_it():
    bench = ConsumerBench(prefetch=30_000)
    bench.consumer.expect(2)
    bench.put(*[b"%d" % number for number in range(8)])
    while bench.consumer.waiting < 8:
        bench.run_until_idle()
        for delivery in bench.consumer.get(10):
            bench.consumer.fail(delivery.epoch, delivery.tag)
    bench.link.run_timers()
    bench.run_until_idle()
    assert bench.consumer.waiting == 7, "one came again, and a bolt holds it"
    bench.now += 10
    bench.run_until_idle()
    assert bench.consumer.waiting == 0


def test_a_back_off_that_ends_while_the_channel_closes_leaves_no_bytes_behind():
    bench = ConsumerBench()
    for _ in range(5):
        bench.put(*[bytes(10 * MIB)] * 11)
        bench.run_until_idle()
        for delivery in bench.consumer.get(100):
            bench.consumer.fail(delivery.epoch, delivery.tag)
        bench.channel.close()
        bench.link.run_timers()
        bench.lose()
        assert (bench.held.size, bench.held.messages) == (0, 0)
        bench.queue.clear()
        bench.open()
        assert bench.channel.prefetches


@pytest.mark.parametrize("verb", ["ack", "fail", "release", "pause", "expect"])
def test_nothing_is_said_on_a_channel_that_is_closing(verb):
    bench = ConsumerBench()
    bench.put(b"a", b"b", b"c")
    bench.run_until_idle()
    (delivery,) = bench.consumer.get(1)
    bench.channel.close()
    if verb == "pause":
        bench.consumer.pause()
    elif verb == "expect":
        bench.consumer.expect(0)
    else:
        getattr(bench.consumer, verb)(delivery.epoch, delivery.tag)
        assert bench.report()["stale"] == 1
    bench.lose()
    assert len(bench.queue) == 3
    assert (bench.held.size, bench.held.messages) == (0, 0)


def test_what_is_released_is_handed_out_again_before_the_others_and_stays_at_the_broker_as_it_is():
    bench = ConsumerBench()
    bench.put(*[b"%d" % number for number in range(6)])
    bench.run_until_idle()
    first, second = bench.consumer.get(2)
    bench.consumer.release(first.epoch, first.tag)
    bench.consumer.release(second.epoch, second.tag)
    again = bench.consumer.get(6)
    assert [(delivery.tag, delivery.body) for delivery in again[:2]] == [(1, b"0"), (2, b"1")]
    assert [message.count for message in bench.channel.unacked.values()] == [0] * 6
    bench.consumer.ack(again[0].epoch, *[delivery.tag for delivery in again])
    assert not bench.channel.unacked
    assert bench.held.messages == 0


@pytest.mark.parametrize("stop", ["pause", "expect"])
def test_nothing_that_was_not_handed_out_is_held_when_nothing_is_expected(stop):
    bench = ConsumerBench()
    bench.put(*[b"%d" % number for number in range(6)])
    bench.run_until_idle()
    first, second, third = bench.consumer.get(3)
    bench.consumer.release(first.epoch, first.tag)
    bench.consumer.pause() if stop == "pause" else bench.consumer.expect(0)
    bench.run_until_idle()
    assert list(bench.channel.unacked) == [second.tag, third.tag]
    assert bench.consumer.get(10) == []
    bench.consumer.release(second.epoch, second.tag)
    assert list(bench.channel.unacked) == [third.tag]
    bench.consumer.resume() if stop == "pause" else bench.consumer.expect(5)
    bench.run_until_idle()
    assert len(bench.consumer.get(10)) == 5


def test_the_prefetch_follows_what_is_expected_and_what_is_in_hand_is_emitted_in_its_turn():
    bench = ConsumerBench(prefetch=30_000)
    bench.consumer.expect(20)
    bench.put(*[b"x"] * 10_000)
    bench.run_until_idle()
    assert 40 <= bench.held.messages <= 40 + 16, (
        "the first 16 were asked for before their size was known"
    )
    bench.consumer.expect(1_000)
    bench.run_until_idle()
    assert 2_000 <= bench.held.messages <= 4_000
    handed = bench.consumer.get(100)
    bench.consumer.expect(5)
    bench.run_until_idle()
    held = bench.held.messages
    assert held <= 4_000 + 1, "one more than before"
    assert bench.channel.prefetches == [1], "one is asked for, and not cancelled"
    while bench.held.messages > 10:
        bench.consumer.ack(handed[0].epoch, *[delivery.tag for delivery in handed])
        bench.run_until_idle()
        handed = bench.consumer.get(20)
    assert bench.held.messages <= 10 + 10, "from now on as many as are expected"
    assert bench.report().get("given_back", 0) == 0
    bench.consumer.expect(100_000)
    bench.run_until_idle()
    assert bench.held.messages <= 30_000 + 10, "the largest prefetch is the bound, as it was"


@pytest.mark.parametrize("ready", [10_000, 3], ids=["a busy queue", "a queue that runs dry"])
def test_a_bound_that_grows_and_falls_brings_no_message_back(ready):
    bench = ConsumerBench(prefetch=30_000)
    for expected in (2, 16, 128, 1_000, 100, 16, 2, 50):
        bench.consumer.expect(expected)
        for _ in range(30):
            bench.put(*[b"x"] * max(0, ready - len(bench.queue)))
            bench.channel.deliver(expected // 2)
            bench.channel.answer()
            if handed := bench.consumer.get(expected):
                bench.consumer.ack(handed[0].epoch, *[delivery.tag for delivery in handed])
            bench.now += 0.02
            bench.consumer._epoch.check()
    assert bench.report().get("given_back", 0) == 0
    assert bench.channel.endangered == 0
    assert bench.channel.fewest == 1, "the queue has a consumer all the time"


def test_acks_of_messages_that_trickle_in_wait_for_no_change_of_the_prefetch():
    """The prefetch changes when it is reached, because only then does it matter."""
    bench = ConsumerBench(prefetch=30_000)
    bench.consumer.expect(8)
    bench.put(*[b"x"] * 6)
    bench.channel.deliver(6)
    bench.consumer.expect(100)
    handed = bench.consumer.get(1)
    bench.consumer.ack(handed[0].epoch, handed[0].tag)
    assert bench.withheld == 0
    while bench.channel.answer():
        pass
    assert bench.channel.prefetches == [16, 200]
    bench.put(*[b"y"] * 22)
    bench.channel.deliver(22)
    assert bench.channel.prefetches == [200], "the broker has sent the other one all that it may"
    assert bench.channel.endangered == 0


def test_acks_wait_for_a_change_of_the_prefetch_briefly_and_once():
    bench = ConsumerBench(prefetch=30_000)
    bench.consumer.expect(10)
    bench.put(*[b"x"] * 15)
    bench.channel.deliver(15)
    bench.consumer.expect(100)
    bench.channel.answer()
    handed = bench.consumer.get(2)
    bench.consumer.ack(handed[0].epoch, handed[0].tag)
    assert bench.withheld == 1
    assert bench.channel.unacked, "the broker sends no more for it"
    for _ in range(3):
        bench.now += 0.2
        bench.put(b"y")
        bench.channel.deliver(1)
        bench.consumer._epoch.check()
    assert bench.withheld == 0, "messages that trickle in keep it from a quiet moment"
    bench.consumer.ack(handed[1].epoch, handed[1].tag)
    assert bench.withheld == 0
    bench.put(*[b"z"] * 20)
    bench.channel.deliver(20)
    assert bench.channel.prefetches == [200], "the broker has sent the other one all that it may"
    assert bench.channel.endangered == 0


def test_a_message_that_follows_an_ack_is_on_its_way_however_long_nothing_came():
    bench = ConsumerBench(prefetch=30_000)
    bench.consumer.expect(2)
    bench.run_until_idle()
    bench.put(*[b"x"] * 10)
    bench.run_until_idle()
    bench.now += 60
    (slow,) = bench.consumer.get(1)
    bench.consumer.ack(slow.epoch, slow.tag)
    bench.consumer.expect(16)
    while bench.channel.answer():
        pass
    assert bench.channel.prefetches == [4, 32]
    bench.channel.deliver(2)
    assert bench.channel.prefetches == [32]
    assert bench.channel.endangered == 0


def test_a_prefetch_that_is_too_large_ends_at_once_when_messages_grow_old():
    """Otherwise the broker would redeliver the returned messages at once."""
    bench = ConsumerBench(prefetch=30_000)
    bench.consumer.expect(1_000)
    bench.put(*[b"x"] * 100)
    bench.run_until_idle()
    bench.now += 250
    bench.put(b"y")
    bench.channel.deliver(1)
    bench.consumer.expect(2)
    assert bench.channel.prefetches == [2_000, 1]
    bench.now += 51
    bench.put(b"z")
    bench.channel.deliver(1)
    bench.report()
    assert bench.channel.prefetches == [1]
    bench.run_until_idle()
    assert bench.held.messages <= 2 + 4 + 1
    assert bench.report()["given_back"] == 100


def test_a_bound_that_changes_a_little_costs_no_new_broker_consumer():
    bench = ConsumerBench(prefetch=30_000)
    bench.put(b"x")
    bench.consumer.expect(100)
    bench.run_until_idle()
    broker_consumer = bench.consumer._epoch.broker_consumer
    before = broker_consumer.consumer_tag
    for tuples in (110, 150, 199, 60, 51, 100):
        bench.consumer.expect(tuples)
        bench.run_until_idle()
    assert broker_consumer.consumer_tag == before


def test_a_message_that_waits_too_long_for_its_turn_comes_again_as_a_young_one():
    bench = ConsumerBench()
    bench.put(b"slow", b"waits")
    bench.run_until_idle()
    (slow,) = bench.consumer.get(1)
    bench.now = 301
    bench.report()
    assert next(iter(bench.channel.unacked.values())).body == b"slow"
    bench.run_until_idle()
    (waited,) = bench.consumer.get(1)
    assert (waited.body, waited.arrived_s, waited.delivery_count) == (b"waits", 301, 1)
    bench.consumer.release(slow.epoch, slow.tag)
    assert slow.tag not in bench.channel.unacked, (
        "an old one is given back where it would have been handed out again"
    )


def test_a_message_that_cannot_be_copied_stays_in_its_queue_and_harms_no_other():
    bench = ConsumerBench()
    bench.dead_letter_writer.copy = lambda *_: 1 / 0
    bench.put(b"odd", b"good")
    bench.run_until_idle()
    odd, good = bench.consumer.get(2)
    bench.consumer.dead_letter(odd.epoch, odd.tag, "odd")
    bench.consumer.ack(good.epoch, good.tag)
    assert bench.channel.is_open
    assert [message.body for message in bench.channel.unacked.values()] == [b"odd"]
    bench.link.run_timers()
    assert [message.body for message in bench.queue] == [b"odd"]


# -- failures and their owners ---------------------------------------------------------------------


def failed_until_dead(bench, most=200):
    """Fail every delivery; return how often the one message was delivered before it was
    dead-lettered.
    """
    for times in range(1, most):
        bench.run_until_idle()
        (delivery,) = bench.consumer.get(1)
        bench.consumer.fail(delivery.epoch, delivery.tag, "boom")
        if bench.dead_letter_writer.asked:
            bench.dead_letter_writer.answer(taken=True)
            return times
        bench.link.run_timers()
    return None


def test_a_message_that_always_fails_is_dead_after_its_limit():
    bench = ConsumerBench()
    bench.put(b"poison")
    assert failed_until_dead(bench) == QUEUE.delivery_limit + 1
    assert bench.dead_letter_writer.dead == [
        (b"poison", "delivered 21 times, failed at last: boom")
    ]
    assert not bench.consumer._failures, "it is forgotten"


def test_deliveries_that_ended_with_their_channel_are_not_its_failures():
    bench = ConsumerBench()
    bench.put(b"innocent")
    for _ in range(50):
        bench.run_until_idle()
        assert len(bench.consumer.get(1)) == 1
        bench.lose()
        bench.open()
    assert failed_until_dead(bench) == QUEUE.delivery_limit + 1


def test_equal_messages_do_not_share_their_failures():
    bench = ConsumerBench()
    bench.put(*[b"equal"] * 30)
    bench.run_until_idle()
    for delivery in bench.consumer.get(30):
        bench.consumer.fail(delivery.epoch, delivery.tag, "the database is away")
    bench.link.run_timers()
    bench.run_until_idle()
    while deliveries := bench.consumer.get(100):
        bench.consumer.ack(deliveries[0].epoch, *[delivery.tag for delivery in deliveries])
        bench.run_until_idle()
    assert not bench.dead_letter_writer.asked
    assert not bench.consumer._failures


def test_a_classic_queue_does_not_count_and_its_poison_is_dead_all_the_same():
    bench = ConsumerBench(queue=WorkQueue(name="q", delivery_limit=3, retry=QUEUE.retry))
    bench.put(b"poison")
    for _ in range(4):
        assert not bench.dead_letter_writer.asked
        bench.queue[0].count = None
        message = bench.queue[0]
        # A classic queue says that a message was delivered before, but not how often.
        first = not getattr(message, "seen", False)
        message.count = 0
        message.seen = True
        if not first:
            message.count = _Uncounted()
        bench.run_until_idle()
        (delivery,) = bench.consumer.get(1)
        assert delivery.delivery_count == (0 if first else None)
        message.count = 0
        bench.consumer.fail(delivery.epoch, delivery.tag, "boom")
        bench.link.run_timers()
    bench.dead_letter_writer.answer(taken=True)
    assert bench.dead_letter_writer.dead == [(b"poison", "failed 4 times here, at last: boom")]


class _Uncounted:
    """Count that is above 0 for the fake broker, and not a number for us."""

    def __gt__(self, _other):
        return True


def test_tasks_that_share_a_queue_try_a_message_hardly_more_often_than_one():
    shared = [ConsumerBench(tasks=3) for _ in range(3)]
    queue = shared[0].queue
    shared[0].put(b"poison")
    tries = 0
    while not any(bench.dead_letter_writer.asked for bench in shared):
        bench = shared[tries % 3]
        bench.queue = bench.channel.queue = queue
        bench.run_until_idle()
        (delivery,) = bench.consumer.get(1)
        bench.consumer.fail(delivery.epoch, delivery.tag, "boom")
        bench.link.run_timers()
        tries += 1
    assert 21 <= tries <= 21 + 3


def test_a_queue_that_would_delete_a_message_never_gets_it_back_for_the_last_time():
    bench = ConsumerBench(limit=BrokerLimit(returns=5, deletes=True))
    bench.put(b"poison")
    assert failed_until_dead(bench) == 5
    bench.put(b"unlucky")
    for _ in range(5):
        bench.run_until_idle()
        assert len(bench.consumer.get(1)) == 1
        bench.lose()
        bench.open()
    bench.run_until_idle()
    assert bench.consumer.get(1) == []
    bench.dead_letter_writer.answer(taken=False)
    bench.link.run_timers()
    bench.dead_letter_writer.answer(taken=True)
    assert bench.dead_letter_writer.dead[1] == (
        b"unlucky",
        "came back 5 times: the next time its queue would delete it",
    )
    assert not bench.queue
    assert not bench.channel.unacked


def test_what_rabbitmq_would_dead_letter_without_a_reason_gets_one():
    bench = ConsumerBench(limit=BrokerLimit(returns=5))
    bench.put(b"poison")
    assert failed_until_dead(bench) == 6


# -- later -----------------------------------------------------------------------------------------


def later(bench, delivery, *, blame=True, seconds=5.0):
    bench.consumer.retry_later(
        delivery.epoch, delivery.tag, Later(seconds=seconds, reason="busy", blame=blame)
    )


def test_a_message_wanted_later_is_acked_when_the_delay_queue_has_it_and_not_before():
    bench = ConsumerBench()
    bench.put(b"a")
    bench.run_until_idle()
    (delivery,) = bench.consumer.get(1)
    later(bench, delivery)
    assert bench.channel.unacked, "a crash here loses nothing"
    bench.delay_writer.answer(taken=True)
    assert bench.delay_writer.delayed == [(b"a", 5.0, 1)]
    assert not bench.channel.unacked
    assert bench.held.messages == 0, "it holds neither prefetch nor memory"
    assert bench.report()["delayed"] == 1


def test_without_blame_its_failures_stay_as_many_as_they_are():
    bench = ConsumerBench()
    bench.put(b"a")
    for _ in range(2):
        bench.run_until_idle()
        (delivery,) = bench.consumer.get(1)
        bench.consumer.fail(delivery.epoch, delivery.tag, "boom")
        bench.link.run_timers()
    bench.run_until_idle()
    (delivery,) = bench.consumer.get(1)
    later(bench, delivery, blame=False)
    bench.delay_writer.answer(taken=True)
    assert bench.delay_writer.delayed == [(b"a", 5.0, 2)]


def test_the_failures_of_a_message_go_with_it_through_the_delay_queues_to_its_limit():
    bench = ConsumerBench(queue=WorkQueue(name="q", delivery_limit=3, retry=QUEUE.retry))
    failures = 0
    for _ in range(3):
        bench.put(b"a")
        bench.queue[0].headers = {"x-tiercel-failures": failures}
        bench.run_until_idle()
        (delivery,) = bench.consumer.get(1)
        later(bench, delivery)
        bench.delay_writer.answer(taken=True)
        failures = bench.delay_writer.delayed[-1][2]
    assert failures == 3
    bench.put(b"a")
    bench.queue[0].headers = {"x-tiercel-failures": failures}
    bench.run_until_idle()
    (delivery,) = bench.consumer.get(1)
    later(bench, delivery, blame=False)
    bench.delay_writer.answer(taken=True)
    assert bench.delay_writer.delayed[-1][2] == 3, "without blame it may come for ever"
    bench.put(b"a")
    bench.queue[0].headers = {"x-tiercel-failures": failures}
    bench.run_until_idle()
    (delivery,) = bench.consumer.get(1)
    later(bench, delivery)
    bench.dead_letter_writer.answer(taken=True)
    assert bench.dead_letter_writer.dead == [(b"a", "failed 4 times, at last: busy")]


def fail(bench, delivery):
    bench.consumer.fail(delivery.epoch, delivery.tag, "boom")


def reject(bench, delivery):
    bench.consumer.dead_letter(delivery.epoch, delivery.tag, "bad")


@pytest.mark.parametrize(
    ("settle", "before", "broker"),
    [(later, 3, None), (fail, 3, None), (fail, 0, BrokerLimit(returns=0))],
    ids=["delayed, and wanted later", "delayed", "the broker's limit"],
)
def test_a_message_whose_first_failure_here_is_its_last_is_forgotten(settle, before, broker):
    work = WorkQueue(name="q", delivery_limit=3, retry=QUEUE.retry)
    bench = ConsumerBench(queue=work, limit=broker)
    for number in range(10):
        bench.put(b"%d" % number)
        bench.queue[0].headers = {"x-tiercel-failures": before}
        bench.run_until_idle()
        (delivery,) = bench.consumer.get(1)
        settle(bench, delivery)
        bench.dead_letter_writer.answer(taken=True)
    assert len(bench.dead_letter_writer.dead) == 10
    assert not bench.consumer._failures


def test_what_another_worker_delayed_is_forgotten_when_it_is_rejected_here():
    bench = ConsumerBench()
    bench.put(b"a")
    bench.run_until_idle()
    (delivery,) = bench.consumer.get(1)
    fail(bench, delivery)
    bench.link.run_timers()
    bench.queue.clear()  # the other worker gets it, and delays it
    bench.put(b"a")
    bench.queue[0].headers = {"x-tiercel-failures": 2}
    bench.run_until_idle()
    (delivery,) = bench.consumer.get(1)
    reject(bench, delivery)
    bench.dead_letter_writer.answer(taken=True)
    assert not bench.consumer._failures


def test_the_failures_of_an_equal_message_are_remembered_when_a_new_one_is_rejected():
    bench = ConsumerBench()
    bench.put(b"a", b"a")
    bench.run_until_idle()
    one, other = bench.consumer.get(2)
    fail(bench, one)
    reject(bench, other)
    bench.dead_letter_writer.answer(taken=True)
    assert len(bench.consumer._failures) == 1


def test_a_message_that_no_delay_queue_takes_stays_in_its_queue_and_comes_again():
    bench = ConsumerBench()
    bench.put(b"a")
    bench.run_until_idle()
    (delivery,) = bench.consumer.get(1)
    later(bench, delivery)
    bench.delay_writer.answer(taken=False)
    assert bench.channel.unacked
    bench.link.run_timers()
    bench.run_until_idle()
    (again,) = bench.consumer.get(1)
    assert (again.body, again.delivery_count) == (b"a", 1)


# -- any order -------------------------------------------------------------------------------------


class Life:
    """A consumer and everything that can happen to it.

    Each event gets a number to choose its details from.
    """

    def __init__(self, prefetch, bytes_held, *, deletes):
        queue = WorkQueue(name="q", delivery_limit=2, retry=RetryPolicy(first=timedelta(seconds=1)))
        limit = BrokerLimit(returns=4, deletes=True) if deletes else None
        self.bench = ConsumerBench(
            queue=queue, prefetch=prefetch, bytes_held=bytes_held, limit=limit
        )
        self.handed = []
        self.is_lost = self.paused = False
        self.expected = prefetch

    def messages_come(self, number):
        self.bench.put(*[bytes(size % 30) for size in range(number, 3 * number)])
        self.bench.channel.deliver(number)

    def many_messages_come(self, number):
        if self.bench.channel.is_open:
            self.messages_come(number)
            self.bench.run_until_idle()

    def cancel_is_answered(self, _number):
        self.bench.channel.answer()

    def some_are_handed_out(self, number):
        self.handed += self.bench.consumer.get(number)

    def one_is_acked(self, number):
        self._settle("ack", number)

    def one_is_dead_lettered(self, number):
        self._settle("dead_letter", number, "odd")

    def one_fails(self, number):
        self._settle("fail", number)

    def one_is_released(self, number):
        self._settle("release", number)

    def one_is_wanted_later(self, number):
        self._settle("retry_later", number, Later(seconds=5.0, reason="", blame=number % 2 == 0))

    def a_delay_is_taken(self, _number):
        self.bench.delay_writer.answer(taken=True)

    def a_delay_is_refused(self, _number):
        self.bench.delay_writer.answer(taken=False)

    def all_fail(self, _number):
        """As when a database is down."""
        self.handed += self.bench.consumer.get(1_000)
        while self.handed:
            self._settle("fail", 0)

    def all_are_released(self, _number):
        """As when a driver restarts."""
        while self.handed:
            self._settle("release", 0)

    def a_stale_one_is_acked(self, number):
        self.bench.consumer.ack(0, number)

    def back_offs_end(self, _number):
        self.bench.link.run_timers()

    def a_copy_is_taken(self, _number):
        self.bench.dead_letter_writer.answer(taken=True)

    def a_copy_is_refused(self, _number):
        self.bench.dead_letter_writer.answer(taken=False)

    def bound_changes(self, number):
        self.expected = number
        self.bench.consumer.expect(number)

    def nothing_is_expected(self, _number):
        self.bound_changes(0)

    def is_paused(self, _number):
        self.paused = True
        self.bench.consumer.pause()

    def is_resumed(self, _number):
        self.paused = False
        self.bench.consumer.resume()

    def time_passes(self, number):
        self.bench.now += 10 * number

    def reports(self, _number):
        self.bench.report()

    def channel_begins_to_close(self, _number):
        self.bench.channel.close()

    def broker_cancels(self, _number):
        self.bench.channel.cancel_by_broker()

    def channel_is_lost(self, _number):
        if not self.is_lost:
            self.bench.lose()
            self.is_lost = True

    def channel_opens(self, _number):
        if not self.is_lost and not self.bench.channel.is_open:
            self.bench.lose()
            self.is_lost = True
        if self.is_lost:
            self.bench.open()
            self.is_lost = False

    def _settle(self, verb, number, *reason):
        if self.handed:
            delivery = self.handed.pop(number % len(self.handed))
            getattr(self.bench.consumer, verb)(delivery.epoch, delivery.tag, *reason)

    def must_hold_what_the_broker_waits_for(self):
        unacked = self.bench.channel.unacked
        if not self.bench.channel.is_open and not self.is_lost:
            assert self.bench.held.messages <= len(unacked), (
                "the last of them may have come too late to be noticed"
            )
            return
        epoch = self.bench.consumer._epoch
        withheld = set() if epoch is None else set(epoch._book._finished)
        waiting = {} if epoch is None else epoch.messages.waiting
        held = [
            len(waiting[tag].body if tag in waiting else message.body)
            for tag, message in unacked.items()
            if tag not in withheld
        ]
        assert self.bench.consumer.waiting == len(waiting)
        assert self.bench.held.messages + len(waiting) == len(held)
        assert self.bench.held.size == sum(held)

    def must_go_on_working(self):
        self.channel_opens(0)
        if self.paused:
            self.is_resumed(0)
        if not self.expected:
            self.bound_changes(10)
        for turn in range(5_000):
            self.bench.run_until_idle()
            if turn < 20:
                self.all_fail(0)
            self.handed += self.bench.consumer.get(1_000)
            while self.handed:
                self._settle("ack", 0)
            self.bench.link.run_timers()
            self.bench.dead_letter_writer.answer(taken=True)
            self.bench.delay_writer.answer(taken=True)
            if not (self.bench.queue or self.bench.channel.unacked):
                break
        assert not self.bench.queue, "it takes messages again, until all are settled"
        assert self.bench.channel.prefetches
        self.must_hold_what_the_broker_waits_for()


EVENTS = [name for name in vars(Life) if not name.startswith(("_", "must_"))]


@settings(max_examples=200)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(EVENTS), st.integers(0, 40)), min_size=60, max_size=60
    ),
    prefetch=st.integers(1, 30),
    bytes_held=st.integers(20, 300),
    deletes=st.booleans(),
)
def test_in_any_order_of_events_it_holds_what_it_says_and_takes_messages_again(
    steps, prefetch, bytes_held, deletes
):
    life = Life(prefetch, bytes_held, deletes=deletes)
    for event, number in steps:
        getattr(life, event)(number)
        life.must_hold_what_the_broker_waits_for()
    life.must_go_on_working()
