"""Messages become rows with all columns, or with the columns of the given schema."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pika import BasicProperties
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from tiercel.frames.columns import MessageColumns, Slice, Source, available, cut, rows_of, struct
from tiercel.frames.errors import OptionError
from tiercel.frames.options import SourceOptions
from tiercel.queues.consuming.messages import Delivery

SOURCE = Source("0123456789abcdef", 0, "orders")


def options(**more):
    return SourceOptions.read({"url": "amqp://localhost", "queue": "orders"} | more)


def delivery(tag, body=b"body", **properties):
    return Delivery(
        2, tag, body, 0, BasicProperties(**properties), exchange="shop", routing_key="new"
    )


def rows(deliveries, asked=None, **more):
    found = options(**more)
    return MessageColumns(found, asked or struct(available(found))).of(SOURCE, deliveries)


def test_by_default_a_row_has_the_body_and_every_property():
    names = struct(available(options())).fieldNames()
    assert names[0] == "body"
    assert names[-1] == "delivery"
    assert {"message_id", "headers", "timestamp", "delivery_count", "redelivered"} < set(names)


def test_types_are_those_that_the_issue_of_spark_users_expect():
    types = {field.name: field.dataType for field in struct(available(options()))}
    assert types["body"] == BinaryType()
    assert types["headers"] == MapType(StringType(), StringType())
    assert types["priority"] == IntegerType()
    assert types["timestamp"].simpleString() == "timestamp"


def test_a_message_becomes_a_row():
    [row] = rows([delivery(7, message_id="m", priority=3, timestamp=10)]).rows.to_pylist()
    assert row["body"] == b"body"
    assert (row["message_id"], row["priority"], row["queue"]) == ("m", 3, "orders")
    assert (row["exchange"], row["routing_key"]) == ("shop", "new")
    assert row["timestamp"] == datetime(1970, 1, 1, 0, 0, 10, tzinfo=UTC)
    assert row["delivery"] == "0123456789abcdef.0.2.7"
    assert row["correlation_id"] is None


def test_a_given_schema_leaves_out_what_is_not_asked_for():
    asked = StructType(
        [StructField("routing_key", StringType()), StructField("body", BinaryType())]
    )
    assert rows([delivery(1)], asked).rows.to_pylist() == [{"routing_key": "new", "body": b"body"}]


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (StructField("bodi", BinaryType()), "no column 'bodi' in rabbitmq; the columns are body,"),
        (StructField("body", StringType()), "'body' is a binary here, not a string"),
        (StructField("priority", LongType()), "'priority' is an int here, not a bigint"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(field, said):
    with pytest.raises(OptionError, match=said):
        rows([], StructType([field]))


def test_a_property_without_a_true_value_is_null_and_costs_no_other_row():
    """For example, a publisher writes milliseconds, and a query asks for all columns."""
    found = rows([delivery(1, timestamp=10), delivery(2, timestamp=1 << 62)]).rows
    assert [each is not None for each in found.column("timestamp").to_pylist()] == [True, False]


def test_fields_take_the_place_of_the_body():
    found = rows([delivery(1, b'{"id": 7, "type": "new"}')], fields="id long, type string")
    [row] = found.rows.to_pylist()
    assert (row["id"], row["type"]) == (7, "new")
    assert "body" not in row


def test_a_bad_body_is_no_row_and_says_why():
    found = rows([delivery(1, b"{"), delivery(2, b'{"id": 7}')], fields="id long")
    assert found.rows.column("id").to_pylist() == [7]
    assert [each.tag for each in found.deliveries] == [2]
    [(bad, reason)] = found.bad
    assert (bad.tag, reason[:20]) == (1, "the body is not JSON")


def test_a_bad_body_can_have_a_column():
    found = rows(
        [delivery(1, b"{"), delivery(2, b'{"id": 7}')],
        fields="id long",
        columnNameOfCorruptRecord="_corrupt",
    )
    assert found.rows.column("id").to_pylist() == [None, 7]
    assert found.rows.column("_corrupt").to_pylist() == [b"{", None]
    assert found.bad == []


def test_a_field_may_be_missing_or_have_a_default():
    fields = "id long, note string?, unit string DEFAULT 'kg'"
    found = rows([delivery(1, b'{"id": 7}')], fields=fields)
    [row] = found.rows.to_pylist()
    assert (row["id"], row["note"], row["unit"]) == (7, None, "kg")


@pytest.mark.parametrize("name", ["delivery", "Delivery", "Queue"])
def test_a_field_goes_before_a_column_of_its_name(name):
    body = b'{"id": 7, "%s": "by ship"}' % name.encode()
    found = rows([delivery(1, body)], fields=f"id long, {name} string")
    names = [each.lower() for each in found.rows.schema.names]
    assert names.count(name.lower()) == 1
    assert found.rows.column(name).to_pylist() == ["by ship"]


@pytest.mark.parametrize("name", ["id", "queue", "delivery", "ID"])
def test_the_column_of_bad_bodies_is_one_of_its_own(name):
    with pytest.raises(OptionError, match="columnNameOfCorruptRecord is a column of its own"):
        rows([], fields="id long", columnNameOfCorruptRecord=name)


@pytest.mark.parametrize("fields", ["id", "id long, id long", "id blob"])
def test_fields_that_are_no_ddl_are_refused(fields):
    with pytest.raises(OptionError, match="fields: "):
        rows([], fields=fields)


def test_rows_are_cut_and_come_back_the_same():
    found = rows([delivery(tag) for tag in range(1, 8)]).rows
    pieces = cut(found, 3)
    assert len(pieces) == 3
    assert pa.Table.from_batches([b for p in pieces for b in rows_of(Slice(p))]) == (
        pa.Table.from_batches([found])
    )


def test_large_rows_make_more_pieces_than_asked_for():
    found = rows([delivery(tag, b"x" * 1024 * 1024) for tag in range(1, 10)]).rows
    assert len(cut(found, 1)) == 3


def test_no_rows_are_no_pieces():
    assert cut(rows([]).rows, 4) == []


def test_large_rows_among_small_ones_are_no_large_piece():
    """Spark refuses a task of more than 128 MiB, and would refuse it again after each restart."""
    bodies = [b"x"] * 5_000 + [b"x" * 4 * 1024 * 1024] * 6
    found = rows([delivery(tag, body) for tag, body in enumerate(bodies)]).rows
    pieces = cut(found, 1)
    assert max(map(len, pieces)) < 9 * 1024 * 1024
    assert sum(len(batch) for piece in pieces for batch in rows_of(Slice(piece))) == len(bodies)
