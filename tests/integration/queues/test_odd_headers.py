"""Messages with headers that no client library writes, sent as raw frames through a real broker.

RabbitMQ 3.10 and 4.3 pass on all of ``tests.support.raw.ODD`` except REFUSED, for which they close
the publisher's connection with INTERNAL_ERROR.
"""

import logging
from collections import Counter

import pytest
from pika.exceptions import ConnectionClosedByBroker

from tests.support.broker import Desk, plain_channel, put, ready, take_raw, unique, wait_ready
from tests.support.raw import ODD, Raw, properties
from tests.support.spout_stage import Stage
from tests.support.waiting import wait_until
from tiercel import QueueSpout
from tiercel.queues.broker.declare import WorkQueue, declare_queue
from tiercel.queues.broker.frames import Headers
from tiercel.queues.publishing import dead_letters
from tiercel.queues.retry import NO_WAIT

REFUSED = ("not a number", "infinite", "short of type U", "type unknown", "cut off")
# Headers that broke the connection over and over, until all its messages were dead-lettered, or
# that broke the commands.
HARMFUL = ("timestamp in milliseconds", "array 2,000 deep", "array 600 deep", "name not UTF-8")
PASSED = [name for name in ODD if name not in REFUSED]


def put_odd(amqp_url, queue, *odd):
    """Publish messages with these headers; the bodies are the headers' names."""
    with plain_channel(amqp_url) as channel:
        for name in odd:
            channel.basic_publish(
                "", queue, name.encode(), Raw(properties(ODD[name])), mandatory=True
            )


@pytest.mark.parametrize("odd", REFUSED)
def test_rabbitmq_refuses_these_itself(amqp_url, odd):
    queue = unique()
    declare_queue(amqp_url, WorkQueue(name=queue))
    with pytest.raises(ConnectionClosedByBroker, match="INTERNAL_ERROR"):
        put_odd(amqp_url, queue, odd)
    assert ready(amqp_url, queue) == 0


@pytest.mark.parametrize("odd", [[each] for each in HARMFUL] + [PASSED], ids=[*HARMFUL, "all"])
def test_messages_with_odd_headers_and_their_neighbours_are_processed_once_each(amqp_url, odd):
    queue = unique()
    declare_queue(amqp_url, WorkQueue(name=queue))
    good = [b"good %d" % number for number in range(20)]
    put(amqp_url, queue, *good[:10])
    put_odd(amqp_url, queue, *odd)
    put(amqp_url, queue, *good[10:])
    executed = Counter()
    with Stage(amqp_url, QueueSpout(queue)) as stage:
        for (body,), msg_id in stage.run(20 + len(odd)):
            executed[body] += 1
            stage.spout.ack(msg_id)
        wait_until(lambda: stage.counts["acked_to_broker"] == 20 + len(odd))
        assert stage.emitted == []
    assert executed == Counter([*(body.decode() for body in good), *odd])
    assert stage.counts["channels"] == 1
    assert stage.counts["redelivered"] == stage.counts["dead_lettered"] == 0
    assert (ready(amqp_url, queue), ready(amqp_url, f"{queue}.dead")) == (0, 0)


@pytest.mark.rest
def test_those_with_a_bad_body_are_dead_lettered_seen_and_put_back(amqp_url, caplog):
    queue = unique()
    with Stage(amqp_url, QueueSpout(queue, "n long")) as stage:
        wait_until(lambda: stage.counts["channels"])
        put_odd(amqp_url, queue, *PASSED)
        put(amqp_url, queue, b'{"n": 1}')
        ((values, msg_id),) = stage.run(1)
        stage.spout.ack(msg_id)
        wait_until(
            lambda: (
                stage.counts["acked_to_broker"] == 1
                and stage.counts["dead_lettered"] == len(PASSED)
            )
        )
    assert values == [1]
    assert stage.counts["channels"] == 1
    wait_ready(amqp_url, f"{queue}.dead", len(PASSED))
    for _ in range(3):
        letters = {letter.preview: letter for letter in dead_letters.show(amqp_url, queue, 100)}
        assert set(letters) == set(PASSED)
    for odd, letter in letters.items():
        assert letter.reason.startswith("the body is not JSON")
        assert ("left out: too large" in letter.reason) == (odd == "as large as a frame")
        assert dead_letters.look_for(amqp_url, queue, letter.id).preview == odd
    with caplog.at_level(logging.WARNING):
        chosen = [letter.id for letter in letters.values()]
        assert len(dead_letters.requeue_chosen(amqp_url, queue, chosen)) == len(PASSED)
    wait_ready(amqp_url, queue, len(PASSED))
    for body, headers in take_raw(amqp_url, queue):
        odd = body.decode()
        if odd != "as large as a frame" and "liar" not in odd:
            assert said(headers) == said(Headers(ODD[odd])), odd
    assert not caplog.records


def test_those_that_always_fail_are_dead_lettered_by_whoever_counts_first_and_put_back(amqp_url):
    work = WorkQueue(name=unique(), retry=NO_WAIT, delivery_limit=2)
    declare_queue(amqp_url, work)
    put_odd(amqp_url, work.name, *PASSED)
    executed = Counter()
    with Desk(amqp_url, work.name, delivery_limit=2) as desk:

        def all_dead():
            for delivery in desk.consumer.get(100):
                executed[delivery.body.decode()] += 1
                desk.consumer.fail(delivery.epoch, delivery.tag, "too odd")
            return ready(amqp_url, work.dead) == len(PASSED)

        wait_until(all_dead)
        assert desk.counts["channels"] <= 1
    assert executed == dict.fromkeys(PASSED, 3)
    letters = dead_letters.show(amqp_url, work.name, 100)
    for letter in letters:
        assert letter.reason.startswith(
            ("delivered 3 times, failed at last: too odd", "delivery_limit: delivered too often")
        )
    assert dead_letters.requeue(amqp_url, work.name) == len(PASSED)
    assert sorted(body.decode() for body, _ in take_raw(amqp_url, work.name)) == sorted(PASSED)


def said(headers):
    """Return what the sender wrote, in a comparable form: the broker sorts, and NaN differs from
    itself.
    """
    return repr(
        sorted((name, value) for name, value in headers.items() if not name.startswith("x-"))
    )
