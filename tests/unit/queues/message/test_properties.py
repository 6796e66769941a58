"""Columns of a message's properties, and how each is read."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from pika import BasicProperties

from tiercel.queues.broker.frames import Headers, Properties, read_properties
from tiercel.queues.consuming.messages import Delivery
from tiercel.queues.errors import BadPropertyError, SchemaError
from tiercel.queues.message.properties import PROPERTIES, PropertyColumns, header_texts
from tiercel.queues.values.schema import Schema

EVERYTHING = {
    "content_type": "application/json",
    "content_encoding": "gzip",
    "priority": 7,
    "correlation_id": "c-1",
    "reply_to": "amq.gen-1",
    "message_id": "m-1",
    "timestamp": 1_700_000_000,
    "type": "order",
    "user_id": "guest",
    "app_id": "shop",
}


def delivery(properties, **where):
    return Delivery(1, 1, b"body", 2, properties, **where)


def over_the_wire(**values):
    """Return the properties as the consumer gets them."""
    return read_properties(b"".join(BasicProperties(**values).encode()))


def read(name, properties, **where):
    [value] = PropertyColumns.of([name]).reader("orders")(delivery(properties, **where))
    return value


def test_each_property_has_a_column_of_its_type():
    columns = PropertyColumns.of(list(PROPERTIES)).after("body string")
    types = {field.name: field.type for field in Schema.parse(columns).fields}
    text = ("message_id", "correlation_id", "reply_to", "content_type", "content_encoding", "type")
    text += ("app_id", "user_id", "exchange", "routing_key", "queue")
    assert types == {
        "body": "string",
        **dict.fromkeys(text, "string"),
        "headers": "map<string,string>",
        "priority": "int",
        "timestamp": "timestamp",
        "delivery_count": "int",
        "redelivered": "boolean",
    }


def test_each_property_is_read_and_fits_its_column():
    properties = over_the_wire(**EVERYTHING, headers={"tenant": "a"})
    columns = PropertyColumns.of(list(PROPERTIES))
    values = columns.reader("orders")(
        delivery(properties, exchange="events", routing_key="order.new", redelivered=True)
    )
    assert dict(zip(columns.columns, values, strict=True)) == {
        **EVERYTHING,
        "timestamp": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        "exchange": "events",
        "routing_key": "order.new",
        "queue": "orders",
        "headers": {"tenant": "a"},
        "delivery_count": 2,
        "redelivered": True,
    }
    Schema.parse(columns.after("body string")).check(["", *values])


def test_a_property_that_is_not_there_is_null():
    columns = PropertyColumns.of(list(EVERYTHING))
    assert columns.reader("q")(delivery(over_the_wire())) == [None] * len(EVERYTHING)
    assert read("headers", over_the_wire()) == {}
    uncounted = Delivery(1, 1, b"", None, over_the_wire())
    assert PropertyColumns.of(["delivery_count"]).reader("q")(uncounted) == [None]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("grüße", "grüße"),
        (None, None),
        (True, "true"),
        (12, "12"),
        (-(1 << 40), "-1099511627776"),
        (Decimal("1.25"), "1.25"),
        (b"\xff\x00", "/wA="),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05+00:00"),
        ([1, "ü", [None, True]], '[1,"ü",[null,true]]'),
        ({"a": {"b": b"\xff"}, "n": Decimal(2)}, '{"a":{"b":"/w=="},"n":"2"}'),
    ],
)
def test_a_header_becomes_text(value, text):
    assert read("headers", over_the_wire(headers={"h": value})) == {"h": text}


def test_a_number_with_a_point_becomes_text():
    """pika cannot write such numbers."""
    table = b"\x01hd" + struct.pack(">d", 1.5) + b"\x01nd" + struct.pack(">d", float("nan"))
    assert read("headers", Properties(headers=Headers(table))) == {"h": "1.5", "n": "nan"}


def test_what_the_broker_keeps_in_the_headers_is_left_out():
    headers = {"x-delivery-count": 3, "x-acquired-count": 4, "CC": ["a"], "BCC": ["b"], "mine": 1}
    assert read("headers", over_the_wire(headers=headers)) == {"mine": "1"}


def test_headers_of_pika_alone_are_read_too():
    assert header_texts({"a": 1, "x-delivery-count": 2}) == {"a": "1"}
    assert header_texts(None) == {}


@pytest.mark.parametrize("padding", ["", "p" * 500])
def test_headers_that_cannot_be_read_say_why(padding):
    table = Headers.of({"a": padding}).wire + b"\x01bZ"
    with pytest.raises(BadPropertyError, match=r"its headers cannot be read: .*unknown type"):
        read("headers", Properties(headers=Headers(table)))
    with pytest.raises(BadPropertyError, match="its headers cannot be read: not AMQP"):
        read("headers", Properties(headers=Headers(unreadable="not AMQP")))


def test_the_same_headers_are_not_shared_between_tuples():
    first = read("headers", over_the_wire(headers={"a": "b"}))
    first["a"] = "changed"
    assert read("headers", over_the_wire(headers={"a": "b"})) == {"a": "b"}


def test_text_that_is_not_utf8_is_near():
    properties = Properties(message_id=b"a\xff")
    assert read("message_id", properties) == "a\\xff"
    assert read("routing_key", properties, exchange="e", routing_key=b"\xfe") == "\\xfe"
    assert read("exchange", properties, exchange=b"\xfe") == "\\xfe"


def test_a_timestamp_in_milliseconds_says_what_is_wrong():
    with pytest.raises(BadPropertyError, match=r"1700000000000 is after the year 9999: .* seconds"):
        read("timestamp", over_the_wire(timestamp=1_700_000_000_000))


@pytest.mark.parametrize(("said", "count"), [(1 << 62, (1 << 31) - 1), (-5, 0), (True, 1)])
def test_a_delivery_count_that_a_sender_wrote_fits_the_column(said, count):
    [value] = PropertyColumns.of(["delivery_count"]).reader("q")(
        Delivery(1, 1, b"", said, over_the_wire())
    )
    assert value == count
    assert type(value) is int


def test_a_message_that_was_put_back_has_its_first_exchange_and_routing_key():
    put_back = over_the_wire(
        headers={"x-tiercel-exchange": "events", "x-tiercel-routing-key": "order.new", "a": "b"}
    )
    come = {"exchange": "", "routing_key": "orders"}
    assert read("exchange", put_back, **come) == "events"
    assert read("routing_key", put_back, **come) == "order.new"
    assert read("headers", put_back, **come) == {"a": "b"}
    # The broker's value overrides the header's.
    assert read("exchange", put_back, exchange="real", routing_key="k") == "real"
    assert read("routing_key", put_back, exchange="real", routing_key="k") == "k"


def test_columns_may_have_other_names():
    columns = PropertyColumns.of({"timestamp": "sent_at", "type": "kind"})
    assert Schema.parse(columns.after("type string")).names == ("type", "sent_at", "kind")
    assert columns.reader("q")(delivery(over_the_wire(type="order"))) == [None, "order"]


def test_a_column_that_the_body_has_too_is_refused():
    with pytest.raises(SchemaError, match="names the field 'type' twice"):
        Schema.parse(PropertyColumns.of(["type"]).after("type string"))


@pytest.mark.parametrize(
    ("properties", "line"),
    [
        (["message_id", "colour"], "there is no property 'colour'; the properties are message_id,"),
        (["headers", "headers"], "properties names 'headers' twice"),
        ("message_id", r"properties is a list of names: write \['message_id'\]"),
        ({"type", "app_id"}, r"another order in each process: write \['app_id', 'type'\]"),
        (frozenset({"type", 3}), r"another order in each process: write \[3, 'type'\]"),
        ([5], "there is no property 5"),
    ],
)
def test_a_name_that_is_wrong_is_one_clear_line(properties, line):
    with pytest.raises(SchemaError, match=line):
        PropertyColumns.of(properties)


def test_values_are_given_by_name():
    columns = PropertyColumns.of(["message_id", "headers"])
    assert columns.values({"headers": {"a": "b"}}) == [None, {"a": "b"}]
    with pytest.raises(SchemaError, match="no property 'type' here; there are message_id, headers"):
        columns.values({"type": "x"})
