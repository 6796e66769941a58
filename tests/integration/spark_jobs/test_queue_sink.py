"""``QueueSink`` in a topology, on the broker: acked tuples are in its queue, others fail with the
reason.
"""

from __future__ import annotations

import json
import time
from threading import Timer
from unittest.mock import patch

import pytest
from pika import BasicProperties

from tests.support.broker import delete, plain_channel, ready, take_all, unique, wait_ready
from tests.support.proxy import Proxy
from tests.support.sink_stage import SinkStage
from tests.support.waiting import wait_until
from tiercel import BasicBolt, QueueSink, TopologyBuilder, TopologyError, field
from tiercel.queues.broker.declare import WorkQueue, declare_queue
from tiercel.queues.broker.depths import depths
from tiercel.queues.errors import AddressError, QueueMissingError
from tiercel.queues.publishing.publisher import Publisher
from tiercel.spark_jobs.bolts import queue_sink
from tiercel.spark_jobs.emitting.record import OutputRecorder
from tiercel.testing import FeederSpout
from tiercel.workers.driver.process import Driver, sinks_of


def bodies(amqp_url, queue):
    return [body for body, _ in take_all(amqp_url, queue)]


@pytest.fixture
def queue():
    return unique("out")


def test_each_tuple_is_a_message_in_order_in_a_queue_that_is_made(amqp_url, queue):
    with SinkStage(QueueSink(queue, body=field("body")), amqp_url) as running:
        running.publish(*([f"line {number}"] for number in range(500)))
        assert running.acked == list(range(500))
        assert bodies(amqp_url, queue) == [b"line %d" % number for number in range(500)]
        assert ready(amqp_url, f"{queue}.dead") == 0, (
            "made as a QueueSpout makes it, with its dead letters"
        )
        running.publish(["more"])
        assert bodies(amqp_url, queue) == [b"more"]


def test_it_is_acked_after_the_confirm_and_not_before(amqp_url, queue, monkeypatch):
    seen = []
    original = Publisher.publish_each

    def watched(publisher, messages, on_wait):
        seen.append(list(running.acked))
        fates = original(publisher, messages, on_wait)
        wait_ready(amqp_url, queue, 2)
        seen.append(list(running.acked))
        return fates

    monkeypatch.setattr(Publisher, "publish_each", watched)
    with SinkStage(QueueSink(queue, body=field("body")), amqp_url) as running:
        running.publish(["a"], ["b"])
        assert seen == [[], []]
        assert running.acked == [0, 1]


def test_by_default_the_body_is_an_object_of_all_fields(amqp_url, queue):
    with SinkStage(QueueSink(queue), amqp_url, fields="word string, n long, raw binary") as running:
        running.publish(["grüße", 1, b"\xff"], [None, None, None])
        assert [json.loads(body) for body in bodies(amqp_url, queue)] == [
            {"word": "grüße", "n": 1, "raw": "/w=="},
            {"word": None, "n": None, "raw": None},
        ]


def test_fields_choose_and_order_the_members(amqp_url, queue):
    with SinkStage(
        QueueSink(queue, fields=["n", "word"]),
        amqp_url,
        fields="word string, secret string, n long",
    ) as running:
        running.publish(["a", "hush", 1])
        assert bodies(amqp_url, queue) == [b'{"n":1,"word":"a"}']


def test_a_body_as_it_is_may_be_binary(amqp_url, queue):
    with SinkStage(QueueSink(queue, body=field("raw")), amqp_url, fields="raw binary") as running:
        running.publish([b"\xff\x00"], [b""])
        assert bodies(amqp_url, queue) == [b"\xff\x00", b""]


def test_a_field_names_each_tuple_s_queue_and_is_no_part_of_the_body(amqp_url, queue):
    other = unique("other")
    fallback = unique("fallback")
    with SinkStage(
        QueueSink(field("to", default=fallback)), amqp_url, fields="to string, n long"
    ) as running:
        running.publish([queue, 1], [other, 2], [None, 3], [queue, 4])
        assert running.acked == [0, 1, 2, 3]
        assert bodies(amqp_url, queue) == [b'{"n":1}', b'{"n":4}']
        assert bodies(amqp_url, other) == [b'{"n":2}']
        assert bodies(amqp_url, fallback) == [b'{"n":3}']


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (["", "x"], "'', which is no name of a queue: use 1 to 250 bytes"),
        (["q" * 251, "x"], "which is no name of a queue"),
        (["orders\n", "x"], "no name of a queue: use 1 to 250 bytes without line breaks"),
        ([None, "x"], "field 'to' holds None, which is no name of a queue"),
        (["amq.reserved", "x"], "there is no queue 'amq.reserved'"),
        (["out", None], "a body is a string or bytes, not the NoneType None"),
        (
            ["out", "x" * (16 * 1024 * 1024 + 1)],
            "MessageTooLargeError: the message has 16777217 bytes",
        ),
    ],
)
def test_a_tuple_that_cannot_be_published_fails_alone(amqp_url, queue, bad, reason):
    to = queue if bad[0] == "out" else bad[0]
    with SinkStage(
        QueueSink(field("to"), body=field("body")), amqp_url, fields="to string, body string"
    ) as running:
        running.publish([queue, "before"], [to, bad[1]], [queue, "after"])
        assert running.acked == [0, 2]
        assert list(running.failed) == [1]
        assert reason in running.failed[1]
        assert running.failed[1].startswith("out[2]: ")
        assert bodies(amqp_url, queue) == [b"before", b"after"]


def test_queues_of_clients_take_replies_without_a_declaration(amqp_url, queue):
    declare_queue(amqp_url, WorkQueue(name=queue))
    with plain_channel(amqp_url) as client:
        own = client.queue_declare("", exclusive=True).method.queue
        named = client.queue_declare(f"{queue}-replies", exclusive=True).method.queue
        direct = "amq.rabbitmq.reply-to"
        found = []
        for place in (own, named, direct):
            client.basic_consume(place, lambda *reply: found.append(reply[3]), auto_ack=True)
        client.basic_publish("", queue, b"?", BasicProperties(reply_to=direct))
        _, asked, _ = client.basic_get(queue, auto_ack=True)
        with SinkStage(
            QueueSink(field("to"), body=field("body")), amqp_url, fields="to string, body string"
        ) as running:
            running.publish([own, "a"], [asked.reply_to, "b"], [named, "c"])
            assert (running.acked, running.failed) == ([0, 1, 2], {})
        wait_until(lambda: client.connection.process_data_events(0.1) or len(found) == 3)
        assert sorted(found) == [b"a", b"b", b"c"]
    with pytest.raises(QueueMissingError):
        depths(amqp_url, [f"{named}.dead"])


def test_a_queue_of_a_client_gets_no_dead_letter_queue_that_would_outlive_it(amqp_url, queue):
    with (
        plain_channel(amqp_url) as client,
        SinkStage(
            QueueSink(field("to"), body=field("body")), amqp_url, fields="to string, body string"
        ) as running,
    ):
        client.queue_declare(queue, auto_delete=True)
        running.publish([queue, "a"])
        assert (running.acked, running.failed) == ([0], {})
        _, _, body = client.basic_get(queue, auto_ack=True)
        assert body == b"a"
        client.queue_delete(queue)
    for name in (queue, f"{queue}.dead"):
        with pytest.raises(QueueMissingError):
            depths(amqp_url, [name])


def test_a_direct_reply_to_an_invented_address_is_dropped_alone(amqp_url, queue):
    with SinkStage(
        QueueSink(field("to"), body=field("body")), amqp_url, fields="to string, body string"
    ) as running:
        invented = "amq.rabbitmq.reply-to.forged"
        running.publish([queue, "before"], [invented, "x"], [queue, "after"])
        assert (running.acked, running.failed) == ([0, 1, 2], {})
        assert bodies(amqp_url, queue) == [b"before", b"after"]


def test_a_number_that_json_lacks_fails_alone(amqp_url, queue):
    with SinkStage(QueueSink(queue), amqp_url, fields="d double") as running:
        running.publish([1.5], [float("nan")], [2.5])
        assert (running.acked, list(running.failed)) == ([0, 2], [1])


def test_without_declaring_a_missing_queue_fails_its_tuples_until_somebody_makes_it(
    amqp_url, queue
):
    with SinkStage(QueueSink(queue, body=field("body"), declare=False), amqp_url) as running:
        running.publish(["a"])
        assert f"PublishRefusedError: there is no queue '{queue}'" in running.failed[0]
        declare_queue(amqp_url, WorkQueue(name=queue))
        running.publish(["b"])
        assert running.acked == [0]
        assert bodies(amqp_url, queue) == [b"b"]


def test_a_queue_that_is_deleted_under_it_fails_once_and_is_made_again(amqp_url, queue):
    other = unique("other")
    with SinkStage(
        QueueSink(field("to"), body=field("body")), amqp_url, fields="to string, body string"
    ) as running:
        running.publish([queue, "a"], [other, "b"])
        delete(amqp_url, queue)
        running.publish([queue, "c"], [other, "d"], [queue, "e"])
        assert sorted(running.failed) == [0, 2]
        assert running.acked == [0, 1, 1]
        running.publish([queue, "c"], [queue, "e"])
        assert bodies(amqp_url, queue) == [b"c", b"e"]
        assert bodies(amqp_url, other) == [b"b", b"d"]


def test_a_full_queue_fails_what_it_refuses(amqp_url, queue):
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(
            queue, durable=True, arguments={"x-max-length": 2, "x-overflow": "reject-publish"}
        )
    with SinkStage(QueueSink(queue, body=field("body")), amqp_url) as running:
        running.publish(["a"], ["b"], ["c"])
        assert (running.acked, list(running.failed)) == ([0, 1], [2])
        assert "full or unavailable" in running.failed[2]


def test_a_broker_that_is_away_fails_tuples_after_the_patience_and_is_used_again_when_it_is_back(
    amqp_url, queue
):
    with (
        Proxy(amqp_url) as wire,
        SinkStage(QueueSink(queue, body=field("body"), patience_secs=4), wire.url) as running,
    ):
        running.publish(["a"])
        wire.retarget("amqp://127.0.0.1:1")
        running.publish(["b"], ["c"])
        assert running.acked == [0]
        assert list(running.failed) == [0, 1]
        assert "BrokerUnavailableError: gave up after" in running.failed[0]
        wire.retarget(amqp_url)
        running.publish(["d"])
        assert bodies(amqp_url, queue) == [b"a", b"d"]


def test_an_alarm_of_the_broker_is_waited_out_while_timeouts_begin_anew(rabbitmq, queue):
    broker = rabbitmq()
    sink = QueueSink(queue, body=field("body"), patience_secs=1)
    with SinkStage(sink, broker.url) as running:
        running.publish(["a"])
        broker.control("set_vm_memory_high_watermark", "absolute", "1MB")
        wait_until(lambda: "memory" in broker.control("eval", "rabbit_alarm:get_alarms()."), 30)
        # Longer than the patience.
        end = Timer(4, broker.control, ["set_vm_memory_high_watermark", "0.4"])
        end.start()
        resets = []
        with patch.object(OutputRecorder, "reset_timeout", lambda _, tup: resets.append(tup)):
            running.publish(["b"], ["c"])
        end.join()
        assert (running.acked, running.failed) == ([0, 0, 1], {})
        assert {tup["body"] for tup in resets} == {"b", "c"}
        [error] = running.cluster._engine.metrics.errors()
        assert "takes no messages now (memory or disk alarm)" in error.message
    assert bodies(broker.url, queue) == [b"a", b"b", b"c"]


def test_many_new_queues_are_declared_while_timeouts_begin_anew(amqp_url, queue, monkeypatch):
    def slowly(*given):
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 0.4)
        return declare_queue(*given)

    monkeypatch.setattr(queue_sink, "declare_queue", slowly)
    resets = []
    with (
        patch.object(OutputRecorder, "reset_timeout", lambda _, tup: resets.append(tup["body"])),
        SinkStage(
            QueueSink(field("to"), body=field("body")), amqp_url, fields="to string, body string"
        ) as running,
    ):
        running.publish(*([f"{queue}-{number}", f"{number}"] for number in range(6)))
        assert (running.acked, running.failed) == (list(range(6)), {})
    assert set(resets) == set("012345")


def test_a_reason_is_reported_once_for_all_tuples_of_a_step(amqp_url, queue):
    with SinkStage(QueueSink(queue, body=field("body"), declare=False), amqp_url) as running:
        running.publish(*([str(number)] for number in range(100)))
        assert len(running.failed) == 100
        errors = running.cluster._engine.metrics.errors()
        assert 1 <= len(errors) <= 20, "one per step, and 100 tuples are a few steps"
        assert {(error.component, f"no queue '{queue}'" in error.message) for error in errors} == {
            ("out", True)
        }


def test_without_an_address_it_says_what_to_do():
    sink = QueueSink("q", body=field("body"))
    with pytest.raises(TopologyError, match=r"^'out' publishes .*: use --amqp or set TIERCEL_AMQP"):
        sink.prepare({}, sinking().context_of(3))
    with SinkStage(sink, "http://nowhere") as running:
        running.publish(["a"])
        assert AddressError.__name__ in running.failed[0]


class Plain(BasicBolt):
    pass


def sinking(**config):
    builder = TopologyBuilder("sink")
    builder.set_spout("in", FeederSpout(fields="body string"))
    builder.set_bolt("plain", Plain()).shuffle_grouping("in")
    builder.set_bolt("out", QueueSink("q"), config=config).shuffle_grouping("in")
    return builder.build()


def test_a_driver_refuses_a_sink_without_an_address_unless_it_has_one_of_its_own():
    with pytest.raises(TopologyError, match="'out' publishes to RabbitMQ, and no address is given"):
        Driver(sinking(), ("redis://localhost",), "local[1]")
    Driver(sinking(), ("redis://localhost",), "local[1]", "amqp://localhost")
    Driver(sinking(amqp_url="amqp://elsewhere"), ("redis://localhost",), "local[1]")
    assert sinks_of(sinking()) == ["out"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "needs a queue: its name, or field"),
        ({"queue": ""}, "'' is no name of a queue: use 1 to 250 bytes"),
        ({"queue": "q" * 251}, "use 1 to 250 bytes"),
        ({"queue": "orders\n"}, "use 1 to 250 bytes without line breaks"),
        ({"exchange": "orders\r"}, "use 0 to 255 bytes without line breaks"),
        ({"queue": 7}, "7 is no name of a queue"),
        (
            {"queue": "q", "body": field("a"), "fields": ["b"]},
            "body for a body as it is, or fields for a JSON object, not both",
        ),
        ({"queue": "q", "fields": "body"}, r"for one body as it is write body=field\('body'\)"),
        (
            {"queue": "q", "body": 7},
            r"takes a string, bytes or field\(\"name\"\) as the body, not 7",
        ),
        ({"queue": "q", "exchange": "e"}, "to a queue or to an exchange, not to both"),
        ({"queue": "q", "routing_key": "k"}, "for an exchange only"),
        ({"exchange": 7}, "7 is no name of an exchange"),
        ({"exchange": "e", "exchange_type": "topc"}, "no exchange_type 'topc'; use topic, direct"),
        ({"exchange": "", "exchange_type": "topic"}, "name it with exchange"),
        ({"queue": "q", "exchange_type": "topic"}, "name it with exchange"),
        (
            {"exchange": "e", "exchange_type": "topic", "declare": False},
            "declares no exchange: leave out declare or exchange_type",
        ),
        ({"exchange": "e", "rooting_key": "k"}, "; did you mean 'routing_key'"),
        ({"exchange": "e", "routing_key": "k" * 256}, "is no routing key: use 0 to 255 bytes"),
        ({"queue": "q", "priority": 300}, "priority is a number from 0 to 255, not the int 300"),
        ({"queue": "q", "headers": "a=b"}, "headers is a mapping"),
        ({"queue": "q", "headers": {"a": object()}}, "header 'a' cannot be"),
        ({"queue": "q", "expiration": "soon"}, "expiration is a time"),
        ({"queue": "q", "field": "a"}, "'field' is neither a setting of QueueSink nor a property"),
        (
            {"queue": "q", "patience_secs": 0},
            "a patience_secs greater than 0, and of a day at most, not 0",
        ),
    ],
)
def test_an_impossible_sink_is_refused_where_it_is_written(settings, said):
    with pytest.raises(TopologyError, match=said):
        QueueSink(**settings)
