"""Triggers that are farther apart than RabbitMQ lets a message be held, on a real broker."""

from __future__ import annotations

import time

import pytest

from tests.support.broker import plain_channel, put, ready, unique, wait_ready
from tests.support.waiting import wait_until
from tiercel.frames.columns import available, struct
from tiercel.frames.options import SourceOptions
from tiercel.frames.reading import taker
from tiercel.frames.reading.slices import rows_of
from tiercel.frames.reading.stream_reader import RabbitMQStreamReader

# 30 minutes, scaled.
TIMEOUT_S = 4.0


@pytest.fixture(scope="module")
def impatient(servers):
    """A broker with a short consumer timeout."""
    with servers.rabbitmq() as server:
        server.control(
            "eval",
            f"application:set_env(rabbit, consumer_timeout, {TIMEOUT_S * 1000:.0f}),"
            "application:set_env(rabbit, channel_tick_interval, 500).",
        )
        yield server


@pytest.fixture
def queue(impatient):
    """A quorum queue as RabbitMQ 4 makes them: what came back often is not kept."""
    name = unique()
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 2}
    with plain_channel(impatient.url) as channel:
        channel.queue_declare(name, durable=True, arguments=arguments)
    return name


@pytest.fixture
def reader(impatient, queue, monkeypatch):
    monkeypatch.setattr(taker, "_REST_S", TIMEOUT_S / 6)
    monkeypatch.setattr(taker, "_REST_LOOK_S", TIMEOUT_S / 60)
    options = SourceOptions.read({"url": impatient.url, "queue": queue})
    reader = RabbitMQStreamReader(options, struct(available(options)))
    yield reader
    reader.stop()


def wait_timeouts(count):
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began > count * TIMEOUT_S)


def bodies(reader, start, end):
    return [
        body
        for piece in reader.partitions(start, end)
        for batch in rows_of(piece)
        for body in batch.column("body").to_pylist()
    ]


@pytest.mark.rest
@pytest.mark.embedded
def test_messages_that_wait_for_the_next_trigger_meet_no_consumer_timeout(impatient, queue, reader):
    """As with a trigger per day: they would come back every half an hour, until they are dead."""
    start = reader.initialOffset()
    assert reader.latestOffset(start, None) == start
    put(impatient.url, queue, b"a", b"b")
    wait_timeouts(4)
    assert ready(impatient.url, queue) == 2
    end = reader.latestOffset(start, None)
    assert bodies(reader, start, end) == [b"a", b"b"]
    wait_ready(impatient.url, queue, 0)


@pytest.mark.embedded
def test_what_was_read_is_acked_during_a_rest(impatient, queue, reader):
    put(impatient.url, queue, b"a")
    wait_ready(impatient.url, queue, 1)
    start = reader.initialOffset()
    end = reader.latestOffset(start, None)
    assert bodies(reader, start, end) == [b"a"]
    put(impatient.url, queue, b"b")
    wait_timeouts(0.5)
    wait_ready(impatient.url, queue, 1)
    reader.commit(end)
    after = reader.latestOffset(end, None)
    assert bodies(reader, end, after) == [b"b"]
    reader.stop()
    wait_ready(impatient.url, queue, 1)
