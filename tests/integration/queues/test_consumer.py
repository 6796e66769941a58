"""Consuming, acks and failures on a real broker."""

import logging
import time
from datetime import timedelta

import pytest

from tests.support.broker import (
    Desk,
    add_user,
    delete,
    plain_channel,
    put,
    ready,
    set_policy,
    take_all,
    unique,
    version,
    wait_ready,
)
from tests.support.fake_broker import held_by
from tests.support.waiting import wait_until
from tiercel.queues.broker.address import Address
from tiercel.queues.broker.connection import connected
from tiercel.queues.broker.declare import WorkQueue, declare_queue, declare_work_queue
from tiercel.queues.limits import MAX_BODY_BYTES
from tiercel.queues.retry import NO_WAIT, RetryPolicy

LONG = RetryPolicy(first=timedelta(minutes=1), longest=timedelta(minutes=1))
SECONDS = timedelta(seconds=10)


def filled(amqp_url, *bodies, **settings):
    queue = WorkQueue(name=unique(), **{"retry": NO_WAIT, **settings})
    declare_queue(amqp_url, queue)
    put(amqp_url, queue.name, *bodies)
    return queue


def numbers(count):
    return [b"%d" % number for number in range(count)]


def test_what_is_acked_in_any_order_is_gone_and_nothing_else(amqp_url):
    queue = filled(amqp_url, *numbers(50))
    with Desk(amqp_url, queue.name) as desk:
        deliveries = desk.take(50)
        assert [delivery.body for delivery in deliveries] == numbers(50)
        for delivery in sorted(deliveries, key=lambda delivery: delivery.tag * 37 % 50):
            if delivery.tag % 10:
                desk.ack(delivery)
        desk.wait_for("acked_to_broker", 45)
    assert sorted(body for body, _ in take_all(amqp_url, queue.name)) == [
        b"19",
        b"29",
        b"39",
        b"49",
        b"9",
    ]
    assert desk.counts["given_back"] == 5


def test_acks_just_before_the_end_reach_the_queue(amqp_url):
    """RabbitMQ drops acks that it has not yet passed on to a quorum queue when a channel closes. Of
    five rounds without a pause before that, three lost up to 160 acks.
    """
    for _ in range(5):
        queue = filled(amqp_url, *numbers(200))
        with Desk(amqp_url, queue.name, prefetch=200) as desk:
            deliveries = desk.take(200)
            desk.consumer.pause()
            # Not contiguous: each is an ack of its own.
            for delivery in deliveries:
                if delivery.tag % 2:
                    desk.ack(delivery)
        wait_ready(amqp_url, queue.name, 100)
        assert {int(body) % 2 for body, _ in take_all(amqp_url, queue.name)} == {1}


def test_a_consumer_declares_its_queue(amqp_url):
    queue = unique()
    with Desk(amqp_url, queue) as desk:
        desk.wait_for("channels")
        put(amqp_url, queue, b"hello")
        assert desk.next().body == b"hello"


def test_stopping_leaves_the_queue_complete(amqp_url):
    queue = filled(amqp_url, *numbers(200))
    desk = Desk(amqp_url, queue.name)
    desk.consumer.start()
    desk.take(30)
    assert desk.consumer.stop(SECONDS)
    wait_ready(amqp_url, queue.name, 200)
    assert desk.consumer.stop(SECONDS)


def test_acks_that_came_before_the_stop_are_sent(amqp_url):
    queue = filled(amqp_url, *numbers(100))
    desk = Desk(amqp_url, queue.name)
    desk.consumer.start()
    for delivery in desk.take(100)[:60]:
        desk.ack(delivery)
    assert desk.consumer.stop(SECONDS)
    assert desk.counts["acked_to_broker"] == 60
    wait_ready(amqp_url, queue.name, 40)


def test_settling_twice_is_dropped_and_counted(amqp_url):
    queue = filled(amqp_url, b"once")
    with Desk(amqp_url, queue.name) as desk:
        delivery = desk.next()
        desk.ack(delivery)
        desk.ack(delivery)
        desk.consumer.fail(delivery.epoch, delivery.tag)
        desk.consumer.ack(delivery.epoch, 999)
        desk.wait_for("stale", 3)
        put(amqp_url, queue.name, b"still alive")
        assert desk.next().epoch == delivery.epoch


def test_a_paused_consumer_holds_nothing_unopened_and_still_settles(amqp_url):
    queue = filled(amqp_url, *numbers(20))
    with Desk(amqp_url, queue.name) as desk:
        opened = desk.take(5)
        desk.consumer.pause()
        wait_ready(amqp_url, queue.name, 15)
        for delivery in opened:
            desk.ack(delivery)
        desk.wait_for("acked_to_broker", 5)
        assert desk.consumer.get(1) == []
        desk.consumer.resume()
        for delivery in desk.take(15):
            desk.ack(delivery)
        desk.wait_for("acked_to_broker", 20)
    assert ready(amqp_url, queue.name) == 0


def test_a_failed_message_comes_again_with_its_count(amqp_url):
    queue = filled(amqp_url, b"again")
    with Desk(amqp_url, queue.name) as desk:
        for count in range(3):
            delivery = desk.next()
            assert delivery.delivery_count == count
            desk.consumer.fail(delivery.epoch, delivery.tag, "not yet")
        desk.ack(desk.next())
        desk.wait_for("acked_to_broker")
    assert desk.counts["requeued"] == 3
    assert desk.counts["redelivered"] == 3


def test_a_failed_message_waits_for_its_back_off(amqp_url):
    queue = filled(amqp_url, b"later", b"next")
    with Desk(amqp_url, queue.name, retry=LONG) as desk:
        first, second = desk.take(2)
        desk.consumer.fail(first.epoch, first.tag)
        desk.ack(second)
        desk.wait_for("acked_to_broker")
        desk.consumer.ack(first.epoch, first.tag)  # no other thread may settle the held messages
        desk.wait_for("stale")
        assert desk.counts["requeued"] == 0
        assert ready(amqp_url, queue.name) == 0
    assert desk.counts["requeued"] == 1
    wait_ready(amqp_url, queue.name, 1)


def test_a_back_off_is_waited_for_by_the_broker_from_4_3_on_and_by_us_before(amqp_url):
    retry = RetryPolicy(first=timedelta(milliseconds=600), longest=timedelta(milliseconds=900))
    queue = WorkQueue(name=unique(), retry=retry)
    declare_queue(amqp_url, queue)
    with connected(Address.parse(amqp_url), "test") as connection:
        declared = declare_work_queue(connection, Address.parse(amqp_url), queue)
    assert declared.delays_retries is (version(amqp_url) >= (4, 3))
    put(amqp_url, queue.name, b"later")
    with Desk(amqp_url, queue.name, retry=retry) as desk:
        began = time.monotonic()
        for failures, wait_s in enumerate((0, 0.6, 0.9)):
            delivery = desk.next()
            assert delivery.delivery_count == failures
            assert time.monotonic() - began > wait_s - 0.1
            began = time.monotonic()
            desk.consumer.fail(delivery.epoch, delivery.tag)


def test_a_message_that_is_released_is_handed_out_from_here_and_costs_it_nothing(amqp_url):
    queue = filled(amqp_url, b"innocent")
    with Desk(amqp_url, queue.name) as desk:
        for _ in range(3):
            delivery = desk.next()
            assert (delivery.tag, delivery.delivery_count) == (1, 0)
            desk.consumer.release(delivery.epoch, delivery.tag)
        desk.ack(desk.next())
        desk.wait_for("acked_to_broker")
        assert desk.counts["delivered"] == 1
    assert ready(amqp_url, queue.name) == 0


def test_a_message_that_workers_gave_back_more_often_than_it_may_fail_is_not_dead(amqp_url):
    queue = filled(amqp_url, b"innocent", delivery_limit=2)
    for _ in range(6):
        with Desk(amqp_url, queue.name, delivery_limit=2) as desk:
            assert desk.next().body == b"innocent"
    with Desk(amqp_url, queue.name, delivery_limit=2) as desk:
        desk.consumer.fail(desk.next().epoch, 1, "once")
        desk.wait_for("requeued")
    wait_ready(amqp_url, queue.name, 1)
    assert ready(amqp_url, queue.dead) == 0


def test_what_is_expected_is_what_is_held(amqp_url):
    queue = filled(amqp_url, *numbers(400))
    with Desk(amqp_url, queue.name, prefetch=1000) as desk:
        desk.consumer.expect(5)
        wait_ready(amqp_url, queue.name, 390)
        handed = desk.take(3)
        desk.consumer.expect(100)
        wait_until(lambda: 200 <= held_by(desk.consumer).messages <= 210)
        desk.consumer.expect(0)
        wait_ready(amqp_url, queue.name, 397)
        for delivery in handed:
            desk.ack(delivery)
        desk.wait_for("acked_to_broker", 3)
        assert desk.consumer.get(1) == []
        desk.consumer.expect(50)
        assert len(desk.take(50)) == 50
        assert desk.counts["channels"] == 1


def test_counts_that_a_copy_brings_from_another_queue_do_not_bury_it(amqp_url):
    queue = filled(amqp_url)
    put(amqp_url, queue.name, b"copy", headers={"x-delivery-count": 50, "x-acquired-count": 60})
    with Desk(amqp_url, queue.name) as desk:
        delivery = desk.next()
        assert delivery.delivery_count == 0
        desk.consumer.fail(delivery.epoch, delivery.tag)
        assert desk.next().delivery_count == 1


def test_a_message_that_always_fails_is_dead_lettered_with_the_last_reason(amqp_url):
    queue = filled(amqp_url, b"poison", delivery_limit=3)
    with Desk(amqp_url, queue.name, delivery_limit=3) as desk:
        for attempt in range(4):
            delivery = desk.next()
            desk.consumer.fail(delivery.epoch, delivery.tag, f"boom {attempt}")
        desk.wait_for("dead_lettered")
    ((body, headers),) = take_all(amqp_url, queue.dead)
    assert body == b"poison"
    assert headers["x-tiercel-reason"] == "delivered 4 times, failed at last: boom 3"
    assert headers["x-tiercel-queue"] == queue.name
    assert ready(amqp_url, queue.name) == 0


def test_a_bad_message_is_dead_lettered_at_once_and_others_are_not_touched(amqp_url):
    queue = filled(amqp_url, b"good", b"bad", b"good")
    with Desk(amqp_url, queue.name) as desk:
        for delivery in desk.take(3):
            if delivery.body == b"bad":
                desk.consumer.dead_letter(delivery.epoch, delivery.tag, "not to my taste")
        desk.wait_for("dead_lettered")
    assert [body for body, _ in take_all(amqp_url, queue.name)] == [b"good", b"good"]
    ((body, headers),) = take_all(amqp_url, queue.dead)
    assert (body, headers["x-tiercel-reason"]) == (b"bad", "not to my taste")


def test_the_dead_letter_queue_is_made_again_if_it_is_missing(amqp_url):
    queue = filled(amqp_url, b"bad", b"worse")
    with Desk(amqp_url, queue.name) as desk:
        first, second = desk.take(2)
        delete(amqp_url, queue.dead)
        desk.consumer.dead_letter(first.epoch, first.tag, "bad")
        desk.wait_for("dead_lettered")
        delete(amqp_url, queue.dead)
        desk.consumer.dead_letter(second.epoch, second.tag, "worse")
        desk.wait_for("dead_lettered", 2)
    assert [body for body, _ in take_all(amqp_url, queue.dead)] == [b"worse"]


def test_a_full_dead_letter_queue_takes_each_message_once_with_its_sender(amqp_url, caplog):
    queue = WorkQueue(name=unique(), retry=NO_WAIT)
    user = Address.parse(amqp_url).user
    letters = []
    with plain_channel(amqp_url) as channel:
        full = {"x-max-length": 1, "x-overflow": "reject-publish"}
        channel.queue_declare(queue.dead, durable=True, arguments=full)
    declare_queue(amqp_url, queue)
    put(amqp_url, queue.name, *numbers(15), user_id=user)

    def moved():
        for delivery in desk.consumer.get(1000):
            desk.consumer.dead_letter(delivery.epoch, delivery.tag, "bad")
        letters.extend(take_all(amqp_url, queue.dead))
        return len(letters) >= 15

    with Desk(amqp_url, queue.name) as desk:
        wait_until(moved, 60, "all dead letters")
    assert ready(amqp_url, queue.name) == 0
    assert sorted(body for body, _ in letters) == sorted(numbers(15))
    assert {headers.get("x-tiercel-user") for _, headers in letters} == {user}
    refusals = [each for each in caplog.records if "did not take it" in each.getMessage()]
    assert [each.levelname for each in refusals if each.levelno > logging.DEBUG] == ["WARNING"]


def test_a_consumer_with_a_long_name_consumes(amqp_url):
    queue = filled(amqp_url, b"1")
    with Desk(amqp_url, queue.name, name=f"tiercel {'é' * 150} sentences-0") as desk:
        desk.ack(desk.next())


def test_under_a_policy_with_a_delivery_limit_the_last_failure_gives_the_reason(
    shared_rabbitmq, amqp_url, management_url, caplog
):
    queue = filled(amqp_url, b"bad")
    set_policy(shared_rabbitmq, queue.name, f"^{queue.name}$", {"delivery-limit": 3})
    failures = 0
    with Desk(amqp_url, queue.name, management_url=management_url) as desk:
        while not desk.counts["dead_lettered"]:
            for delivery in desk.consumer.get(10):
                failures += 1
                desk.consumer.fail(delivery.epoch, delivery.tag, "it is bad")
            time.sleep(0.01)
    [(body, headers)] = take_all(amqp_url, queue.dead)
    assert (body, failures) == (b"bad", 4)
    assert headers["x-tiercel-reason"] == "delivered 4 times, failed at last: it is bad"
    [said] = [each for each in caplog.messages if "come back more than 3 times" in each]
    assert f"pattern of policy {queue.name!r}" in said


def test_who_may_not_configure_dead_letters_into_the_queue_that_exists(shared_rabbitmq):
    url, user = shared_rabbitmq.url, unique("user")
    queue = filled(url, b"bad")
    add_user(shared_rabbitmq, user, configure="^$")
    theirs = f"amqp://{user}:{user}@{url.rpartition('@')[2]}"
    with Desk(theirs, queue.name, declare=False) as desk:
        delivery = desk.next()
        desk.consumer.dead_letter(delivery.epoch, delivery.tag, "bad")
        desk.wait_for("dead_lettered")
    assert [body for body, _ in take_all(url, queue.dead)] == [b"bad"]


def test_sixteen_mebibytes_pass_and_one_byte_more_is_dead_lettered_with_its_size(amqp_url, caplog):
    queue = filled(amqp_url, bytes(MAX_BODY_BYTES), bytes(MAX_BODY_BYTES + 1), b"small")
    with Desk(amqp_url, queue.name) as desk:
        for delivery in desk.take(2):
            desk.ack(delivery)
        desk.wait_for("dead_lettered")
    ((body, headers),) = take_all(amqp_url, queue.dead)
    assert len(body) == MAX_BODY_BYTES + 1
    assert str(MAX_BODY_BYTES + 1) in headers["x-tiercel-reason"]
    assert desk.counts["acked_to_broker"] == 2
    assert desk.counts["rejected"] == 1
    (said,) = [one for one in caplog.records if getattr(one, "event", "") == "body_refused"]
    assert queue.name in said.getMessage()
    assert str(MAX_BODY_BYTES + 1) in said.getMessage()


def test_a_broker_consumer_that_its_bytes_hold_up_asks_for_more_when_back_offs_have_settled_them(
    amqp_url,
):
    retry = RetryPolicy(first=timedelta(milliseconds=300), longest=timedelta(milliseconds=300))
    queue = filled(amqp_url, *[bytes(20_000)] * 30, retry=retry)
    with Desk(amqp_url, queue.name, retry=retry, prefetch=1000, bytes_held=200_000) as desk:
        wait_until(
            lambda: (
                held_by(desk.consumer).size > 200_000
                and desk.consumer._epoch.broker_consumer.prefetch == 1
            )
        )
        first = desk.consumer.get(1000)
        assert len(first) < 30
        for delivery in first:
            desk.consumer.fail(delivery.epoch, delivery.tag, "the database is away")
        for _ in range(30):
            desk.ack(desk.next())
        desk.wait_for("acked_to_broker", 30)
    assert ready(amqp_url, queue.name) == 0


def test_bytes_held_stay_near_their_bound_and_everything_comes(amqp_url):
    queue = filled(amqp_url, *[b"%03d" % number + bytes(1000) for number in range(100)])
    most = 0
    seen = set()
    with Desk(amqp_url, queue.name, bytes_held=5_000) as desk:
        while len(seen) < 100:
            delivery = desk.next()
            seen.add(delivery.body[:3])
            most = max(most, held_by(desk.consumer).size)
            desk.ack(delivery)
        desk.wait_for("acked_to_broker", 100)
    assert most <= 12_000


def test_headers_count_in_the_bytes_that_are_held(amqp_url):
    """10,000 messages without a body but with 118 KiB of headers each killed a spout worker of 1
    GiB at each start.
    """
    queue = filled(amqp_url)
    put(amqp_url, queue.name, *[b""] * 100, headers={"large": "x" * 100_000})
    most = seen = 0
    with Desk(amqp_url, queue.name, bytes_held=500_000) as desk:
        while seen < 100:
            delivery = desk.next()
            seen += 1
            assert delivery.size > 100_000
            most = max(most, held_by(desk.consumer).size)
            desk.ack(delivery)
        desk.wait_for("acked_to_broker", 100)
        wait_until(lambda: held_by(desk.consumer).size == 0, 10, "everything to be let go")
    assert 300_000 < most <= 1_200_000


def test_a_sender_cannot_confuse_us_with_a_delivery_count_of_its_own(amqp_url):
    name = unique()
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(name, durable=True)
    put(amqp_url, name, b"sly", headers={"x-delivery-count": "many"})
    with Desk(amqp_url, name) as desk:
        delivery = desk.next()
        assert delivery.delivery_count == 0
        desk.consumer.fail(delivery.epoch, delivery.tag)
        desk.ack(desk.next())
        desk.wait_for("acked_to_broker")


@pytest.mark.parametrize("count", [0, 1, -5, 1000])
def test_a_count_of_a_former_queue_keeps_no_poison_alive_in_a_classic_queue(amqp_url, count):
    name = unique()
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(name, durable=True)
    put(amqp_url, name, b"poison", headers={"x-delivery-count": count})
    with Desk(amqp_url, name, delivery_limit=3) as desk:
        for _ in range(4):
            delivery = desk.next()
            desk.consumer.fail(delivery.epoch, delivery.tag, "always")
        desk.wait_for("dead_lettered")


def test_a_foreign_classic_queue_is_used_as_it_is_and_loses_nothing(amqp_url):
    name = unique()
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(name, durable=True)
    put(amqp_url, name, b"good", b"bad", b"unlucky")
    with Desk(amqp_url, name) as desk:
        for delivery in desk.take(3):
            if delivery.body == b"good":
                desk.ack(delivery)
            elif delivery.body == b"bad":
                desk.consumer.dead_letter(delivery.epoch, delivery.tag, "bad")
            else:
                desk.consumer.fail(delivery.epoch, delivery.tag, "unlucky")
        again = desk.next()
        assert (again.body, again.delivery_count) == (b"unlucky", None)
        desk.wait_for("dead_lettered")
        desk.ack(again)
    assert ready(amqp_url, name) == 0
    assert [body for body, _ in take_all(amqp_url, f"{name}.dead")] == [b"bad"]


def test_the_poison_of_a_classic_queue_ends_in_the_dead_letters_too(amqp_url):
    name = unique()
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(name, durable=True)
    put(amqp_url, name, b"poison", b"good")
    with Desk(amqp_url, name, delivery_limit=3) as desk:
        failed = 0
        while failed < 4:
            delivery = desk.next()
            if delivery.body == b"good":
                desk.ack(delivery)
            else:
                failed += 1
                desk.consumer.fail(delivery.epoch, delivery.tag, f"boom {failed}")
        desk.wait_for("dead_lettered")
        desk.wait_for("acked_to_broker")
    ((body, headers),) = take_all(amqp_url, f"{name}.dead")
    assert (body, headers["x-tiercel-reason"]) == (
        b"poison",
        "failed 4 times here, at last: boom 4",
    )
    assert ready(amqp_url, name) == 0


@pytest.mark.parametrize("declare", [True, False])
def test_a_foreign_queue_that_would_delete_what_fails_too_often_loses_nothing(amqp_url, declare):
    name = unique()
    bodies = numbers(10)
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(
            name, durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 5}
        )
    put(amqp_url, name, *bodies)
    with Desk(amqp_url, name, declare=declare) as desk:
        while desk.counts["dead_lettered"] < 10:
            for delivery in desk.consumer.get(10):
                desk.consumer.fail(delivery.epoch, delivery.tag, "not yet")
    dead = take_all(amqp_url, f"{name}.dead")
    assert sorted(body for body, _ in dead) == bodies
    assert {headers["x-tiercel-reason"] for _, headers in dead} == {
        "delivered 5 times, failed at last: not yet"
    }
    assert ready(amqp_url, name) == 0


def test_a_foreign_queue_that_would_delete_what_comes_back_too_often_loses_nothing(amqp_url):
    name = unique()
    bodies = numbers(10)
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(
            name, durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 3}
        )
    put(amqp_url, name, *bodies)
    for _ in range(6):
        desk = Desk(amqp_url, name)
        desk.consumer.start()
        wait_until(
            lambda desk=desk: (
                desk.consumer.get(1)
                or desk.counts["dead_lettered"] == 10
                or not ready(amqp_url, name)
            )
        )
        # unlike a nack, this counts as a failure on RabbitMQ 4.3 too
        desk.on_channel(lambda channel: channel.close())
        assert desk.consumer.stop(SECONDS)
    with Desk(amqp_url, name) as desk:
        wait_until(lambda: ready(amqp_url, f"{name}.dead") == 10)
    assert sorted(body for body, _ in take_all(amqp_url, f"{name}.dead")) == bodies
    assert ready(amqp_url, name) == 0


def test_a_foreign_queue_that_deletes_all_that_comes_back_is_refused_in_one_line(amqp_url):
    name = unique()
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(
            name, durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 0}
        )
    with Desk(amqp_url, name) as desk:
        error = wait_until(desk.consumer.error)
    assert "RabbitMQ deletes each message that comes back; declare the queue with" in str(error)
