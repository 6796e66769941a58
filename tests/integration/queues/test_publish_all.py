"""Messages with their own targets and properties: each is confirmed, or reported as refused."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.support.broker import plain_channel, take_all, unique
from tiercel import Publisher, WorkQueue, declare_queue
from tiercel.queues.errors import PublishRefusedError, QueuesError
from tiercel.queues.message.writing import OutgoingMessage


@pytest.fixture
def queue(amqp_url):
    name = unique()
    declare_queue(amqp_url, WorkQueue(name=name))
    return name


@pytest.fixture
def exchange(amqp_url, queue):
    name = unique("exchange")
    with plain_channel(amqp_url) as channel:
        channel.exchange_declare(name, "direct")
        channel.queue_bind(queue, name, "new")
    return name


@pytest.fixture
def publisher(amqp_url):
    with Publisher(amqp_url, timedelta(seconds=5)) as publisher:
        yield publisher


def outgoing(routing_key, body=b"a", exchange="", **more):
    return OutgoingMessage(body=body, routing_key=routing_key, exchange=exchange, **more)


def test_a_message_goes_by_its_exchange_and_routing_key(amqp_url, queue, exchange, publisher):
    assert publisher.publish_all([outgoing("new", exchange=exchange), outgoing(queue)]) == 2
    assert [body for body, _ in take_all(amqp_url, queue)] == [b"a", b"a"]


def test_a_message_that_no_queue_is_bound_for_is_an_error(exchange, publisher):
    with pytest.raises(PublishRefusedError, match="leads to no queue for the routing key 'old'"):
        publisher.publish_all([outgoing("old", exchange=exchange)])


def test_without_mandatory_it_is_dropped(exchange, publisher):
    assert publisher.publish_all([outgoing("old", exchange=exchange, mandatory=False)]) == 1


def test_messages_that_are_refused_are_told_and_their_neighbours_arrive(
    amqp_url, queue, exchange, publisher
):
    refused = []
    messages = [outgoing(key, key.encode(), exchange) for key in ("new", "old", "new", "odd")]
    publisher.publish_all(messages, on_refused=lambda message, _: refused.append(message.body))
    assert sorted(refused) == [b"odd", b"old"]
    assert [body for body, _ in take_all(amqp_url, queue)] == [b"new", b"new"]


def test_an_exchange_that_is_missing_is_an_error_also_for_many_messages(publisher):
    with pytest.raises(QueuesError, match="no exchange 'no-such'"):
        publisher.publish_all([outgoing("a", exchange="no-such") for _ in range(20)])
