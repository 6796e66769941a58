"""All properties of a message that a spout emits besides its body, from a real broker."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from tests.support.broker import delete, plain_channel, put, unique, wait_ready
from tests.support.raw import ODD, Raw, properties
from tests.support.spout_stage import Stage
from tests.support.waiting import wait_until
from tiercel import QueueSpout, Schema, WorkQueue, declare_queue
from tiercel.queues.message.properties import PROPERTIES
from tiercel.queues.message.writing import write_properties
from tiercel.queues.publishing import dead_letters
from tiercel.queues.retry import NO_WAIT

ALL = list(PROPERTIES)
GIVEN = {
    "message_id": "m-1",
    "correlation_id": "c-1",
    "reply_to": "answers",
    "content_type": "text/plain",
    "content_encoding": "identity",
    "type": "order",
    "app_id": "shop",
    "priority": 3,
    "timestamp": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "headers": {"tenant": "grüße", "n": 7, "nested": {"a": [1, None]}},
}
TEXTS = {"tenant": "grüße", "n": "7", "nested": '{"a":[1,null]}'}


@pytest.fixture
def queue(amqp_url):
    name = unique("orders")
    declare_queue(amqp_url, WorkQueue(name=name))
    yield name
    for each in (name, f"{name}.dead"):
        delete(amqp_url, each)


@contextmanager
def exchange(amqp_url, type_="topic"):
    name = unique(type_)
    with plain_channel(amqp_url) as channel:
        channel.exchange_declare(name, type_, durable=True)
    yield name
    with plain_channel(amqp_url) as channel:
        channel.exchange_delete(name)


def publish(amqp_url, where, routing_key, body=b"body", **values):
    with plain_channel(amqp_url) as channel:
        channel.basic_publish(
            where, routing_key, body, write_properties(values), mandatory=bool(body)
        )


def told(spout, emitted):
    """Return the values of the properties by name."""
    (_, *values), _ = emitted
    return dict(zip(spout.properties.columns, values, strict=True))


def test_each_property_is_a_typed_column_behind_the_body_s(amqp_url, queue):
    spout = QueueSpout(queue, properties=ALL, retry=NO_WAIT)
    user = amqp_url.partition("//")[2].partition(":")[0]
    publish(amqp_url, "", queue, user_id=user, **GIVEN)
    with Stage(amqp_url, spout) as stage:
        [first] = stage.run(1)
        Schema.parse(spout.output_fields).check(first[0])
        assert told(spout, first) == GIVEN | {
            "user_id": user,
            "headers": TEXTS,
            "exchange": "",
            "routing_key": queue,
            "queue": queue,
            "delivery_count": 0,
            "redelivered": False,
        }
        spout.fail(first[1], "once more")
        [again] = stage.run(1)
        assert told(spout, again) == told(spout, first) | {"delivery_count": 1, "redelivered": True}
        spout.ack(again[1])


def test_a_message_without_properties_has_nulls_and_no_headers(amqp_url, queue):
    spout = QueueSpout(queue, properties=["message_id", "headers", "priority", "timestamp"])
    with plain_channel(amqp_url) as channel:
        channel.basic_publish("", queue, b"bare", mandatory=True)
    with Stage(amqp_url, spout) as stage:
        [(values, msg_id)] = stage.run(1)
        assert values == ["bare", None, {}, None, None]
        spout.ack(msg_id)


def test_the_exchange_and_the_routing_key_are_those_of_the_publisher(amqp_url, queue):
    spout = QueueSpout(queue, properties=["exchange", "routing_key"])
    with exchange(amqp_url, "fanout") as name:
        with plain_channel(amqp_url) as channel:
            channel.queue_bind(queue, name)
        publish(amqp_url, name, "order.new")
        with plain_channel(amqp_url) as channel:
            channel.basic_publish(name, b"order.\xff", b"odd", mandatory=True)
        with Stage(amqp_url, spout) as stage:
            found = stage.run(2)
            assert [values for values, _ in found] == [
                ["body", name, "order.new"],
                ["odd", name, "order.\\xff"],
            ]
            spout.ack_all([msg_id for _, msg_id in found])


def test_a_property_without_a_true_value_harms_its_message_alone(amqp_url, queue):
    spout = QueueSpout(queue, properties=["timestamp"])
    publish(amqp_url, "", queue, b"before", timestamp=5)
    publish(amqp_url, "", queue, b"in milliseconds", timestamp=1_700_000_000_000)
    publish(amqp_url, "", queue, b"after")
    with Stage(amqp_url, spout) as stage:
        found = stage.run(2)
        assert [values[0] for values, _ in found] == ["before", "after"]
        spout.ack_all([msg_id for _, msg_id in found])
        wait_until(lambda: stage.counts["dead_lettered"] == 1)
    [letter] = dead_letters.show(amqp_url, queue)
    assert letter.body == b"in milliseconds"
    assert letter.reason == (
        "its timestamp 1700000000000 is after the year 9999: AMQP counts seconds since 1970"
    )


def test_odd_headers_are_told_as_text_or_harm_their_message_alone(amqp_url, queue):
    spout = QueueSpout(queue, properties=["headers"])
    refused = ("not a number", "infinite", "short of type U", "type unknown", "cut off")
    passed = [name for name in ODD if name not in refused]
    with plain_channel(amqp_url) as channel:
        for name in passed:
            channel.basic_publish(
                "", queue, name.encode(), Raw(properties(ODD[name])), mandatory=True
            )
    put(amqp_url, queue, b"last", headers={"fine": True})
    with Stage(amqp_url, spout) as stage:
        found = []
        while not found or found[-1][0][0] != "last":
            found += stage.run(1)
        for values, _ in found:
            Schema.parse(spout.output_fields).check(values)
        assert len(found) == len(passed) + 1
        assert found[-1][0] == ["last", {"fine": "true"}]
        spout.ack_all([msg_id for _, msg_id in found])


def test_dead_letters_keep_the_properties_and_are_like_new_when_they_are_put_back(amqp_url, queue):
    spout = QueueSpout(queue, properties=ALL, delivery_limit=1, retry=NO_WAIT)
    with exchange(amqp_url) as name:
        with plain_channel(amqp_url) as channel:
            channel.queue_bind(queue, name, "order.*")
        publish(amqp_url, name, "order.new", **GIVEN)
        with Stage(amqp_url, spout) as stage:
            [first] = stage.run(1)
            for life in range(2):
                # Once in its first life, and once after it was put back.
                emitted = first if life == 0 else stage.run(1)[0]
                spout.fail(emitted[1], "no")
                spout.fail(stage.run(1)[0][1], "no")
                wait_until(lambda life=life: stage.counts["dead_lettered"] == life + 1)
                wait_ready(amqp_url, f"{queue}.dead", 1)
                assert dead_letters.requeue(amqp_url, queue) == 1
            [again] = stage.run(1)
            assert told(spout, again) == told(spout, first)
            assert told(spout, again)["routing_key"] == "order.new"
            spout.ack(again[1])


def test_a_message_that_is_wanted_later_keeps_them_and_has_no_others(amqp_url, queue):
    spout = QueueSpout(queue, properties=ALL, retry=NO_WAIT)
    with exchange(amqp_url) as name:
        with plain_channel(amqp_url) as channel:
            channel.queue_bind(queue, name, "order.*")
        publish(amqp_url, name, "order.new", **GIVEN)
        with Stage(amqp_url, spout) as stage:
            [first] = stage.run(1)
            again = first
            for _ in range(2):
                spout.retry_later(again[1], 0.1, "busy", blame=True)
                [again] = stage.run(1)
            assert told(spout, again) == told(spout, first)
            assert told(spout, again)["routing_key"] == "order.new"
            spout.ack(again[1])


def test_dead_letters_of_the_broker_keep_them_too(amqp_url):
    queue = unique("limited")
    with plain_channel(amqp_url) as channel, exchange(amqp_url) as name:
        channel.queue_declare(f"{queue}.dead", durable=True, arguments={"x-queue-type": "quorum"})
        limited = {"x-queue-type": "quorum", "x-delivery-limit": 0, "x-dead-letter-exchange": ""}
        limited["x-dead-letter-routing-key"] = f"{queue}.dead"
        channel.queue_declare(queue, durable=True, arguments=limited)
        channel.queue_bind(queue, name, "order.*")
        publish(amqp_url, name, "order.new", message_id="m-1")
        wait_ready(amqp_url, queue, 1)
        method, _, _ = channel.basic_get(queue)
        channel.basic_reject(method.delivery_tag, requeue=True)
        wait_ready(amqp_url, f"{queue}.dead", 1)
        assert dead_letters.requeue(amqp_url, queue) == 1
        spout = QueueSpout(queue, properties=["message_id", "exchange", "routing_key", "headers"])
        with Stage(amqp_url, spout) as stage:
            [(values, msg_id)] = stage.run(1)
            assert values == ["body", "m-1", name, "order.new", {}]
            spout.ack(msg_id)
