"""The kit runs an unchanged topology: bodies in, messages out, and no broker."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest

from tiercel import (
    BasicBolt,
    Config,
    QueueSink,
    QueueSpout,
    Reject,
    RetryLater,
    RetryPolicy,
    StatefulBolt,
    TopologyBuilder,
    field,
)
from tiercel.testing import (
    LocalCluster,
    LocalClusterError,
    RefusedBody,
    complete_topology,
    with_bolts,
)


@dataclass
class Order:
    order: int
    customer: str
    amount: float = 1.0
    note: str | None = None

    def __post_init__(self) -> None:
        if self.amount < 0:
            raise ValueError("the amount is negative")


class Bill(BasicBolt):
    output_fields = "invoice string, queue string?"

    def execute(self, tup, collector):
        if tup["customer"] == "unknown":
            raise Reject("there is no such customer")
        if tup["customer"] == "broken":
            raise KeyError("broken")
        collector.emit([f"{tup['order']} for {tup['customer']}", tup["note"]])


class NoBill(BasicBolt):
    def execute(self, tup, collector):
        collector.emit(["none", None])


def topology(sink: QueueSink | None = None, *, config: Config | None = None):
    builder = TopologyBuilder("orders", config)
    builder.set_spout("orders", QueueSpout("orders", model=Order, retry=RetryPolicy()))
    builder.set_bolt("bill", Bill(), parallelism=2).shuffle_grouping("orders")
    builder.set_bolt("out", sink or QueueSink("invoices", fields=["invoice"])).shuffle_grouping(
        "bill"
    )
    return builder.build()


def order(number: int = 1, customer: str = "ann", **more: object) -> bytes:
    return json.dumps({"order": number, "customer": customer, **more}).encode()


def test_bodies_go_through_the_spout_s_own_decoder_and_messages_come_out(local_cluster):
    cluster = local_cluster(topology())
    assert [cluster.feed_body(order(number)) for number in (1, 2)] == [1, 2]
    assert cluster.feed_body(order(3).decode(), "orders") == 3
    cluster.run_until_idle()
    assert cluster.acked("orders") == [1, 2, 3]
    assert sorted(message.json()["invoice"] for message in cluster.published("invoices")) == [
        "1 for ann",
        "2 for ann",
        "3 for ann",
    ]
    assert cluster.read_tuples("orders")[0] == [1, "ann", 1.0, None]


def test_a_body_that_cannot_be_decoded_is_a_dead_letter_with_the_spout_s_reason(local_cluster):
    cluster = local_cluster(topology())
    for body in (b"{", b'{"ordr": 1}', order(1, amount=-1), order(2)):
        cluster.feed_body(body)
    cluster.run_until_idle()
    unreadable, *others = [letter.reason for letter in cluster.dead_letters()]
    assert unreadable.startswith("the body is not JSON: ")
    assert others == [
        "the body has no 'order', which must be a long; it has ordr",
        "Order: ValueError: the amount is negative",
    ]
    assert cluster.acked("orders") == [4]


class Busy(BasicBolt):
    """Asks for each order to be retried later, the first time."""

    output_fields = "invoice string, queue string?"

    def prepare(self, config, context):
        self.seen = set()

    def execute(self, tup, collector):
        if tup["order"] not in self.seen:
            self.seen.add(tup["order"])
            raise RetryLater(30, "busy", blame=False)
        collector.emit([str(tup["order"]), None])


def test_a_body_that_a_bolt_wants_later_comes_again_at_its_time(local_cluster):
    one_task = with_bolts(topology(), {"bill": Busy()})
    bill = replace(one_task.bolts["bill"], parallelism=1)
    cluster = local_cluster(replace(one_task, bolts={**one_task.bolts, "bill": bill}))
    cluster.feed_body(order(1))
    cluster.run_until_idle()
    assert cluster.retried_later("orders") == [(1, 30.0)]
    assert cluster.published("invoices") == []
    cluster.advance_time(29)
    assert cluster.acked("orders") == []
    cluster.advance_time(1)
    assert cluster.acked("orders") == [1]
    assert len(cluster.published("invoices")) == 1


def test_what_a_bolt_rejects_is_a_dead_letter_and_what_it_raises_is_a_failure(local_cluster):
    cluster = local_cluster(topology())
    cluster.feed_body(order(1, "unknown"))
    cluster.feed_body(order(2, "broken"))
    cluster.run_until_idle()
    assert sorted(cluster.failed("orders")) == [1, 2]
    assert cluster.rejected("orders") == [1]
    [letter] = cluster.dead_letters("orders")
    assert letter.body == order(1, "unknown")
    assert letter.reason.startswith("rejected: bill[")
    assert letter.reason.endswith("]: Reject: there is no such customer")
    [text] = cluster.tracebacks()
    assert text.endswith("KeyError: 'broken'"), "a rejection is no bug"


def test_a_failed_tuple_publishes_nothing_and_what_is_published_is_seen_after_the_end():
    with LocalCluster(topology()) as cluster:
        cluster.feed_body(order(1, "broken"))
        cluster.feed_body(order(2))
        cluster.run_until_idle()
    assert [message.body for message in cluster.published("invoices")] == [
        b'{"invoice":"2 for ann"}'
    ]


def test_a_sink_that_chooses_its_queue_shows_each_where_it_went(local_cluster):
    sink = QueueSink(field("queue", "invoices"), body=field("invoice"))
    cluster = local_cluster(topology(sink))
    cluster.feed_body(order(1))
    cluster.feed_body(order(2, note="express"))
    cluster.run_until_idle()
    assert [message.body for message in cluster.published("invoices")] == [b"1 for ann"]
    assert [message.body for message in cluster.published("express")] == [b"2 for ann"]
    assert cluster.published("never") == []


class Passed(BasicBolt):
    output_fields = "invoice string, kind string, tenant string"

    def execute(self, tup, collector):
        collector.emit([str(tup["order"]), tup["kind"], tup["headers"]["tenant"]])


def routed():
    builder = TopologyBuilder("routed")
    properties = {"type": "kind", "headers": "headers"}
    spout = QueueSpout("orders", model=Order, properties=properties)
    builder.set_spout("orders", spout)
    builder.set_bolt("pass", Passed()).shuffle_grouping("orders")
    sink = QueueSink(
        exchange="invoices",
        routing_key=field("kind"),
        body=field("invoice"),
        headers={"tenant": field("tenant"), "attempt": 1},
        priority=3,
    )
    builder.set_bolt("out", sink).shuffle_grouping("pass")
    return builder.build()


def test_properties_go_in_with_a_body_and_come_out_with_a_message(local_cluster):
    cluster = local_cluster(routed())
    cluster.feed_body(order(7), properties={"type": "new", "headers": {"tenant": "x"}})
    cluster.run_until_idle()
    [message] = cluster.published(exchange="invoices")
    assert (message.exchange, message.routing_key, message.body) == ("invoices", "new", b"7")
    assert message.properties.headers == {"tenant": "x", "attempt": 1}
    assert (message.properties.priority, message.properties.delivery_mode) == (3, 2)
    with pytest.raises(
        LocalClusterError, match="no property 'priority' here; there are type, head"
    ):
        cluster.feed_body(order(8), properties={"priority": 1})
    with pytest.raises(LocalClusterError, match="publishes to 'new'; the queues are none"):
        cluster.published("new")
    with pytest.raises(LocalClusterError, match="publishes to 'bills'; the exchanges are invoices"):
        cluster.published(exchange="bills")
    with pytest.raises(LocalClusterError, match="name a queue, or exchange="):
        cluster.published()


def test_a_tuple_that_is_no_message_fails_as_in_the_sink(local_cluster):
    cluster = local_cluster(topology(QueueSink(field("queue"), body=field("invoice"))))
    cluster.feed_body(order(1, note="x" * 300))
    cluster.run_until_idle()
    assert "which is no name of a queue" in cluster.fail_reasons("orders")[0]
    assert cluster.published("x") == []


def test_a_broker_that_the_topology_names_is_not_for_tests(local_cluster):
    nowhere = Config(extra={"amqp_url": "amqp://guest@127.0.0.1:1"})
    cluster = local_cluster(topology(config=nowhere))
    cluster.feed_body(order())
    cluster.run_until_idle()
    assert len(cluster.published("invoices")) == 1


def test_bolts_are_replaced_by_stand_ins_with_the_streams_of_the_topology(local_cluster):
    cluster = local_cluster(with_bolts(topology(), {"bill": NoBill()}))
    cluster.feed_body(order())
    cluster.run_until_idle()
    assert [message.json() for message in cluster.published("invoices")] == [{"invoice": "none"}]
    emitted = complete_topology(
        with_bolts(topology(), {"bill": NoBill()}), {"orders": [[1, "ann", 1.0, None]]}
    )
    assert emitted["bill"] == [["none", None]]


class Total(StatefulBolt):
    def execute(self, tup, collector):
        self.state.increment("all", tup["order"])


def test_a_mistake_in_a_test_says_what_there_is(local_cluster):
    builder = TopologyBuilder("two")
    for name in ("orders", "returns"):
        builder.set_spout(name, QueueSpout(name, "order long"))
    builder.set_bolt("total", Total()).shuffle_grouping("orders").shuffle_grouping("returns")
    cluster = local_cluster(builder.build())
    with pytest.raises(
        LocalClusterError, match=r"name the QueueSpout .*; there are orders, return"
    ):
        cluster.feed_body(b"{}")
    with pytest.raises(LocalClusterError, match="no QueueSpout 'ordrs'; there are orders, returns"):
        cluster.feed_body(b"{}", "ordrs")
    with pytest.raises(LocalClusterError, match="publishes to 'invoices'; the queues are none"):
        cluster.published("invoices")
    with pytest.raises(LocalClusterError, match="no bolt 'totl'; the bolts are total"):
        with_bolts(builder.build(), {"totl": Total()})
    cluster.feed_body(b'{"order": 1}', "orders")
    cluster.feed_body(b'{"order": 5}', "returns")
    cluster.feed_body(b"{}", "returns")
    cluster.run_until_idle()
    assert cluster.state("total") == {"all": 6}
    assert cluster.dead_letters("orders") == []
    assert cluster.dead_letters("returns") == [
        RefusedBody(
            body=b"{}", reason="the body has no 'order', which must be a long; it has nothing"
        )
    ]
