"""Keys on their way through RabbitMQ: from one topology to the next, and through dead letters."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

import pytest

from tests.support.broker import plain_channel, unique
from tests.support.waiting import wait_until
from tiercel import (
    BasicBolt,
    Config,
    Publisher,
    QueueSink,
    QueueSpout,
    RetryLater,
    RetryPolicy,
    StatefulBolt,
    TopologyBuilder,
    WorkQueue,
    declare_queue,
)
from tiercel.queues.message.writing import OutgoingMessage, write_properties
from tiercel.queues.publishing.dead_letters import requeue
from tiercel.testing import FeederSpout, LocalCluster


@pytest.fixture
def queue(amqp_url):
    name = unique("keyed")
    declare_queue(amqp_url, WorkQueue(name=name))
    return name


def properties_in(amqp_url, queue):
    found = []
    with plain_channel(amqp_url) as channel:
        while (message := channel.basic_get(queue, auto_ack=True))[0] is not None:
            found.append((message[2], message[1]))
    return found


def sink_of(**settings):
    feeder = FeederSpout(fields="body string")
    builder = TopologyBuilder("sending")
    builder.set_spout("in", feeder)
    builder.set_bolt("out", QueueSink(**settings)).shuffle_grouping("in")
    return feeder, builder.build()


def sent(amqp_url, queue, *messages, **settings):
    feeder, topology = sink_of(queue=queue, **settings)
    with LocalCluster(topology, Config(extra={"amqp_url": amqp_url})) as cluster:
        for number, (body, identity) in enumerate(messages):
            feeder.feed([body], number, identity=identity)
        cluster.run_until_idle()
        assert cluster.acked("in") == list(range(len(messages)))
    return [properties.message_id for _, properties in properties_in(amqp_url, queue)]


def test_a_message_has_the_key_of_its_tuple_each_time_that_it_is_published(amqp_url, queue):
    messages = [("a", "1"), ("b", "2"), ("a", "1"), ("c", None)]
    first, second, third, fourth = sent(amqp_url, queue, *messages)
    assert first == third != second
    assert len(bytes.fromhex(first)) == 16
    assert fourth not in {first, second, None}
    assert sent(amqp_url, queue, *messages)[:3] == [first, second, third]


def test_a_message_id_of_yours_stays(amqp_url, queue):
    assert sent(amqp_url, queue, ("a", "1"), message_id="mine") == ["mine"]


class Fragile(BasicBolt):
    output_fields = "body string, key string"
    broken = True

    def execute(self, tup, collector):
        if Fragile.broken:
            raise RuntimeError("broken")
        collector.emit([tup["body"], tup.key.hex() if tup.key else None])


class Count(StatefulBolt):
    output_fields = "body string, n long"
    once = True

    def execute(self, tup, collector):
        collector.emit([tup["body"], self.state.increment(tup["body"])])


def published(amqp_url, queue, *messages):
    with Publisher(amqp_url) as publisher:
        assert not any(
            publisher.publish_each(
                [
                    OutgoingMessage(body=body, routing_key=queue, properties=write_properties(said))
                    for body, said in messages
                ]
            )
        )


def test_a_dead_letter_that_is_put_back_has_the_keys_that_it_had(amqp_url, queue, monkeypatch):
    """It was counted before it died; requeued, it keeps its first time and is not counted again."""
    monkeypatch.setattr(Fragile, "broken", True)
    spout = QueueSpout(
        queue,
        identity="message_id",
        delivery_limit=1,
        retry=RetryPolicy(first=timedelta(0), longest=timedelta(0)),
    )
    builder = TopologyBuilder("letters")
    builder.set_spout("in", spout)
    builder.set_bolt("count", Count()).fields_grouping("in", "body")
    builder.set_bolt("end", Fragile()).shuffle_grouping("count")
    with LocalCluster(builder.build(), Config(extra={"amqp_url": amqp_url})) as cluster:

        def ran(condition, what):
            def look():
                cluster.run_until_idle()
                return condition()

            wait_until(look, 30, what)

        published(amqp_url, queue, (b"a", {"message_id": "m-1"}), (b"a", {"message_id": "m-1"}))
        ran(lambda: len(cluster.failed("in")) >= 2, "both to fail")
        monkeypatch.setattr(Fragile, "broken", False)
        ran(lambda: requeue(amqp_url, queue) or cluster.acked("in"), "one to be put back")
        ran(lambda: len(cluster.acked("in")) == 2, "both to be acked")
        assert cluster.state("count") == {"a": 1}
        emitted = cluster.read_tuples("end")
    assert {body for body, _ in emitted} == {"a"}
    assert len({key for _, key in emitted}) == 1


@pytest.mark.parametrize(
    ("identity", "body", "headers"),
    [
        ("body", b"x" * (1 << 20), {}),
        # The largest possible header: it must fit into one frame of 128 KiB.
        ("header:order", b"a", {"order": "x" * 120_000}),
        ("header:order", b"a", {"order": {"nested": ["x" * 60_000, "y" * 60_000]}}),
    ],
)
def test_a_message_that_is_known_by_something_huge_counts_once(
    amqp_url, queue, identity, body, headers
):
    builder = TopologyBuilder("huge")
    builder.set_spout("in", QueueSpout(queue, identity=identity))
    builder.set_bolt("count", Count()).shuffle_grouping("in")
    another = dict.fromkeys(headers, "another")
    with LocalCluster(builder.build(), Config(extra={"amqp_url": amqp_url})) as cluster:
        message = (body, {"headers": headers})
        published(amqp_url, queue, message, message, (body[1:], {"headers": another}))

        def ran():
            cluster.run_until_idle()
            return len(cluster.acked("in")) == 3

        wait_until(ran, 30, "all to be acked")
        assert sorted(cluster.state("count").values()) == [1, 1]


class Later(BasicBolt):
    """Retries each message later, the first time."""

    output_fields = "key string"
    seen: ClassVar[set[bytes]] = set()

    def execute(self, tup, collector):
        if tup.key not in self.seen:
            self.seen.add(tup.key)
            raise RetryLater(0.2, "busy", blame=False)
        collector.emit([tup.key.hex()])


@pytest.mark.parametrize("identity", ["message_id", "header:order", "body"])
def test_a_message_that_is_wanted_later_keeps_its_keys(amqp_url, queue, identity):
    """It was counted before a bolt raised RetryLater, and is not counted again."""
    Later.seen.clear()
    builder = TopologyBuilder("later")
    builder.set_spout("in", QueueSpout(queue, identity=identity))
    builder.set_bolt("count", Count()).fields_grouping("in", "body")
    builder.set_bolt("end", Later()).shuffle_grouping("count")
    with LocalCluster(builder.build(), Config(extra={"amqp_url": amqp_url})) as cluster:
        published(amqp_url, queue, (b"a", {"message_id": "m-1", "headers": {"order": 17}}))

        def ran():
            cluster.run_until_idle()
            return cluster.acked("in")

        wait_until(ran, 30, "it to come again")
        assert cluster.state("count") == {"a": 1}
        assert len(cluster.retried_later("in")) == 1
        assert len(cluster.read_tuples("end")) == 1
