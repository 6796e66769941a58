"""Showing, requeueing and deleting dead letters; and depths."""

import threading
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from typer.testing import CliRunner

from tests.support.broker import (
    Desk,
    delete,
    plain_channel,
    put,
    ready,
    set_policy,
    take_all,
    unique,
    version,
    wait_ready,
)
from tests.support.waiting import wait_until
from tiercel.queues.broker.declare import WorkQueue, declare_queue
from tiercel.queues.broker.depths import QueueDepth, depths
from tiercel.queues.errors import AddressError, PublishRefusedError, QueueMissingError
from tiercel.queues.peek import BODY_BYTES
from tiercel.queues.publishing import dead_letters
from tiercel.queues.retry import NO_WAIT, RetryPolicy
from tiercel.workers.cli.app import app

DEATH = {
    "x-tiercel-reason": "field 'n' is a long",
    "x-tiercel-queue": "orders",
    "x-tiercel-died": "2026-11-23T02:05:06.789+00:00",
    "trace": "kept",
    "x-death": [{"reason": "rejected"}],
}


BODIES = [b"%d" % number for number in range(20)]


@pytest.fixture
def queue(amqp_url):
    work = WorkQueue(name=unique(), retry=NO_WAIT, delivery_limit=1)
    declare_queue(amqp_url, work)
    return work


@contextmanager
def standing_still(broker, name):
    """Make the leader of a quorum queue hang during the block, or until the yielded function is
    called.
    """

    def order(what):
        broker.control("eval", f"sys:{what}({{'%2F_{name}', node()}}).")

    order("suspend")
    try:
        yield lambda: order("resume")
    finally:
        order("resume")


def test_show_tells_reason_origin_and_beginning_and_leaves_them_there(amqp_url, queue):
    put(amqp_url, queue.dead, b"x" * 1000, headers=DEATH)
    put(amqp_url, queue.dead, b"\x00\xff\nb", b"y" * (BODY_BYTES + 1))
    for _ in range(25):
        first, second, third = dead_letters.show(amqp_url, queue.name)
    assert (first.queue, first.reason, first.size, first.preview) == (
        "orders",
        "field 'n' is a long",
        1000,
        "x" * 200,
    )
    assert (second.queue, second.reason, second.preview) == (queue.name, "unknown", " \ufffd b")
    assert (first.body, second.body) == (b"x" * 1000, b"\x00\xff\nb")
    assert (third.body, third.size) == (b"y" * BODY_BYTES, dead_letters.BODY_BYTES + 1)
    wait_ready(amqp_url, queue.dead, 3)


def test_show_stops_at_its_limit_and_looks_at_the_same_ones_again(amqp_url, queue):
    put(amqp_url, queue.dead, b"a", b"b", b"c")
    for _ in range(3):
        assert [letter.preview for letter in dead_letters.show(amqp_url, queue.name, limit=2)] == [
            "a",
            "b",
        ]
    assert dead_letters.requeue(amqp_url, queue.name, limit=1) == 1
    assert [body for body, _ in take_all(amqp_url, queue.name)] == [b"a"], (
        "the oldest is the oldest, however often one looked"
    )


@pytest.mark.parametrize("limit", [12, 20])
def test_a_look_at_many_leaves_them_in_their_order(amqp_url, queue, limit, monkeypatch):
    """The broker treats each of several gets as a consumer, and sorts them by name."""
    monkeypatch.setattr(dead_letters, "SORTED", 1)
    put(amqp_url, queue.dead, *BODIES)
    wait_ready(amqp_url, queue.dead, 20)
    for _ in range(2):
        letters = dead_letters.show(amqp_url, queue.name, limit)
        assert [letter.body for letter in letters] == BODIES[:limit]
    last = dead_letters.look_for(amqp_url, queue.name, letters[-1].id)
    assert last.body == BODIES[limit - 1]
    wait_ready(amqp_url, queue.dead, 20)
    assert [body for body, _ in take_all(amqp_url, queue.dead)] == BODIES


def test_a_look_that_ends_early_deletes_none_of_those_that_came_with_the_last(amqp_url):
    name = unique()
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": dead_letters.RETURNS}
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(f"{name}.dead", durable=True, arguments=arguments)
        channel.queue_declare(name, durable=True)
    put(amqp_url, f"{name}.dead", *BODIES)
    wait_ready(amqp_url, f"{name}.dead", 20)
    third = dead_letters.show(amqp_url, name, limit=4)[2].id
    for _ in range(10):  # the fourth comes with it, and is not examined
        assert dead_letters.look_for(amqp_url, name, third) is not None
    assert dead_letters.requeue_chosen(amqp_url, name, [third]) == [third]
    wait_ready(amqp_url, f"{name}.dead", 19)
    assert len(dead_letters.show(amqp_url, name)) == 19


def test_what_the_broker_dead_lettered_has_the_brokers_reason(amqp_url):
    queue = WorkQueue(name=unique())
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(queue.dead, durable=True, arguments={"x-queue-type": "quorum"})
        limited = {"x-queue-type": "quorum", "x-delivery-limit": 1, "x-dead-letter-exchange": ""}
        limited["x-dead-letter-routing-key"] = queue.dead
        channel.queue_declare(queue.name, durable=True, arguments=limited)
    put(amqp_url, queue.name, b"poison")
    with plain_channel(amqp_url) as channel:
        for method, _, _ in islice(channel.consume(queue.name), 2):
            channel.basic_reject(method.delivery_tag, requeue=True)
    wait_ready(amqp_url, queue.dead, 1)
    (letter,) = dead_letters.show(amqp_url, queue.name)
    assert letter.reason == "delivery_limit: delivered too often"
    assert letter.queue == queue.name
    assert abs(datetime.now(UTC) - letter.died) < timedelta(minutes=1)


@pytest.mark.parametrize(
    ("headers", "died"),
    [
        ({"x-tiercel-died": "2026-11-23T02:05:06.789+01:00"}, "2026-11-23T01:05:06.789000+00:00"),
        ({"x-tiercel-died": "2026-11-23T02:05:06"}, "2026-11-23T02:05:06+00:00"),
        ({"x-death": [{"time": datetime(2026, 1, 2, tzinfo=UTC)}]}, "2026-01-02T00:00:00+00:00"),
        ({"x-tiercel-died": "\x1b[2Jyesterday"}, None),
        ({"x-tiercel-died": "0001-01-01T00:00:00+14:00"}, None),
        ({"x-tiercel-died": "9999-12-31T23:59:59-14:00"}, None),
        ({"x-tiercel-died": 7}, None),
        ({"x-death": [{"time": "long ago"}]}, None),
        ({"x-death": "once"}, None),
        ({}, None),
    ],
)
def test_a_letter_says_when_it_died_as_far_as_that_is_told(amqp_url, queue, headers, died):
    put(amqp_url, queue.dead, b"a", headers=headers)
    (letter,) = dead_letters.show(amqp_url, queue.name)
    assert (letter.died and letter.died.astimezone(UTC).isoformat()) == died
    result = CliRunner().invoke(app, ["dead-letters", "show", queue.name, "--amqp", amqp_url])
    assert result.exit_code == 0, result.output


def test_requeued_messages_are_like_new(amqp_url, queue):
    put(amqp_url, queue.dead, b"a", b"b", headers=DEATH)
    assert dead_letters.requeue(amqp_url, queue.name) == 2
    messages = take_all(amqp_url, queue.name)
    assert [body for body, _ in messages] == [b"a", b"b"]
    assert [set(headers) - {"x-delivery-count"} for _, headers in messages] == [
        {"trace", "x-tiercel-since"},
        {"trace", "x-tiercel-since"},
    ]
    assert all(headers.get("x-delivery-count", 0) == 0 for _, headers in messages)
    assert ready(amqp_url, queue.dead) == 0


@pytest.mark.parametrize(
    "headers",
    [
        # RabbitMQ's own headers, and ours without the headers that an earlier version did not
        # write.
        {"x-death": [{"reason": "delivery_limit", "time": datetime(2026, 1, 2, tzinfo=UTC)}]},
        {"x-tiercel-died": "2026-01-02T00:00:00+00:00"},
        {"x-tiercel-since": "1767312000", "x-tiercel-died": "2026-03-04T00:00:00+00:00"},
    ],
)
def test_a_requeued_message_says_since_when_it_may_have_had_effects(amqp_url, queue, headers):
    put(amqp_url, queue.dead, b"a", headers=headers)
    assert dead_letters.requeue(amqp_url, queue.name) == 1
    [(_, requeued)] = take_all(amqp_url, queue.name)
    assert requeued["x-tiercel-since"] == "1767312000"


def test_a_message_that_dies_again_after_requeue_can_be_requeued_again(amqp_url, queue):
    put(amqp_url, queue.name, b"stubborn")
    with Desk(amqp_url, queue.name, delivery_limit=1) as desk:
        for life in (1, 2):
            for _ in range(2):
                delivery = desk.next()
                desk.consumer.fail(delivery.epoch, delivery.tag, f"life {life}")
            desk.wait_for("dead_lettered", life)
            (letter,) = dead_letters.show(amqp_url, queue.name)
            assert letter.reason.endswith(f"life {life}")
            assert abs(datetime.now(UTC) - letter.died) < timedelta(minutes=1)
            wait_ready(amqp_url, queue.dead, 1)
            assert dead_letters.requeue(amqp_url, queue.name) == 1


def test_requeue_takes_the_oldest_up_to_its_limit(amqp_url, queue):
    put(amqp_url, queue.dead, b"a", b"b", b"c")
    assert dead_letters.requeue(amqp_url, queue.name, limit=2) == 2
    assert [body for body, _ in take_all(amqp_url, queue.dead)] == [b"c"]


def test_requeue_into_a_queue_that_is_gone_keeps_the_letters(amqp_url, queue):
    put(amqp_url, queue.dead, b"a")
    delete(amqp_url, queue.name)
    with pytest.raises(QueueMissingError, match=queue.name):
        dead_letters.requeue(amqp_url, queue.name)
    wait_ready(amqp_url, queue.dead, 1)


def test_requeue_that_is_refused_again_and_again_deletes_no_letter(amqp_url):
    name = unique()
    with plain_channel(amqp_url) as channel:
        arguments = {"x-queue-type": "quorum", "x-delivery-limit": 5}
        channel.queue_declare(f"{name}.dead", durable=True, arguments=arguments)
    put(amqp_url, f"{name}.dead", b"a", b"b")
    (letter, _) = dead_letters.show(amqp_url, name)
    for _ in range(10):
        with pytest.raises(QueueMissingError):
            dead_letters.requeue(amqp_url, name)
        with pytest.raises(QueueMissingError):
            dead_letters.requeue_chosen(amqp_url, name, [letter.id])
    assert sorted(letter.preview for letter in dead_letters.show(amqp_url, name)) == ["a", "b"]


def test_a_full_queue_is_waited_for_and_told_in_the_end(amqp_url, monkeypatch):
    name = unique()
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(
            name, durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
        )
        channel.queue_declare(f"{name}.dead", durable=True)
    put(amqp_url, f"{name}.dead", b"a", b"b", b"c")

    def free():
        wait_ready(amqp_url, name, 1)
        with plain_channel(amqp_url) as channel:  # one message: the next may be there at once
            assert channel.basic_get(name, auto_ack=True)[2] == b"a"

    freed = threading.Timer(1, free)
    freed.start()
    assert dead_letters.requeue(amqp_url, name, limit=2) == 2
    freed.join()
    monkeypatch.setattr(dead_letters, "_PATIENCE_S", 0.5)
    with pytest.raises(
        PublishRefusedError,
        match=f"queue '{name}' did not take message 1 for .* full or unavailable",
    ):
        dead_letters.requeue(amqp_url, name)
    wait_ready(amqp_url, f"{name}.dead", 1)


def test_letters_whose_queue_is_slow_to_answer_are_not_taken_for_none(shared_rabbitmq, queue):
    url = shared_rabbitmq.url
    put(url, queue.dead, b"a", b"b")
    with standing_still(shared_rabbitmq, queue.dead) as resume:
        resumed = threading.Timer(2, resume)
        resumed.start()
        assert len(dead_letters.show(url, queue.name)) == 2
        resumed.join()
    with standing_still(shared_rabbitmq, queue.dead) as resume:
        resumed = threading.Timer(2, resume)
        resumed.start()
        assert dead_letters.requeue(url, queue.name) == 2
        resumed.join()


def test_letters_whose_queue_falls_silent_amid_a_look_are_found(
    shared_rabbitmq, queue, monkeypatch
):
    url = shared_rabbitmq.url
    put(url, queue.dead, *BODIES)
    wait_ready(url, queue.dead, 20)
    chosen = [letter.id for letter in dead_letters.show(url, queue.name)][::5]
    wait_ready(url, queue.dead, 20)
    with ExitStack() as stack:

        def fall_silent(*letter):
            move(*letter)
            if not silent:
                resume = stack.enter_context(standing_still(shared_rabbitmq, queue.dead))
                silent.append(threading.Timer(1.5, resume))
                silent[0].start()

        silent = []
        move = dead_letters._move
        monkeypatch.setattr(dead_letters, "_move", fall_silent)
        assert dead_letters.requeue_chosen(url, queue.name, chosen) == chosen
        silent[0].join()
    wait_ready(url, queue.dead, 16)


def test_purge_says_how_many_it_deleted(amqp_url, queue):
    put(amqp_url, queue.dead, b"a", b"b")
    assert dead_letters.purge(amqp_url, queue.name) == 2
    assert dead_letters.show(amqp_url, queue.name) == []


@pytest.mark.parametrize("call", [dead_letters.show, dead_letters.requeue, dead_letters.purge])
def test_a_queue_without_dead_letters_is_named(amqp_url, call):
    name = unique()
    with pytest.raises(QueueMissingError, match=f"{name}.*no dead letters"):
        call(amqp_url, name)


def test_depths_count_what_waits_and_what_is_dead(amqp_url, queue):
    put(amqp_url, queue.name, b"a", b"b")
    put(amqp_url, queue.dead, b"c")
    with plain_channel(amqp_url) as channel:
        plain = unique()
        channel.queue_declare(plain, durable=True)
    expected = [
        QueueDepth(
            name=queue.name, ready=2, unacked=None, delayed=None, consumers=0, dead_lettered=1
        ),
        QueueDepth(
            name=plain, ready=0, unacked=None, delayed=None, consumers=0, dead_lettered=None
        ),
    ]
    # A quorum queue counts confirmed messages a moment later.
    wait_until(lambda: depths(amqp_url, [queue.name, plain]) == expected)


def test_depths_of_a_queue_with_consumers(amqp_url, queue):
    put(amqp_url, queue.name, b"a")
    with Desk(amqp_url, queue.name) as desk:
        first = desk.next()
        wait_until(lambda: depths(amqp_url, [queue.name])[0].consumers >= 1)
        desk.ack(first)
        # RabbitMQ counts our first consumer until its last message is settled.
        wait_until(lambda: depths(amqp_url, [queue.name])[0].consumers == 1)
    assert depths(amqp_url, [queue.name])[0].ready == 0


def test_unacked_messages_are_known_to_the_management_interface(amqp_url, queue, management_url):
    if management_url is None:
        assert depths(amqp_url, [queue.name], "http://127.0.0.1:9")[0].unacked is None
        return
    put(amqp_url, queue.name, b"a", b"b")
    with Desk(amqp_url, queue.name) as desk:
        desk.take(2)
        wait_until(lambda: depths(amqp_url, [queue.name], management_url)[0].unacked == 2)


def test_a_failed_message_that_waits_for_its_back_off_is_counted_wherever_it_waits(
    amqp_url, management_url
):
    retry = RetryPolicy(first=timedelta(minutes=1), longest=timedelta(minutes=1))
    work = WorkQueue(name=unique(), retry=retry)
    declare_queue(amqp_url, work)
    brokers = version(amqp_url) >= (4, 3)
    put(amqp_url, work.name, b"later")
    with Desk(amqp_url, work.name, retry=retry) as desk:
        delivery = desk.next()
        desk.consumer.fail(delivery.epoch, delivery.tag)
        expected = {"unacked": 0 if brokers else 1, "delayed": 1 if brokers else 0}

        def counted():
            depth = depths(amqp_url, [work.name], management_url)[0]
            return {
                "unacked": depth.unacked,
                "delayed": depth.delayed,
            } == expected and depth.ready == 0

        wait_until(counted)


def test_a_management_interface_that_does_not_answer_costs_only_its_number(amqp_url, queue):
    assert depths(amqp_url, [queue.name], "http://127.0.0.1:9")[0].unacked is None
    with pytest.raises(AddressError, match="management URL"):
        depths(amqp_url, [queue.name], "file:///etc/passwd")


def test_a_missing_queue_has_no_depth(amqp_url):
    name = unique()
    with pytest.raises(QueueMissingError, match=name):
        depths(amqp_url, [name])


def test_from_4_3_on_looking_does_not_even_count(amqp_url, queue):
    put(amqp_url, queue.dead, b"a", b"b", b"c")
    for _ in range(10):
        letters = dead_letters.show(amqp_url, queue.name, limit=2)
        if version(amqp_url) >= (4, 3):
            assert [letter.preview for letter in letters] == ["a", "b"]
            assert {letter.headers.get("x-delivery-count", 0) for letter in letters} == {0}
        assert (
            max(letter.headers.get("x-delivery-count", 0) for letter in letters)
            <= dead_letters.RETURNS
        )
    wait_ready(amqp_url, queue.dead, 3)


@pytest.mark.parametrize(
    ("limit", "by"),
    [
        *((limit, by) for limit in (dead_letters.RETURNS, 5, 20) for by in ("argument", "policy")),
        (None, ""),
    ],
)
def test_looking_never_deletes_a_letter_whatever_delivery_limit_its_queue_has(
    shared_rabbitmq, limit, by
):
    """None: as tiercel declared it under RabbitMQ 3.10; after the upgrade to 4 the limit is 20."""
    url = shared_rabbitmq.url
    name = unique()
    arguments = {"x-queue-type": "quorum"}
    if limit is not None and by == "argument":
        arguments["x-delivery-limit"] = limit
    elif limit is not None:
        definition = {"delivery-limit": limit}
        set_policy(shared_rabbitmq, name, rf"^{name}\.dead$", definition, apply_to="queues")
    with plain_channel(url) as channel:
        channel.queue_declare(f"{name}.dead", durable=True, arguments=arguments)
        channel.queue_declare(name, durable=True)
    put(url, f"{name}.dead", b"the only copy", headers=DEATH, message_id="7", user_id=None)
    put(url, f"{name}.dead", b"another")
    first, second = (letter.id for letter in dead_letters.show(url, name))
    # Each way of looking more often than the limit; RabbitMQ's own is 20.
    for _ in range((limit or 20) + 1):
        letters = dead_letters.show(url, name)
        assert [letter.id for letter in letters] == [first, second]
        assert letters[0].reason == "field 'n' is a long"
        assert dead_letters.look_for(url, name, second).preview == "another"
        assert dead_letters.requeue_chosen(url, name, ["no such id"]) == []
    assert dead_letters.requeue_chosen(url, name, [first]) == [first]
    wait_ready(url, name, 1)
    assert [letter.id for letter in dead_letters.show(url, name)] == [second]
