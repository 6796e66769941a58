"""Rows on their way to a broker, without Spark."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from tests.support.broker import plain_channel, take_all, unique
from tests.support.data_frames import new_queue
from tiercel.compose.server import free_port
from tiercel.frames import writers
from tiercel.frames.options import SinkOptions
from tiercel.frames.writers import RowsToMessages, send
from tiercel.queues.errors import PublishRefusedError, QueuesError


@pytest.fixture
def queue(amqp_url):
    return new_queue(amqp_url, unique())


@pytest.fixture
def exchange(amqp_url, queue):
    """An exchange that routes the key ``new`` to the queue."""
    name = unique("exchange")
    with plain_channel(amqp_url) as channel:
        channel.exchange_declare(name, "direct")
        channel.queue_bind(queue, name, "new")
    return name


@pytest.fixture
def write(amqp_url):
    def write(rows, **options):
        batch = pa.RecordBatch.from_pylist(rows)
        found = SinkOptions.read({"url": amqp_url} | options)
        maker = RowsToMessages(found, from_arrow_schema(batch.schema))
        return send(found, maker.messages([batch], lambda row: f"id-{row}"))

    return write


def test_a_row_arrives_with_its_properties(amqp_url, queue, exchange, write):
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    row = {"body": "hello", "exchange": exchange, "routing_key": "new", "timestamp": when}
    assert write([row | {"priority": 4, "type": "order"}]) == 1
    with plain_channel(amqp_url) as channel:
        _, properties, body = channel.basic_get(queue, auto_ack=True)
    assert (body, properties.message_id[:5], properties.priority) == (b"hello", "id-0-", 4)
    assert (properties.timestamp, properties.type) == (int(when.timestamp()), "order")


def test_a_row_that_no_queue_is_bound_for_is_an_error(exchange, write):
    with pytest.raises(PublishRefusedError, match="leads to no queue for the routing key 'old'"):
        write([{"body": "lost"}], exchange=exchange, routingKey="old")


def test_it_goes_aside_with_the_reason_if_there_is_a_queue_for_that(
    amqp_url, queue, exchange, write
):
    aside = new_queue(amqp_url, unique("aside"))
    rows = [{"body": key, "routing_key": key} for key in ("new", "old", "new")]
    assert write(rows, exchange=exchange, unroutableQueue=aside) == 3
    assert [body for body, _ in take_all(amqp_url, queue)] == [b"new", b"new"]
    [(body, headers)] = take_all(amqp_url, aside)
    assert body == b"old"
    assert "leads to no queue" in headers["x-tiercel-reason"]
    assert (headers["x-tiercel-exchange"], headers["x-tiercel-routing-key"]) == (exchange, "old")


def test_many_that_go_aside_are_not_kept_until_the_end(
    amqp_url, queue, exchange, write, monkeypatch, caplog
):
    monkeypatch.setattr(writers, "_AT_ONCE", 2)
    aside = new_queue(amqp_url, unique("aside"))
    rows = [{"body": f"{n}", "routing_key": "old" if n % 3 else "new"} for n in range(9)]
    assert write(rows, exchange=exchange, unroutableQueue=aside) == 9
    assert [body for body, _ in take_all(amqp_url, queue)] == [b"0", b"3", b"6"]
    assert [body for body, _ in take_all(amqp_url, aside)] == [b"1", b"2", b"4", b"5", b"7", b"8"]
    assert [each.message.split(":")[0] for each in caplog.records] == [
        f"6 rows could not be routed and are in queue {aside}"
    ]


def test_a_task_without_rows_needs_no_broker():
    nowhere = SinkOptions.read({"url": f"amqp://127.0.0.1:{free_port()}", "queue": "orders"})
    assert send(nowhere, []) == 0


def test_a_queue_for_what_goes_aside_that_is_missing_is_an_error(exchange, write):
    with pytest.raises(QueuesError, match="there is no queue 'no-such-queue'"):
        write(
            [{"body": "lost"}],
            exchange=exchange,
            routingKey="old",
            unroutableQueue="no-such-queue",
        )


def test_an_exchange_that_is_missing_is_an_error(write):
    with pytest.raises(QueuesError, match="no exchange 'no-such'"):
        write([{"body": str(n)} for n in range(30)], exchange="no-such", routingKey="a")
