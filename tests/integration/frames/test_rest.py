"""Triggers farther apart than RabbitMQ's consumer timeout, on a real broker."""

from __future__ import annotations

import pytest

from tests.support.broker import (
    CONSUMER_TIMEOUT_S,
    plain_channel,
    put,
    ready,
    unique,
    wait_ready,
    wait_timeouts,
)
from tests.support.data_frames import bodies_between
from tests.support.waiting import wait_until
from tiercel.frames import taker
from tiercel.frames.columns import available, struct
from tiercel.frames.options import SourceOptions
from tiercel.frames.readers import RabbitMQStreamReader


@pytest.fixture
def queue(impatient):
    """A quorum queue with RabbitMQ 4's default of a delivery limit."""
    name = unique()
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 2}
    with plain_channel(impatient.url) as channel:
        channel.queue_declare(name, durable=True, arguments=arguments)
    return name


@pytest.fixture
def reader(impatient, queue, monkeypatch):
    monkeypatch.setattr(taker, "_REST_S", CONSUMER_TIMEOUT_S / 6)
    monkeypatch.setattr(taker, "_REST_LOOK_S", CONSUMER_TIMEOUT_S / 60)
    options = SourceOptions.read({"url": impatient.url, "queue": queue})
    reader = RabbitMQStreamReader(options, struct(available(options)))
    yield reader
    reader.stop()


def asked_until_something_came(reader, start):
    """Return the bodies of the first trigger after a rest that has any.

    A trigger may come before RabbitMQ has delivered anything to the new consumer.
    """

    def came():
        return bodies_between(reader, start, reader.latestOffset(start, None))

    return wait_until(came)


@pytest.mark.rest
@pytest.mark.embedded
def test_messages_that_wait_for_the_next_trigger_meet_no_consumer_timeout(impatient, queue, reader):
    """With one trigger per day, they would otherwise be redelivered every half hour until
    dead-lettered.
    """
    start = reader.initialOffset()
    assert reader.latestOffset(start, None) == start
    put(impatient.url, queue, b"a", b"b")
    wait_timeouts(4)
    assert ready(impatient.url, queue) == 2
    assert asked_until_something_came(reader, start) == [b"a", b"b"]
    wait_ready(impatient.url, queue, 0)


@pytest.mark.embedded
def test_what_was_read_is_acked_during_a_rest(impatient, queue, reader):
    put(impatient.url, queue, b"a")
    wait_ready(impatient.url, queue, 1)
    start = reader.initialOffset()
    end = reader.latestOffset(start, None)
    assert bodies_between(reader, start, end) == [b"a"]
    put(impatient.url, queue, b"b")
    wait_timeouts(0.5)
    wait_ready(impatient.url, queue, 1)
    reader.commit(end)
    assert asked_until_something_came(reader, end) == [b"b"]
    reader.stop()
    wait_ready(impatient.url, queue, 1)
