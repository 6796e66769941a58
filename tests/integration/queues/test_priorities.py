"""An urgent message is not stuck behind messages that the spout holds or has in flight."""

from __future__ import annotations

import pytest

from tests.support.broker import delete, plain_channel, put, unique, version, wait_ready
from tests.support.spout_stage import Stage
from tests.support.waiting import wait_until
from tiercel import QueueSpout, WorkQueue, declare_queue

HIGH = 9


@pytest.fixture
def queue(amqp_url):
    """A queue with priorities: a quorum queue if the broker supports that, else a classic one."""
    name = unique("urgent")
    if version(amqp_url) >= (4, 0):
        declare_queue(amqp_url, WorkQueue(name=name))
    else:
        with plain_channel(amqp_url) as channel:
            channel.queue_declare(name, durable=True, arguments={"x-max-priority": 10})
    yield name
    for each in (name, f"{name}.dead"):
        delete(amqp_url, each)


def bodies(found):
    return [values[0] for values, _ in found]


def test_it_passes_those_that_wait_in_the_spout(amqp_url, queue):
    put(amqp_url, queue, *(b"%d" % number for number in range(50)))
    with Stage(amqp_url, QueueSpout(queue, prefetch=100, properties=["priority"])) as stage:
        found = stage.run(5)
        wait_until(lambda: stage.counts["delivered"] == 50)
        put(amqp_url, queue, b"urgent", priority=HIGH)
        wait_until(lambda: stage.counts["delivered"] == 51)
        [(values, msg_id)] = stage.run(1)
        assert values == ["urgent", HIGH]
        found += [(values, msg_id), *stage.run(45)]
        assert bodies(found)[6:] == [str(number) for number in range(5, 50)]
        stage.spout.ack_all([msg_id for _, msg_id in found])
    wait_ready(amqp_url, queue, 0)


def test_it_comes_next_where_all_that_may_be_open_is_in_flight(amqp_url, queue):
    put(amqp_url, queue, *(b"%d" % number for number in range(100)))
    with Stage(amqp_url, QueueSpout(queue, prefetch=16)) as stage:
        flying = []
        for _ in range(16):
            flying += stage.run(1)
        put(amqp_url, queue, b"urgent", priority=HIGH)
        wait_ready(amqp_url, queue, 85)
        # A finished message makes room for one more, the urgent one; a quorum queue lets one
        # waiting message pass for every two.
        emitted = []
        while "urgent" not in bodies(emitted):
            stage.spout.ack(flying.pop(0)[1])
            emitted += stage.run(1)
        assert len(emitted) <= 3
        stage.spout.ack_all([msg_id for _, msg_id in [*flying, *emitted]])


def test_it_passes_them_again_when_it_failed(amqp_url, queue):
    put(amqp_url, queue, *(b"%d" % number for number in range(50)))
    put(amqp_url, queue, b"urgent", priority=HIGH)
    with Stage(amqp_url, QueueSpout(queue, prefetch=100)) as stage:
        found = stage.run(1)
        while bodies(found)[-1] != "urgent":
            found += stage.run(1)
        wait_until(lambda: stage.counts["delivered"] == 51)
        stage.spout.fail(found.pop()[1], "no")
        wait_until(lambda: stage.counts["delivered"] == 52)
        again = stage.run(1)
        assert bodies(again) == ["urgent"]
        stage.spout.ack_all([msg_id for _, msg_id in [*found, *again]])
