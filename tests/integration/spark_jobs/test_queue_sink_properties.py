"""Messages of ``QueueSink`` have the configured properties, and go to the configured target."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from tests.support.broker import delete, plain_channel, unique
from tests.support.rpc import RpcClient
from tests.support.sink_stage import SinkStage
from tests.support.waiting import wait_until
from tiercel import Config, QueueSink, QueueSpout, TopologyBuilder, WorkQueue, declare_queue, field
from tiercel.examples import quotes
from tiercel.queues.broker.declare import Binding
from tiercel.queues.message.properties import header_texts
from tiercel.testing import LocalCluster


@pytest.fixture
def queue(amqp_url):
    name = unique("out")
    yield name
    for each in (name, f"{name}.dead"):
        delete(amqp_url, each)


@pytest.fixture
def events(amqp_url, queue):
    """A headers, a topic and a direct exchange that lead to the queue, by type."""
    declare_queue(amqp_url, WorkQueue(name=queue))
    names = {type_: f"{queue}.{type_}" for type_ in ("headers", "topic", "direct")}
    with plain_channel(amqp_url) as channel:
        for type_, name in names.items():
            channel.exchange_declare(name, type_, durable=True)
        channel.queue_bind(queue, names["headers"], arguments={"tenant": "a"})
        channel.queue_bind(queue, names["topic"], "order.*")
        channel.queue_bind(queue, names["direct"], "order")
    yield names
    with plain_channel(amqp_url) as channel:
        for name in names.values():
            channel.exchange_delete(name)


def taken(amqp_url, queue):
    """Return all messages as (method, properties, body)."""
    found = []
    with plain_channel(amqp_url) as channel:
        while (message := channel.basic_get(queue, auto_ack=True))[0] is not None:
            found.append(message)
    return found


def test_properties_are_constants_or_fields_and_no_part_of_the_body(amqp_url, queue):
    sink = QueueSink(
        queue,
        message_id=field("id"),
        correlation_id="always",
        priority=field("urgency", default=1),
        expiration=timedelta(minutes=1),
        timestamp=field("at"),
        type=field("kind"),
        content_type="application/json",
        headers={"tenant": field("tenant"), "source": "tiercel", "n": 5, "price": Decimal("1.5")},
    )
    fields = "n long, id string, urgency int, at timestamp, kind string, tenant string"
    with SinkStage(sink, amqp_url, fields=fields) as running:
        at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        running.publish([1, "m-1", 7, at, "order", "a"], [2, "m-2", None, None, None, None])
        assert running.acked == [0, 1]
    [(_, first, body), (_, second, other)] = taken(amqp_url, queue)
    assert (body, other) == (b'{"n":1}', b'{"n":2}')
    assert (first.message_id, first.priority, first.type) == ("m-1", 7, "order")
    assert (first.correlation_id, first.expiration, first.delivery_mode) == ("always", "60000", 2)
    assert (first.timestamp, first.content_type) == (int(at.timestamp()), "application/json")
    everyone = {"source": "tiercel", "n": "5", "price": "1.5"}
    assert header_texts(first.headers) == everyone | {"tenant": "a"}
    assert (second.message_id, second.priority, second.type) == ("m-2", 1, None)
    assert (second.correlation_id, second.timestamp) == ("always", None)
    assert header_texts(second.headers) == everyone


def test_all_headers_from_one_field_and_messages_that_need_not_last(amqp_url, queue):
    sink = QueueSink(queue, body=field("body"), headers=field("headers"), persistent=False)
    with SinkStage(sink, amqp_url, fields="body string, headers map<string,string>") as running:
        running.publish(["a", {"x": "1", "none": None}], ["b", {}], ["c", None])
        assert running.acked == [0, 1, 2]
    found = taken(amqp_url, queue)
    assert [header_texts(properties.headers) for _, properties, _ in found] == [
        {"x": "1", "none": None},
        {},
        {},
    ]
    assert {properties.delivery_mode for _, properties, _ in found} == {1}
    assert len({properties.message_id for _, properties, _ in found}) == 3


@pytest.mark.parametrize("type_", ["topic", "direct", "fanout", "headers"])
def test_a_sink_declares_its_exchange_if_it_is_told_the_type(amqp_url, queue, type_):
    exchange = f"{queue}.new"
    sink = QueueSink(exchange=exchange, routing_key="k", exchange_type=type_, body=field("body"))
    try:
        with SinkStage(sink, amqp_url) as running:
            running.publish(["nobody is bound"])
            assert "leads to no queue" in running.failed[0]
            binding = (exchange, {"x-match": "any"} if type_ == "headers" else "k", type_)
            declare_queue(amqp_url, WorkQueue(name=queue, bindings=[Binding.of(binding)]))
        with SinkStage(sink, amqp_url) as again:
            again.publish(["a"], ["b"])
            if type_ != "headers":  # no header matches
                assert again.acked == [0, 1]
    finally:
        with plain_channel(amqp_url) as channel:
            channel.exchange_declare(exchange, type_, durable=True)  # redeclared unchanged
            channel.exchange_delete(exchange)


def test_an_exchange_of_another_type_is_used_as_it_is_with_a_warning(
    amqp_url, queue, events, caplog
):
    sink = QueueSink(
        exchange=events["direct"], routing_key="order", exchange_type="topic", body=field("body")
    )
    with SinkStage(sink, amqp_url) as running:
        running.publish(["a"], ["b"])
        assert running.acked == [0, 1]
    [said] = [
        each for each in caplog.records if each.__dict__.get("event") == "exchange_used_as_is"
    ]
    assert said.getMessage() == (
        f"exchange {events['direct']} is used as it is: it routes as direct, not as topic"
    )


def test_an_exchange_that_may_not_be_declared_fails_the_tuple(amqp_url, queue):
    sink = QueueSink(exchange="amq.none", exchange_type="topic", body=field("body"))
    with SinkStage(sink, amqp_url) as running:
        running.publish(["a"])
        assert "no exchange 'amq.none'" in running.failed[0]


def test_an_exchange_takes_each_message_to_its_queues(amqp_url, queue, events):
    sink = QueueSink(
        exchange=field("exchange"), routing_key=field("key", default="order"), body=field("body")
    )
    with SinkStage(sink, amqp_url, fields="exchange string, key string, body string") as running:
        running.publish(
            [events["topic"], "order.new", "a"],
            [events["topic"], "invoice.new", "nowhere"],
            [events["direct"], None, "b"],
            ["", queue, "c"],
            ["no-such-exchange", "k", "d"],
            [None, "k", "e"],
            [events["topic"], "k" * 256, "f"],
            [events["topic"], "order.last", "g"],
        )
        assert running.acked == [0, 2, 3, 7]
        failed = running.failed
        assert sorted(failed) == [1, 4, 5, 6]
        assert f"PublishRefusedError: exchange '{events['topic']}' on" in failed[1]
        assert "leads to no queue for the routing key 'invoice.new'; bind one" in failed[1]
        assert "ExchangeMissingError" in failed[4]
        assert "no exchange 'no-such-exchange'" in failed[4]
        assert "field 'exchange' holds None, which is no name of an exchange" in failed[5]
        assert "which is no routing key: use 0 to 255 bytes" in failed[6]
    assert [
        (method.exchange, method.routing_key, body) for method, _, body in taken(amqp_url, queue)
    ] == [
        (events["topic"], "order.new", b"a"),
        (events["direct"], "order", b"b"),
        ("", queue, b"c"),
        (events["topic"], "order.last", b"g"),
    ]


def test_of_messages_that_differ_in_their_headers_alone_the_right_one_fails(
    amqp_url, queue, events
):
    sink = QueueSink(
        exchange=events["headers"],
        message_id="the same",
        body=field("body"),
        headers={"tenant": field("tenant")},
    )
    with SinkStage(sink, amqp_url, fields="body string, tenant string") as running:
        running.publish(*(["x", "a" if number % 3 else "b"] for number in range(60)))
        assert running.acked == [number for number in range(60) if number % 3]
        assert sorted(running.failed) == [number for number in range(60) if not number % 3]
    found = taken(amqp_url, queue)
    assert [properties.headers["tenant"] for _, properties, _ in found] == ["a"] * 40


def test_an_exchange_that_is_deleted_under_it_fails_what_it_gets_until_it_is_there_again(
    amqp_url, queue, events
):
    other = unique("other")
    sink = QueueSink(
        exchange=field("exchange"), routing_key=field("key"), body=field("body"), patience_secs=30
    )
    with SinkStage(sink, amqp_url, fields="exchange string, key string, body string") as running:
        running.publish([events["topic"], "order.1", "a"], ["", other, "b"])
        assert running.acked == [0, 1]
        with plain_channel(amqp_url) as channel:
            channel.exchange_delete(events["topic"])
        running.publish(["", other, "c"], [events["topic"], "order.2", "d"], ["", other, "e"])
        assert running.acked == [0, 1, 0, 2]
        assert "no exchange" in running.failed[1]
        running.publish([events["topic"], "order.2", "d"])
        assert "no exchange" in running.cluster.fail_reasons("in")[-1]
        with plain_channel(amqp_url) as channel:
            channel.exchange_declare(events["topic"], "topic", durable=True)
            channel.queue_bind(queue, events["topic"], "order.*")
        running.publish([events["topic"], "order.2", "d"])
    assert [body for _, _, body in taken(amqp_url, queue)] == [b"a", b"d"]
    assert {body for _, _, body in taken(amqp_url, other)} == {b"b", b"c", b"e"}
    for each in (other, f"{other}.dead"):
        delete(amqp_url, each)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (["m" * 1_000_000, 1, {}, "60"], "message_id has 1,000,000 bytes"),
        (["m", 300, {}, "60"], "priority is a number from 0 to 255, not the int 300"),
        (["m", 1, {"CC": "elsewhere"}, "60"], "the header 'CC' is a list of routing keys"),
        (["m", 1, {"a": "x" * 200_000}, "60"], "the headers have 200,007 bytes"),
        (["m", 1, {"": "x"}, "60"], "a name has 1 to 255 bytes"),
        (["m", 1, {}, "soon"], "expiration is a time of 0 to"),
    ],
)
def test_a_property_that_no_message_can_have_fails_its_tuple_alone(amqp_url, queue, values, reason):
    sink = QueueSink(
        queue,
        message_id=field("id"),
        priority=field("urgency"),
        headers=field("headers"),
        expiration=field("ttl"),
    )
    fields = "id string, urgency int, headers map<string,string>, ttl string"
    with SinkStage(sink, amqp_url, fields=fields) as running:
        running.publish(["before", 1, {}, "60000"], values, ["after", 1, None, None])
        assert running.acked == [0, 2]
        assert reason in running.failed[1]
        assert len(running.failed[1]) < 500
    assert [properties.message_id for _, properties, _ in taken(amqp_url, queue)] == [
        "before",
        "after",
    ]


def test_another_user_s_id_fails_its_tuple_with_the_broker_s_words(amqp_url, queue):
    sink = QueueSink(queue, user_id=field("user"), body=field("body"))
    with SinkStage(sink, amqp_url, fields="user string, body string") as running:
        running.publish([None, "a"], ["a-stranger", "b"], [None, "c"])
        assert running.acked == [0, 2]
        assert "user_id property set to 'a-stranger'" in running.failed[1]


class Answering:
    """The example, in memory, for clients on the real broker."""

    def __init__(self, amqp_url):
        self._cluster = LocalCluster(
            quotes.topology(), Config(extra={"amqp_url": amqp_url}, message_timeout_secs=600)
        )
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        with self._cluster:
            while not self._done.wait(0.01):
                self._cluster.run_until_idle()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join(60)

    @property
    def told(self):
        """Return the number of acked requests, and the reasons of failed ones."""
        return len(self._cluster.acked("requests")), self._cluster.fail_reasons("requests")


def test_requests_of_pika_s_rpc_client_are_answered(amqp_url):
    declare_queue(amqp_url, WorkQueue(name="quotes"))
    with (
        Answering(amqp_url) as answering,
        RpcClient(amqp_url, "quotes") as client,
        RpcClient(amqp_url, "quotes", direct=True) as direct,
    ):
        for pieces in (1, 2, 3):
            total = f"{pieces * Decimal('12.50')}"
            assert client.ask(item="hood", pieces=pieces) == {"total": total, "error": None}
            assert direct.ask(item="hood", pieces=pieces) == {"total": total, "error": None}
        assert client.ask(item="drum", pieces=1)["error"] == "no such item, or no pieces"
        wait_until(lambda: answering.told == (7, []), message="each answered once, and acked")


def test_a_topology_hands_on_what_it_was_given(amqp_url, queue):
    """Headers, ids and priorities travel from queue to queue."""
    source = unique("source")
    names = ["message_id", "headers", "priority", "type", "timestamp"]
    builder = TopologyBuilder("hand-on")
    builder.set_spout("in", QueueSpout(source, properties=names))
    sink = QueueSink(queue, body=field("body"), **{name: field(name) for name in names})
    builder.set_bolt("out", sink).shuffle_grouping("in")
    declare_queue(amqp_url, WorkQueue(name=source))
    with SinkStage(
        QueueSink(
            source,
            body="as it is",
            message_id="m",
            priority=3,
            type="t",
            timestamp=77,
            headers={"a": "b"},
        ),
        amqp_url,
    ) as running:
        running.publish(["x"])
    with LocalCluster(builder.build(), Config(extra={"amqp_url": amqp_url})) as cluster:

        def done():
            cluster.run_until_idle()
            return cluster.acked("in")

        wait_until(done)
    [(_, properties, body)] = taken(amqp_url, queue)
    assert body == b"as it is"
    assert (properties.message_id, properties.priority, properties.type) == ("m", 3, "t")
    assert properties.timestamp == 77
    assert header_texts(properties.headers) == {"a": "b"}
    for each in (source, f"{source}.dead"):
        delete(amqp_url, each)
