"""Rows become messages: a body, named properties, and a routing key."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from tiercel.frames.errors import OptionError, RowError
from tiercel.frames.options import SinkOptions
from tiercel.frames.writers import RabbitMQStreamWriter, RowsToMessages

TEXTS = pa.map_(pa.string(), pa.string())


def messages(rows, types=None, **options):
    batch = pa.RecordBatch.from_pylist(rows, schema=types)
    found = SinkOptions.read({"url": "amqp://localhost"} | options)
    maker = RowsToMessages(found, from_arrow_schema(batch.schema))
    return list(maker.messages([batch], lambda row: f"id-{row}"))


def test_a_body_goes_to_the_queue_of_the_option():
    [one, two] = messages([{"body": "ä"}, {"body": "b"}], queue="orders")
    assert (one.exchange, one.routing_key, one.body) == ("", "orders", "ä".encode())
    assert [each.properties.message_id[:5] for each in (one, two)] == ["id-0-", "id-1-"]
    assert one.properties.delivery_mode == 2


def test_binary_bodies_go_as_they_are():
    [one] = messages([{"body": b"\xff"}], queue="orders")
    assert one.body == b"\xff"


def ids(rows):
    return [each.properties.message_id for each in messages(rows, exchange="shop")]


def test_rows_that_are_written_again_have_the_same_ids():
    rows = [{"body": body, "routing_key": "new", "type": "order"} for body in "ab"]
    assert ids(rows) == ids(rows)


@pytest.mark.parametrize("other", [{"body": "b"}, {"routing_key": "old"}, {"type": "offer"}])
def test_another_row_at_the_same_place_has_another_id(other):
    """After a shuffle, a repeated task may see its rows in another order; a consumer that drops
    duplicates by id would then lose one.
    """
    row = {"body": "a", "routing_key": "new", "type": "order"}
    assert ids([row]) != ids([row | other])


def test_exchange_and_routing_key_are_columns():
    rows = [{"body": "a", "exchange": "shop", "routing_key": "new"}]
    [one] = messages(rows)
    assert (one.exchange, one.routing_key) == ("shop", "new")


def test_an_option_goes_before_a_column_as_in_sparks_kafka_sink():
    rows = [{"body": "a", "exchange": "shop", "routing_key": "new"}]
    [one] = messages(rows, queue="orders")
    assert (one.exchange, one.routing_key) == ("", "orders")


def test_properties_are_columns_by_their_names():
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    types = pa.schema(
        {
            "body": pa.string(),
            "message_id": pa.string(),
            "priority": pa.int32(),
            "timestamp": pa.timestamp("us", tz="UTC"),
            "headers": TEXTS,
            "type": pa.string(),
        }
    )
    row = {
        "body": "a",
        "message_id": "mine",
        "priority": 4,
        "timestamp": when,
        "headers": [("a", "b")],
        "type": None,
    }
    [one] = messages([row], types, queue="orders")
    assert (one.properties.message_id, one.properties.priority) == ("mine", 4)
    assert one.properties.timestamp == int(when.timestamp())
    assert dict(one.properties.headers) == {"a": "b"}
    assert one.properties.type is None


def test_maps_inside_headers_are_tables():
    inner = pa.map_(pa.string(), pa.int64())
    within = pa.struct([("deep", inner), ("list", pa.list_(inner))])
    types = pa.schema({"body": pa.string(), "headers": pa.map_(pa.string(), within)})
    given = {"deep": [("k", 1)], "list": [[("n", 2)], [], None]}
    [one] = messages([{"body": "x", "headers": [("a", given)]}], types, queue="orders")
    assert dict(one.properties.headers) == {
        "a": {"deep": {"k": 1}, "list": [{"n": 2}, {}, None]},
    }


def test_what_tells_of_an_arrival_is_passed_over():
    """A query may therefore write the rows that it read."""
    row = {"body": "a", "queue": "old", "delivery_count": 3, "redelivered": True, "delivery": "x"}
    [one] = messages([row], queue="orders")
    assert one.routing_key == "orders"


@pytest.mark.parametrize(
    ("row", "options", "said"),
    [
        ({"value": "a"}, {"queue": "q"}, "writes a column 'body', a string or binary"),
        ({"body": "a", "word": "b"}, {"queue": "q"}, "a message has no 'word': select body"),
        ({"body": "a"}, {}, "needs to know where rows go"),
        ({"body": "a"}, {"exchange": "e"}, "there is no routing_key"),
    ],
)
def test_columns_that_do_not_fit_are_refused_before_anything_is_sent(row, options, said):
    with pytest.raises(OptionError, match=said):
        messages([row], **options)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"body": None, "priority": 1}, "row 1 lacks its body, exchange or routing key"),
        ({"body": "a", "priority": 256}, "row 1 cannot be a message: priority is a number from 0"),
        ({"body": "a", "type": "x" * 256}, "type has 256 bytes"),
    ],
)
def test_a_row_that_is_no_message_is_named(row, said):
    with pytest.raises(RowError, match=said):
        messages(
            [row],
            pa.schema({name: pa.string() if name != "priority" else pa.int32() for name in row}),
            queue="orders",
        )


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"routing_key": 5}, "the column 'routing_key' must be a string, not a bigint"),
        ({"routing_key": b"new"}, "the column 'routing_key' must be a string, not a binary"),
        ({"body": 5}, "the column 'body' must be a string or binary, not a bigint"),
        (
            {"headers": [{"key": "a", "value": "b"}]},
            "the column 'headers' must be a map, such as map_from_entries makes of pairs, not an a",
        ),
    ],
)
def test_a_column_of_another_type_is_refused_before_anything_is_sent(row, said):
    with pytest.raises(OptionError, match=re.escape(said)):
        messages([{"body": "a", "routing_key": "new"} | row], exchange="shop")


def test_a_column_that_an_option_goes_before_may_be_of_any_type():
    [one] = messages([{"body": "a", "routing_key": 5}], queue="orders")
    assert one.routing_key == "orders"


def test_a_stream_that_is_no_append_is_told_where_to_write():
    options = SinkOptions.read({"url": "amqp://localhost", "queue": "q"})
    schema = from_arrow_schema(pa.schema({"body": pa.string()}))
    with pytest.raises(OptionError, match=r'outputMode\("append"\), and in foreachBatch'):
        RabbitMQStreamWriter(options, schema, overwrite=True)
