"""Effects once, in a user's test: messages have identities, and are redelivered."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from tiercel import (
    AsyncBolt,
    BasicBolt,
    BatchBolt,
    Bolt,
    Config,
    DatabaseSink,
    QueueSink,
    QueueSpout,
    RetryLater,
    StatefulBolt,
    TopologyBuilder,
)
from tiercel.testing import FeederSpout, LocalClusterError


class Book(StatefulBolt):
    output_fields = "customer string, balance long"
    once = True

    def execute(self, tup, collector):
        balance = self.state.increment(tup["customer"], tup["cents"])
        collector.emit([tup["customer"], balance])


def bookings(sink: Any, identity: str | None = "message_id", **settings: Any):
    builder = TopologyBuilder("bookings")
    fields = "customer string, cents long"
    builder.set_spout("orders", QueueSpout("orders", fields, identity=identity, **settings))
    builder.set_bolt("book", Book(), parallelism=2).fields_grouping("orders", "customer")
    builder.set_bolt("out", sink, parallelism=2).shuffle_grouping("book")
    return builder.build()


def order(customer: str = "ann", cents: int = 5) -> str:
    return json.dumps({"customer": customer, "cents": cents})


def test_a_message_that_comes_again_is_booked_once_and_its_row_is_one(local_cluster):
    cluster = local_cluster(bookings(DatabaseSink("postgresql://nowhere/x", "bookings")))
    for _ in range(3):
        for number in range(4):
            cluster.feed_body(order(), identity=f"o-{number}")
        cluster.run_until_idle()
    assert cluster.acked("orders") == list(range(1, 13))
    assert cluster.state("book") == {"ann": 20}
    assert sorted(row["balance"] for row in cluster.written("bookings")) == [5, 10, 15, 20]


def test_without_an_identity_it_is_booked_each_time_that_it_comes(local_cluster):
    cluster = local_cluster(bookings(DatabaseSink(None, "bookings")))
    for _ in range(2):
        cluster.feed_body(order())
    cluster.run_until_idle()
    assert cluster.state("book") == {"ann": 10}
    assert len(cluster.written("bookings")) == 2


@pytest.mark.parametrize(
    ("identity", "given"),
    [
        ("header:order", {"identity": "7"}),
        ("header:order", {"properties": {"headers": {"order": "7"}}}),
        ("message_id", {"properties": {"message_id": "7"}}),
        ("body", {}),
    ],
)
def test_an_identity_may_be_a_header_a_property_or_the_body(local_cluster, identity, given):
    columns = {"properties": ["message_id", "headers"]}
    sink = DatabaseSink(None, "bookings")
    cluster = local_cluster(bookings(sink, identity, **columns))
    for _ in range(2):
        cluster.feed_body(order(), **given)
    cluster.run_until_idle()
    assert len(cluster.written("bookings")) == 1


def test_another_message_with_the_same_identity_fails(local_cluster):
    builder = TopologyBuilder("plain")
    spout = QueueSpout("orders", "customer string, cents long", identity="message_id")
    builder.set_spout("orders", spout)
    builder.set_bolt("out", DatabaseSink(None, "bookings")).shuffle_grouping("orders")
    cluster = local_cluster(builder.build())
    cluster.feed_body(order(cents=1), identity="7")
    cluster.feed_body(order(cents=2), identity="7")
    cluster.run_until_idle()
    assert cluster.written("bookings") == [{"customer": "ann", "cents": 1}]
    assert cluster.failed("orders") == [2]
    assert (
        "a message with the same identity but a different body" in cluster.fail_reasons("orders")[0]
    )


def test_messages_of_two_users_with_one_id_are_two(local_cluster):
    builder = TopologyBuilder("plain")
    spout = QueueSpout(
        "orders",
        "customer string, cents long",
        properties=["user_id"],
        identity=["user_id", "message_id"],
    )
    builder.set_spout("orders", spout)
    builder.set_bolt("out", DatabaseSink(None, "bookings")).shuffle_grouping("orders")
    cluster = local_cluster(builder.build())
    for user in ("ann", "bob", "ann"):
        cluster.feed_body(order(cents=1), properties={"user_id": user}, identity="7")
    cluster.run_until_idle()
    assert [row["user_id"] for row in cluster.written("bookings")] == ["ann", "bob"]


def test_rows_have_the_columns_that_the_sink_names(local_cluster):
    cluster = local_cluster(bookings(DatabaseSink(None, "b", fields={"balance": "cents_now"})))
    cluster.feed_body(order(), identity="7")
    cluster.run_until_idle()
    assert cluster.written("b") == [{"cents_now": 5}]
    with pytest.raises(LocalClusterError, match="into 'a'; the tables are b"):
        cluster.written("a")


def test_what_is_published_has_its_key_as_message_id(local_cluster):
    cluster = local_cluster(bookings(QueueSink("booked")))
    for _ in range(2):
        cluster.feed_body(order(), identity="7")
    cluster.run_until_idle()
    first, second = [each.properties.message_id for each in cluster.published("booked")]
    assert first == second
    assert len(bytes.fromhex(first)) == 16


def test_a_test_that_names_a_database_writes_into_it(local_cluster, tmp_path):
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE bookings (customer text, balance integer)")
        database.commit()
        sink = DatabaseSink("postgresql://nowhere/x", "bookings")
        config = Config(extra={"database_url": f"sqlite:///{file}"})
        cluster = local_cluster(bookings(sink), config)
        for _ in range(2):
            cluster.feed_body(order(), identity="7")
        cluster.run_until_idle()
        assert database.execute("SELECT * FROM bookings").fetchall() == [("ann", 5)]
    assert cluster.acked("orders") == [1, 2]


@pytest.mark.parametrize(
    ("identity", "reason"),
    [(None, "its messages have no identity"), ("body", "their body: give none")],
)
def test_an_identity_that_the_spout_does_not_look_for_is_refused(local_cluster, identity, reason):
    builder = TopologyBuilder("plain")
    builder.set_spout("orders", QueueSpout("orders", identity=identity))
    builder.set_bolt("out", QueueSink("booked")).shuffle_grouping("orders")
    cluster = local_cluster(builder.build())
    with pytest.raises(LocalClusterError, match=reason):
        cluster.feed_body(b"x", identity="7")


def test_an_identity_that_no_message_can_have_is_refused(local_cluster):
    cluster = local_cluster(bookings(DatabaseSink(None, "bookings")))
    with pytest.raises(LocalClusterError, match="message_id"):
        cluster.feed_body(order(), identity="7" * 256)


class Later(BasicBolt):
    """Retries each message later, the first time, and emits its key."""

    output_fields = "key binary"

    def prepare(self, config, context):
        self.seen = set()

    def execute(self, tup, collector):
        if tup.key not in self.seen:
            self.seen.add(tup.key)
            raise RetryLater(30, "busy", blame=False)
        collector.emit([tup.key])


def test_what_a_bolt_wants_later_keeps_its_key(local_cluster):
    builder = TopologyBuilder("later")
    builder.set_spout("orders", QueueSpout("orders", identity="message_id"))
    feeder = FeederSpout(fields="body string")
    builder.set_spout("fed", feeder)
    both = builder.set_bolt("later", Later())
    both.shuffle_grouping("orders").shuffle_grouping("fed")
    cluster = local_cluster(builder.build())
    cluster.feed_body(b"x", identity="7")
    feeder.feed(["x"], "m", identity="7")
    cluster.advance_time(31)
    assert cluster.acked("orders") == [1]
    assert cluster.acked("fed") == ["m"]
    keys = {key for [key] in cluster.read_tuples("later")}
    assert len(keys) == 2
    assert None not in keys


class BusyBook(Book):
    """Changes the state, and still retries the message later, the first time."""

    def prepare(self, config, context):
        self.seen = set()

    def execute(self, tup, collector):
        super().execute(tup, collector)
        if tup.key not in self.seen:
            self.seen.add(tup.key)
            raise RetryLater(30, "busy", blame=False)


@pytest.mark.parametrize("config", [None, {"ordered_by": "customer"}])
def test_what_failed_or_was_wanted_later_is_booked_when_it_comes_again(local_cluster, config):
    builder = TopologyBuilder("bookings")
    spout = QueueSpout("orders", "customer string, cents long", identity="message_id")
    builder.set_spout("orders", spout)
    book = builder.set_bolt("book", BusyBook(), config=config)
    book.fields_grouping("orders", "customer")
    cluster = local_cluster(builder.build())
    for number in (0, 1, 2, 0, 1, 2):
        cluster.feed_body(order(), identity=f"o-{number}")
    cluster.advance_time(300)
    assert len(cluster.acked("orders")) == 6
    assert cluster.state("book") == {"ann": 15}
    assert cluster.pending("orders") == 0


class Basic(BasicBolt):
    output_fields = "word string, key binary"

    def execute(self, tup, collector):
        for word in tup["body"].split():
            collector.emit([word, tup.key])


class Rich(Bolt):
    output_fields = "word string, key binary"

    def execute(self, tup, collector):
        for word in tup["body"].split():
            collector.emit([word, tup.key], tup)
        collector.ack(tup)


class Waiting(AsyncBolt):
    output_fields = "word string, key binary"

    async def execute(self, tup, collector):
        for word in tup["body"].split():
            collector.emit([word, tup.key])


class Batched(BatchBolt):
    output_fields = "word string, key binary"
    size = 3

    def execute_batch(self, tuples, collector):
        for tup in reversed(tuples):
            for word in tup["body"].split():
                collector.emit([word, tup.key], tup)


class Keep(BasicBolt):
    output_fields = "word string, above binary, key binary"

    def execute(self, tup, collector):
        collector.emit([tup["word"], tup["key"], tup.key])


def kept(local_cluster, bolt: Any, config: dict[str, Any] | None = None, tasks: int = 1):
    """Return the remembered keys of words, and of their sentences, where ``bolt`` splits them."""
    feeder = FeederSpout(fields="body string")
    builder = TopologyBuilder("kinds")
    builder.set_spout("sentences", feeder)
    split = builder.set_bolt("split", bolt, tasks, config)
    split.fields_grouping("sentences", "body")
    builder.set_bolt("keep", Keep()).shuffle_grouping("split")
    cluster = local_cluster(builder.build())
    for number in range(7):
        feeder.feed([f"{number} a b"], number, identity=f"m-{number}")
    cluster.advance_time(60)
    assert len(cluster.acked("sentences")) == 7
    return sorted(cluster.read_tuples("keep"))


@pytest.mark.parametrize(
    ("bolt", "config"),
    [
        (Rich(), {}),
        (Waiting(), {}),
        (Batched(), {}),
        (Basic(), {"ordered_by": "body"}),
        (Waiting(), {"ordered_by": "body"}),
        (Basic(), {"rate_limit": "1/s"}),
        (Waiting(), {"rate_limit": "1/s"}),
    ],
)
def test_keys_are_the_same_whatever_the_kind_of_bolt_and_its_limits(local_cluster, bolt, config):
    plain = kept(local_cluster, Basic())
    assert len({key for _, _, key in plain}) == 21
    assert kept(local_cluster, bolt, config, tasks=3) == plain
