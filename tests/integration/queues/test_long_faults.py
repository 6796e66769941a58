"""Faults as long as a consumer timeout, and repeated faults: no innocent message dies."""

import time
from datetime import timedelta

import pytest

from tests.support.broker import (
    CONSUMER_TIMEOUT_S,
    Desk,
    put,
    ready,
    unique,
    version,
    wait_ready,
    wait_timeouts,
)
from tests.support.proxy import Proxy
from tests.support.spout_stage import Stage
from tests.support.waiting import wait_until
from tiercel import QueueSpout
from tiercel.queues.broker.declare import WorkQueue, declare_queue
from tiercel.queues.retry import NO_WAIT

COUNT = 100


def filled(amqp_url, count=COUNT, **settings):
    queue = WorkQueue(name=unique(), retry=NO_WAIT, **settings)
    declare_queue(amqp_url, queue)
    put(amqp_url, queue.name, *[b"%d" % number for number in range(count)])
    return queue


def process_all(stage):
    """Ack each message at once until none is left."""
    while stage.counts["acked_to_broker"] < COUNT:
        stage.spout.next_tuple(stage)
        while stage.emitted:
            stage.spout.ack(stage.emitted.pop()[1])


@pytest.mark.rest
@pytest.mark.embedded
def test_a_spout_of_which_nothing_is_expected_meets_no_consumer_timeout(impatient):
    """For example over a weekend without a driver."""
    queue = filled(impatient.url)
    with Stage(impatient.url, QueueSpout(queue.name)) as stage:
        wait_until(lambda: stage.counts["delivered"])
        stage.spout.expect(0)
        wait_ready(impatient.url, queue.name, COUNT)
        wait_timeouts(2.5)
        assert stage.counts["channels"] == 1
        stage.spout.expect(COUNT)
        process_all(stage)
    assert ready(impatient.url, queue.dead) == 0


@pytest.mark.rest
@pytest.mark.embedded
def test_consumer_timeouts_bury_no_message_however_many_there_are(impatient):
    """A worker holds messages because it is not told to expect fewer.

    They are redelivered more often than they may fail.
    """
    queue = filled(impatient.url, delivery_limit=2)
    with Stage(impatient.url, QueueSpout(queue.name, delivery_limit=2)) as stage:
        wait_until(lambda: stage.counts["channels"] == 5, timeout=60)
        process_all(stage)
        assert stage.counts["delivered"] > 3 * COUNT
    assert ready(impatient.url, queue.dead) == 0


@pytest.mark.rest
@pytest.mark.embedded
def test_slow_work_meets_no_consumer_timeout(impatient):
    """For example one message in two seconds, for hours."""
    queue = filled(impatient.url, count=40)
    with Stage(impatient.url, QueueSpout(queue.name)) as stage:
        stage.spout.expect(2)
        for _ in range(40):
            ((_, msg_id),) = stage.run(1)
            began = time.monotonic()
            wait_until(lambda began=began: time.monotonic() - began > CONSUMER_TIMEOUT_S / 14)
            stage.spout.ack(msg_id)
        wait_until(lambda: stage.counts["acked_to_broker"] == 40)
        assert stage.counts["channels"] == 1
    assert ready(impatient.url, queue.name) == ready(impatient.url, queue.dead) == 0


@pytest.mark.rest
def test_a_call_that_lasts_longer_than_a_consumer_timeout_is_delivered_and_acked_once(impatient):
    """For example 40 minutes of 30: from 4.3 on, the broker lets a consumer set its timeout."""
    if version(impatient.url) < (4, 3):
        pytest.skip("before RabbitMQ 4.3 a consumer cannot say how long it holds messages")
    queue = filled(impatient.url, count=1)
    other = filled(impatient.url, count=1)
    with (
        Stage(impatient.url, QueueSpout(queue.name), held=timedelta(hours=1)) as long,
        Stage(impatient.url, QueueSpout(other.name)) as unsaid,
    ):
        ((_, msg_id),) = long.run(1)
        unsaid.run(1)
        # The broker checks timeouts periodically.
        wait_until(lambda: unsaid.counts["delivered"] > 1, 180, "the other one to be taken back")
        wait_timeouts(4 / 3)
        long.spout.ack(msg_id)
        wait_until(lambda: long.counts["acked_to_broker"] == 1)
        assert (long.counts["delivered"], long.counts["channels"]) == (1, 1)
    assert ready(impatient.url, queue.name) == ready(impatient.url, queue.dead) == 0


def test_a_connection_that_is_killed_more_often_than_a_message_may_fail_buries_none(
    amqp_url, monkeypatch
):
    monkeypatch.setattr("tiercel.queues.broker.link.backoff_s", lambda _attempt: 0.05)
    queue = filled(amqp_url)
    with Proxy(amqp_url) as wire, Desk(wire.url, queue.name, prefetch=1000) as desk:
        for _ in range(22):
            desk.take(COUNT)
            wire.cut()
        for delivery in desk.take(COUNT):
            assert delivery.delivery_count >= 22
            desk.ack(delivery)
        desk.wait_for("acked_to_broker", COUNT)
    assert ready(amqp_url, queue.name) == ready(amqp_url, queue.dead) == 0


def test_workers_that_die_more_often_than_a_message_may_fail_bury_none_and_its_own_failures_do(
    amqp_url,
):
    """A quarter of the deliveries are counted as the message's own failures, since the dead workers
    may account for the rest.
    """
    queue = filled(amqp_url, count=1)
    for _ in range(22):
        with Proxy(amqp_url) as wire:
            desk = Desk(wire.url, queue.name)
            desk.consumer.start()
            desk.next()
        assert desk.consumer.stop(timedelta(seconds=10))
    with Desk(amqp_url, queue.name) as desk:
        for _ in range(queue.delivery_limit // 4 + 1):
            assert desk.counts["dead_lettered"] == 0
            delivery = desk.next()
            desk.consumer.fail(delivery.epoch, delivery.tag, "boom")
        desk.wait_for("dead_lettered")
