"""Inspecting a queue shows its messages and leaves them there."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.broker import plain_channel, put, take_all, unique, version, wait_ready
from tests.support.data_frames import new_queue
from tiercel.frames.columns import available, struct
from tiercel.frames.errors import FramesError
from tiercel.frames.options import SourceOptions
from tiercel.frames.readers import QueueLook
from tiercel.queues.errors import BrokerRefusedError, QueueMissingError


@pytest.fixture
def queue(amqp_url):
    return new_queue(amqp_url, unique())


@pytest.fixture
def look(amqp_url, queue):
    def look(**options):
        found = SourceOptions.read({"url": amqp_url, "queue": queue} | options)
        reader = QueueLook(found, struct(available(found)))
        return [
            row
            for piece in reader.partitions()
            for batch in reader.read(piece)
            for row in batch.to_pylist()
        ]

    return look


def test_an_auto_delete_queue_is_refused_which_the_end_of_the_look_would_delete(amqp_url, look):
    name = unique()
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(name, auto_delete=True)
        fill(amqp_url, name, 2)
        with pytest.raises(BrokerRefusedError, match="is auto-delete"):
            look(queue=name)
        wait_ready(amqp_url, name, 2)
        channel.queue_delete(name)


def fill(amqp_url, queue, count):
    put(amqp_url, queue, *[b"%d" % number for number in range(count)])
    wait_ready(amqp_url, queue, count)


def test_each_look_shows_the_same(amqp_url, queue, look):
    fill(amqp_url, queue, 100)
    for _ in range(3):
        assert sorted(int(row["body"]) for row in look()) == list(range(100))
        wait_ready(amqp_url, queue, 100)


def test_each_of_several_looks_at_once_shows_all(amqp_url, queue, look):
    fill(amqp_url, queue, 500)
    with ThreadPoolExecutor(4) as threads:
        looks = [threads.submit(look) for _ in range(8)]
        assert [len(each.result()) for each in looks] == [500] * 8
    wait_ready(amqp_url, queue, 500)


def test_an_empty_queue_has_no_rows(look):
    assert look() == []


def test_a_bound_shows_the_oldest(amqp_url, queue, look):
    fill(amqp_url, queue, 30)
    assert [row["body"] for row in look(maxMessagesPerTrigger="3")] == [b"0", b"1", b"2"]
    wait_ready(amqp_url, queue, 30)


def test_a_bound_of_bytes_shows_the_oldest(amqp_url, queue, look):
    put(amqp_url, queue, *[bytes(1_000)] * 30)
    wait_ready(amqp_url, queue, 30)
    # With their properties, the first four exceed 4,000 bytes.
    assert len(look(maxBytesPerTrigger="4500")) == 5
    wait_ready(amqp_url, queue, 30)


def test_what_a_bounded_look_did_not_show_stays_behind_what_it_did(amqp_url, queue, look):
    fill(amqp_url, queue, 300)
    for bound in ({"maxBytesPerTrigger": "100"}, {"maxMessagesPerTrigger": "200"}, {}):
        shown = [int(row["body"]) for row in look(**bound)]
        assert shown == list(range(len(shown)))
    assert [int(body) for body, _ in take_all(amqp_url, queue)] == list(range(300))


def test_a_stream_is_refused(amqp_url, look):
    name = unique("stream")
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    with pytest.raises(BrokerRefusedError):
        look(queue=name)


def test_more_than_can_be_held_is_an_error_that_says_what_to_do(amqp_url, queue, look):
    put(amqp_url, queue, *[b"x" * (16 * 1024 * 1024)] * 5)
    wait_ready(amqp_url, queue, 5)
    with pytest.raises(FramesError, match="set maxMessagesPerTrigger or maxBytesPerTrigger"):
        look()
    wait_ready(amqp_url, queue, 5)


def test_headers_count_where_bytes_are_bounded(amqp_url, queue, look):
    put(amqp_url, queue, *[b""] * 20, headers={"large": "x" * 100_000})
    wait_ready(amqp_url, queue, 20)
    assert len(look(maxBytesPerTrigger="500000")) == 5
    wait_ready(amqp_url, queue, 20)


def test_a_message_that_one_more_look_would_end_is_left_alone(amqp_url, look):
    name = unique("limited")
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(
            name, durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 3}
        )
    fill(amqp_url, name, 1)
    assert [len(look(queue=name)) for _ in range(2)] == [1, 1]
    if version(amqp_url) >= (4, 3):
        # On this version inspecting does not count as a delivery.
        assert [len(look(queue=name)) for _ in range(8)] == [1] * 8
        wait_ready(amqp_url, name, 1)
        return
    with pytest.raises(FramesError, match="after one more look"):
        look(queue=name)
    wait_ready(amqp_url, name, 1)


def test_bodies_that_do_not_fit_are_an_error_and_stay(amqp_url, queue, look):
    put(amqp_url, queue, b"{")
    wait_ready(amqp_url, queue, 1)
    with pytest.raises(FramesError, match="do not fit the fields, the first because"):
        look(fields="id long")
    wait_ready(amqp_url, queue, 1)
    [row] = look(fields="id long", columnNameOfCorruptRecord="bad")
    assert (row["id"], row["bad"]) == (None, b"{")


def test_a_missing_queue_is_named(look):
    with pytest.raises(QueueMissingError, match="'no-such-queue'"):
        look(queue="no-such-queue")
