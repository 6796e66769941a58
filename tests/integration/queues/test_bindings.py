"""A spout's queue is bound to exchanges, which are declared if they are missing."""

from __future__ import annotations

import logging

import pytest
from pika import BasicProperties
from pika.exceptions import ChannelClosedByBroker, UnroutableError

from tests.support.broker import plain_channel, unique
from tests.support.spout_stage import Stage
from tests.support.waiting import wait_until
from tiercel import BrokerRefusedError, ExchangeMissingError, QueueSpout, WorkQueue, declare_queue
from tiercel.queues.broker.declare import Binding, find_exchange


@pytest.fixture
def name(amqp_url):
    """Return a name for an exchange and a queue."""
    name = unique("events")
    yield name
    with plain_channel(amqp_url) as channel:
        channel.exchange_delete(name)
        for queue in (name, f"{name}.dead"):
            channel.queue_delete(queue)


def declared(amqp_url, name, *bindings):
    declare_queue(amqp_url, WorkQueue(name=name, bindings=tuple(map(Binding.of, bindings))))


def published(amqp_url, name, *keys, headers=None):
    """Publish a message with each key, then get the messages that reached the queue."""
    with plain_channel(amqp_url) as channel:
        for key in keys:
            body = key.encode() or b"none"
            channel.basic_publish(name, key, body, BasicProperties(headers=headers))
        channel.basic_publish("", name, b"end", mandatory=True)
        found = []
        while b"end" not in found:
            _, _, body = channel.basic_get(name, auto_ack=True)
            if body is not None:
                found.append(body)
    return found[:-1]


@pytest.mark.parametrize(
    ("binding", "keys", "got"),
    [
        (["order.*"], ["order.new", "order.new.big", "invoice"], [b"order.new"]),
        (["order.#"], ["order.new", "order.new.big", "invoice"], [b"order.new", b"order.new.big"]),
        (["order"], ["order", "order.new"], [b"order"]),
        (["order", "direct"], ["order", "order.new"], [b"order"]),
        ([], ["order", "", "invoice"], [b"order", b"none", b"invoice"]),
    ],
)
def test_the_queue_gets_what_its_binding_says(amqp_url, name, binding, keys, got):
    declared(amqp_url, name, [name, *binding])
    assert published(amqp_url, name, *keys) == got


def test_a_headers_exchange_looks_at_headers(amqp_url, name):
    declared(amqp_url, name, (name, {"x-match": "any", "format": "pdf", "colour": True}))
    assert published(amqp_url, name, "a", headers={"format": "pdf"}) == [b"a"]
    assert published(amqp_url, name, "b", headers={"colour": True}) == [b"b"]
    assert published(amqp_url, name, "c", headers={"format": "png"}) == []


def test_several_bindings_and_the_same_ones_again(amqp_url, name):
    for _ in range(2):
        declared(amqp_url, name, (name, "a.*"), (name, "b.*"))
    assert published(amqp_url, name, "a.1", "b.1", "c.1") == [b"a.1", b"b.1"]


def test_a_spout_takes_what_is_published_to_the_exchange_and_binds_again_when_it_was_deleted(
    amqp_url, name
):
    spout = QueueSpout(name, properties=["routing_key"], bindings=[(name, "order.*")])
    with Stage(amqp_url, spout) as stage:
        wait_until(lambda: routed(amqp_url, name, "order.1"))
        assert stage.run(1)[0][0] == ["order.1", "order.1"]
        with plain_channel(amqp_url) as channel:
            channel.queue_delete(name)
        wait_until(lambda: routed(amqp_url, name, "order.2"))
        assert stage.run(1)[0][0] == ["order.2", "order.2"]


def routed(amqp_url, exchange, key):
    """Return True if a queue has got the message."""
    try:
        with plain_channel(amqp_url) as channel:
            channel.basic_publish(exchange, key, key.encode(), mandatory=True)
    except (UnroutableError, ChannelClosedByBroker):
        return False
    return True


def test_an_exchange_that_is_there_is_used_as_it_is_and_a_misfit_is_said(amqp_url, name, caplog):
    with plain_channel(amqp_url) as channel:
        channel.exchange_declare(name, "direct", durable=False, auto_delete=False)
    with caplog.at_level(logging.WARNING):
        declared(amqp_url, name, (name, "order.*"))
    assert published(amqp_url, name, "order.*", "order.new") == [b"order.*"]
    [record] = [each for each in caplog.records if each.name.endswith("declare")]
    assert record.getMessage() == (
        f"queue {name} is bound to exchange {name}, which is there already: a direct exchange "
        "knows no patterns, and takes the key as it is"
    )


def test_a_queue_that_is_there_is_bound_and_used_as_it_is(amqp_url, name):
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(name, durable=True)
    declared(amqp_url, name, (name, "a"))
    assert published(amqp_url, name, "a") == [b"a"]


def test_what_cannot_be_bound_is_one_line(amqp_url, name):
    with pytest.raises(ExchangeMissingError, match=r"no exchange 'amq\.none'"):
        declared(amqp_url, name, ("amq.none", "a"))
    with pytest.raises(BrokerRefusedError, match=r"unknown exchange type|x-no-such-type"):
        declared(amqp_url, name, (name, "a", "x-no-such-type"))
    with pytest.raises(BrokerRefusedError, match="x-match"):
        declared(amqp_url, name, (name, {"x-match": "perhaps"}))
    with pytest.raises(ExchangeMissingError, match="no exchange 'no-such'"):
        find_exchange(amqp_url, "no-such")


def test_a_spout_that_cannot_bind_says_so(amqp_url, name):
    spout = QueueSpout(name, bindings=[("amq.none", "a")])
    with Stage(amqp_url, spout):

        def refused():
            try:
                spout.check()
            except ExchangeMissingError as error:
                return str(error)
            return ""

        said = wait_until(refused)
    assert "no exchange 'amq.none'" in said
    assert "declare it first or correct the name" in said
