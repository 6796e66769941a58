"""The built-in spout on a real broker."""

from datetime import timedelta

import pytest

from tests.support.broker import Desk, put, ready, take_all, unique, wait_ready
from tests.support.proxy import Proxy
from tests.support.spout_stage import Stage
from tests.support.waiting import wait_until
from tiercel import MessageId, QueueSpout, RetryPolicy
from tiercel.queues.errors import BrokerRefusedError

QUICK = RetryPolicy(first=timedelta(0), longest=timedelta(0))


def test_a_message_becomes_a_tuple_and_its_ack_removes_it(amqp_url):
    queue = unique()
    with Stage(amqp_url, QueueSpout(queue, "sentence string")) as stage:
        wait_until(lambda: stage.counts["channels"])
        put(amqp_url, queue, b"one two", b"three")
        assert wait_until(stage.woken.is_set)
        (values, first), (_, second) = stage.run(2)
        assert values == ["one two"]
        assert first == MessageId(task=7, epoch=1, tag=1)
        stage.spout.ack(first)
        stage.spout.release(second)
        ((values, again),) = stage.run(1)
        assert values == ["three"]
        stage.spout.ack(again)
        wait_until(lambda: stage.counts["acked_to_broker"] == 2)
    assert ready(amqp_url, queue) == 0


def test_typed_columns_come_from_json_and_bad_bodies_are_dead_lettered(amqp_url):
    queue = unique()
    with Stage(amqp_url, QueueSpout(queue, "word string, n long?")) as stage:
        wait_until(lambda: stage.counts["channels"])
        put(
            amqp_url,
            queue,
            b'{"word": "a", "n": 1}',
            b'{"word": "b", "n": "x"}',
            b"\xff",
            b'{"word": "c"}',
        )
        good = stage.run(2)
        assert [values for values, _ in good] == [["a", 1], ["c", None]]
        wait_until(lambda: stage.counts["dead_lettered"] == 2)
        for _, msg_id in good:
            stage.spout.ack(msg_id)
    reasons = sorted(
        headers["x-tiercel-reason"] for _, headers in take_all(amqp_url, f"{queue}.dead")
    )
    assert reasons == [
        "field 'n' is a long, the body has the string 'x'",
        "the body is not JSON in UTF-8: byte 0 is 0xff",
    ]
    assert len(stage.errors) == 2
    assert stage.counts["rejected"] == 2
    assert ready(amqp_url, queue) == 0


def test_values_that_the_collector_refuses_are_dead_lettered_too(amqp_url):
    queue = unique()
    with Stage(amqp_url, QueueSpout(queue)) as stage:
        wait_until(lambda: stage.counts["channels"])
        put(amqp_url, queue, b"refuse me", b"take me")
        assert stage.run(1)[0][0] == ["take me"]
        wait_until(lambda: stage.counts["dead_lettered"] == 1)


def test_a_message_that_is_rejected_is_dead_lettered_after_its_first_delivery(amqp_url):
    queue = unique()
    with Stage(amqp_url, QueueSpout(queue)) as stage:
        wait_until(lambda: stage.counts["channels"])
        put(amqp_url, queue, b"unknown customer", b"fine")
        rejected, fine = stage.run(2)
        stage.spout.reject(rejected[1], "bill[3]: Reject: there is no such customer")
        stage.spout.ack(fine[1])
        wait_until(lambda: stage.counts["dead_lettered"] == 1)
        assert stage.counts["rejected"] == 1
    ((body, headers),) = take_all(amqp_url, f"{queue}.dead")
    assert body == b"unknown customer"
    assert headers["x-tiercel-reason"] == ("rejected: bill[3]: Reject: there is no such customer")
    assert ready(amqp_url, queue) == 0


def test_a_message_that_always_fails_ends_in_the_dead_letters(amqp_url):
    queue = unique()
    with Stage(amqp_url, QueueSpout(queue, delivery_limit=2, retry=QUICK)) as stage:
        wait_until(lambda: stage.counts["channels"])
        put(amqp_url, queue, b"poison")
        for _ in range(3):
            ((_, msg_id),) = stage.run(1)
            stage.spout.fail(msg_id, "split[3]: boom")
        wait_until(lambda: stage.counts["dead_lettered"] == 1)
    ((_, headers),) = take_all(amqp_url, f"{queue}.dead")
    assert headers["x-tiercel-reason"] == "delivered 3 times, failed at last: split[3]: boom"


def test_an_outcome_of_an_older_epoch_is_dropped(amqp_url):
    queue = unique()
    with Proxy(amqp_url) as wire, Stage(wire.url, QueueSpout(queue)) as stage:
        wait_until(lambda: stage.counts["channels"])
        put(amqp_url, queue, b"a")
        ((_, before),) = stage.run(1)
        wire.cut()
        ((_, after),) = stage.run(1)
        assert (before.tag, after.tag, after.epoch) == (1, 1, before.epoch + 1)
        stage.spout.ack(before)
        wait_until(lambda: stage.counts["stale"] == 1)
    wait_ready(amqp_url, queue, 1)


def test_a_refused_login_is_raised_by_check(amqp_url):
    rest = amqp_url.rpartition("@")[2]
    with Stage(f"amqp://nobody:hush-hush@{rest}", QueueSpout(unique())) as stage:
        assert wait_until(stage.woken.is_set)
        with pytest.raises(BrokerRefusedError, match="login"):
            stage.spout.check()


def test_closing_gives_back_what_is_in_flight(amqp_url):
    queue = unique()
    with Stage(amqp_url, QueueSpout(queue)) as stage:
        wait_until(lambda: stage.counts["channels"])
        put(amqp_url, queue, *[b"%d" % number for number in range(20)])
        stage.run(5)
    wait_ready(amqp_url, queue, 20)


def test_a_spout_that_is_not_activated_takes_nothing(amqp_url):
    queue = unique()
    with Stage(amqp_url, QueueSpout(queue), activated=False) as stage:
        wait_until(lambda: stage.counts["channels"])
        put(amqp_url, queue, b"a")
        with Desk(amqp_url, queue) as other:
            other.ack(other.next())
        stage.spout.activate()
        put(amqp_url, queue, b"b")
        assert stage.run(1)[0][0] == ["b"]
        assert stage.counts["delivered"] <= 1


def test_deactivated_it_gives_back_what_nobody_opened_and_settles_the_rest(amqp_url):
    queue = unique()
    with Stage(amqp_url, QueueSpout(queue)) as stage:
        wait_until(lambda: stage.counts["channels"])
        put(amqp_url, queue, *[b"%d" % number for number in range(20)])
        (_, first), (_, second) = stage.run(2)
        stage.spout.deactivate()
        wait_ready(amqp_url, queue, 18)
        put(amqp_url, queue, b"late")
        stage.spout.ack(first)
        stage.spout.release(second)
        wait_ready(amqp_url, queue, 20)
        stage.spout.activate()
        for _, msg_id in stage.run(20):
            stage.spout.ack(msg_id)
        wait_until(lambda: stage.counts["acked_to_broker"] == 21)
        assert stage.counts["requeued"] == 0, "nobody is to blame"
    assert ready(amqp_url, queue) == 0


def test_whatever_a_grouping_raises_is_the_fault_of_that_message_alone(amqp_url):
    queue = unique()
    with Stage(amqp_url, QueueSpout(queue)) as stage:
        wait_until(lambda: stage.counts["channels"])
        put(amqp_url, queue, b"to Mars", b"to Paris")
        assert stage.run(1)[0][0] == ["to Paris"]
        wait_until(lambda: stage.counts["dead_lettered"] == 1)
    ((body, headers),) = take_all(amqp_url, f"{queue}.dead")
    assert body == b"to Mars"
    assert headers["x-tiercel-reason"] == "could not be emitted: KeyError: 'Mars'"
    assert stage.errors == ["message dead-lettered: could not be emitted: KeyError: 'Mars'"]


def test_what_is_released_is_emitted_again_from_here_and_not_by_the_broker(amqp_url):
    queue = unique()
    with Stage(amqp_url, QueueSpout(queue)) as stage:
        wait_until(lambda: stage.counts["channels"])
        put(amqp_url, queue, b"a")
        for _ in range(3):
            ((values, msg_id),) = stage.run(1)
            assert (values, msg_id.tag) == (["a"], 1)
            stage.spout.release(msg_id)
        ((_, msg_id),) = stage.run(1)
        stage.spout.ack(msg_id)
        wait_until(lambda: stage.counts["acked_to_broker"] == 1)
        assert stage.counts["delivered"] == 1
    assert ready(amqp_url, queue) == 0


def test_it_holds_a_small_multiple_of_what_is_expected(amqp_url):
    queue = unique()
    with Stage(amqp_url, QueueSpout(queue), activated=False) as stage:
        wait_until(lambda: stage.counts["channels"])
        # A consumer that began with a higher prefetch holds more messages until it has settled
        # them.
        stage.spout.expect(3)
        stage.spout.activate()
        put(amqp_url, queue, *[b"%d" % number for number in range(50)])
        wait_ready(amqp_url, queue, 44)
        emitted = stage.run(3)
        stage.spout.expect(0)
        wait_ready(amqp_url, queue, 47)
        for _, msg_id in emitted:
            stage.spout.release(msg_id)
        wait_ready(amqp_url, queue, 50)
        assert stage.counts["requeued"] == 0
