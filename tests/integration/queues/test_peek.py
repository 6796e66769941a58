"""``tiercel peek`` on a real broker: the messages stay where they are, in order."""

from __future__ import annotations

import base64
import json
import re
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from tests.support.broker import (
    Desk,
    delete,
    plain_channel,
    put,
    ready,
    take_all,
    unique,
    version,
    wait_ready,
)
from tests.support.waiting import wait_until
from tiercel.queues.broker.declare import WorkQueue, declare_queue
from tiercel.queues.errors import BrokerRefusedError, QueueMissingError
from tiercel.queues.peek import BODY_BYTES, peek
from tiercel.queues.retry import NO_WAIT
from tiercel.workers.cli.app import app

BODIES = [b"%d" % number for number in range(20)]


@pytest.fixture
def queue(amqp_url):
    work = WorkQueue(name=unique(), retry=NO_WAIT, delivery_limit=1)
    declare_queue(amqp_url, work)
    yield work.name
    for name in (work.name, work.dead):
        delete(amqp_url, name)


@contextmanager
def declared(amqp_url, **arguments):
    """A queue that tiercel did not declare."""
    name = unique()
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(
            name, durable=True, arguments={key.replace("_", "-"): v for key, v in arguments.items()}
        )
    yield name
    delete(amqp_url, name)


@pytest.fixture
def tiercel(amqp_url):
    def run(*arguments):
        result = CliRunner().invoke(
            app, ["peek", *arguments, "--amqp", amqp_url], env={"COLUMNS": "80"}
        )
        assert result.exit_code == 0, result.output
        return result.stdout, result.stderr

    return run


def bodies(amqp_url, queue):
    return [body for body, _ in take_all(amqp_url, queue)]


def test_it_shows_the_first_messages_and_all_stay_in_their_order(amqp_url, queue):
    put(amqp_url, queue, *BODIES)
    for _ in range(30):
        found = peek(amqp_url, queue, 3)
        assert [message.body for message in found.messages] == BODIES[:3]
        assert (found.waiting, found.consumers) == (20, 0)
    wait_ready(amqp_url, queue, 20)
    assert bodies(amqp_url, queue) == BODIES


def test_a_queue_that_has_one_consumer_at_a_time_is_looked_at_while_it_has_none(amqp_url):
    arguments = {"x_queue_type": "quorum", "x_single_active_consumer": True}
    with declared(amqp_url, **arguments) as queue:
        put(amqp_url, queue, *BODIES)
        wait_ready(amqp_url, queue, 20)
        found = peek(amqp_url, queue, 3, anyway=True)
        assert [message.body for message in found.messages] == BODIES[:3]


def test_a_queue_whose_only_active_consumer_is_busy_is_refused_with_advice(amqp_url):
    arguments = {"x_queue_type": "quorum", "x_single_active_consumer": True}
    with declared(amqp_url, **arguments) as name, plain_channel(amqp_url) as channel:
        put(amqp_url, name, *BODIES)
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume(name, lambda *_: None)
        wait_ready(amqp_url, name, 19)
        with pytest.raises(BrokerRefusedError, match="active consumer only: end or pause it"):
            peek(amqp_url, name)


@pytest.mark.parametrize("limit", [12, 20, 30])
def test_a_look_at_many_leaves_them_in_their_order(amqp_url, queue, limit):
    """The broker treats each of several gets as a consumer, and sorts them by name."""
    put(amqp_url, queue, *BODIES)
    wait_ready(amqp_url, queue, 20)
    for _ in range(3):
        found = peek(amqp_url, queue, limit)
        assert [message.body for message in found.messages] == BODIES[:limit]
    wait_ready(amqp_url, queue, 20)
    assert bodies(amqp_url, queue) == BODIES


def test_a_classic_queue_is_left_in_its_order_too(amqp_url):
    with declared(amqp_url) as queue:
        put(amqp_url, queue, *BODIES)
        found = peek(amqp_url, queue, 3)
        assert [message.body for message in found.messages] == BODIES[:3]
        assert not found.counted
        wait_ready(amqp_url, queue, 20)
        assert bodies(amqp_url, queue) == BODIES


def test_it_tells_what_a_message_carries_beside_its_body(amqp_url, queue, tiercel):
    with plain_channel(amqp_url) as channel:
        channel.queue_bind(queue, "amq.topic", "order.*")
        channel.basic_publish("amq.topic", "order.new", b"elsewhere")
    put(
        amqp_url,
        queue,
        "body ü".encode(),
        headers={"tenant": "acme", "at": datetime(2026, 1, 2, tzinfo=UTC), "n": 7},
        message_id="m-1",
        priority=3,
    )
    wait_ready(amqp_url, queue, 2)
    first, second = peek(amqp_url, queue).messages
    assert (first.exchange, first.routing_key, first.body) == (
        "amq.topic",
        "order.new",
        b"elsewhere",
    )
    assert (second.position, second.exchange, second.came_back) == (2, "", 0)
    assert dict(second.properties) == {"message_id": "m-1", "priority": 3}
    assert second.headers["tenant"] == "acme"
    table, _ = tiercel(queue)
    for text in ("body ü", "tenant=acme", "message_id=m-1", "exchange=amq.topic"):
        assert text.split("=")[-1] in table


def test_scripts_get_one_object_per_message(amqp_url, queue, tiercel):
    long = "ü" * BODY_BYTES
    put(amqp_url, queue, b"text", b"\xff\x00", long.encode())
    wait_ready(amqp_url, queue, 3)
    said, cost = tiercel(queue, "--json", "--limit", "3")
    text, binary, cut = map(json.loads, said.splitlines())
    assert (text["position"], text["bytes"], text["body"]) == (1, 4, "text")
    assert base64.b64decode(binary["body_base64"]) == b"\xff\x00"
    assert (cut["bytes"], cut["body"]) == (2 * BODY_BYTES, "ü" * (BODY_BYTES // 2))
    assert f"3 of 3 messages that waited in {queue}" in cost
    assert ("counts it as a delivery" in cost) == (version(amqp_url) < (4, 3))


def test_an_empty_queue_is_said_and_who_holds_the_messages(amqp_url, queue, tiercel):
    assert f"no message waits in {queue}" in tiercel(queue)[1]
    put(amqp_url, queue, b"held")
    with Desk(amqp_url, queue) as desk:
        desk.next()
        said, cost = tiercel(queue)
        assert said == ""
        assert re.search("; messages held by its (1 consumer|2 consumers) are not shown", cost)


def test_a_look_is_no_failure_of_the_message(amqp_url, queue):
    """The queue has tiercel's delivery limit of one, and the message is inspected more often."""
    put(amqp_url, queue, b"looked at")
    for _ in range(10):
        assert len(peek(amqp_url, queue).messages) == 1
    with Desk(amqp_url, queue, delivery_limit=1) as desk:
        delivery = desk.next()
        desk.consumer.fail(delivery.epoch, delivery.tag, "first")
        desk.ack(desk.next())
        desk.wait_for("acked_to_broker")
        assert not desk.counts["dead_lettered"]


LIMITED = {"x_queue_type": "quorum", "x_delivery_limit": 2}


def test_where_looks_count_towards_a_limit_it_is_refused_unless_it_is_wanted(amqp_url):
    with declared(amqp_url, **LIMITED) as queue:
        put(amqp_url, queue, b"the only copy")
        if version(amqp_url) >= (4, 3):
            for _ in range(5):
                assert len(peek(amqp_url, queue).messages) == 1
            return
        for _ in range(5):
            with pytest.raises(BrokerRefusedError, match=r"limit of 2, .* deletes it.*--anyway"):
                peek(amqp_url, queue)
        wait_ready(amqp_url, queue, 1)
        assert [each.came_back for each in peek(amqp_url, queue, anyway=True).messages] == [0]
        assert [each.came_back for each in peek(amqp_url, queue, anyway=True).messages] == [1]
        wait_ready(amqp_url, queue, 1)
    with (
        declared(amqp_url, x_dead_letter_exchange="amq.fanout", **LIMITED) as queue,
        pytest.raises(BrokerRefusedError, match="dead-letters it"),
    ):
        peek(amqp_url, queue)


def test_what_a_terminal_would_obey_is_shown_as_text(amqp_url, queue, tiercel):
    put(
        amqp_url,
        queue,
        b"\x1b]0;OWNED\x07",
        headers={"\x1b[2J": "\x9b31m"},
        message_id="\u202eOWNED",
    )
    for options in ((), ("--json",)):
        said, cost = tiercel(queue, *options)
        assert not set(said + cost) & set("\x1b\x07\x9b\u202e")
        assert "OWNED" in said


def test_a_queue_that_there_is_not_is_named(amqp_url):
    name = unique()
    with pytest.raises(QueueMissingError, match=name):
        peek(amqp_url, name)


def test_a_stream_is_refused_in_one_line(amqp_url):
    with declared(amqp_url, x_queue_type="stream") as queue:
        with pytest.raises(BrokerRefusedError, match="refused") as caught:
            peek(amqp_url, queue)
        assert "\n" not in str(caught.value)


def test_a_look_that_would_delete_an_auto_delete_queue_is_refused(amqp_url):
    queue = unique()
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(queue, auto_delete=True)
        put(amqp_url, queue, *BODIES)
        with pytest.raises(BrokerRefusedError, match=r"the end of a look would delete it"):
            peek(amqp_url, queue)
        wait_ready(amqp_url, queue, 20)
        channel.queue_delete(queue)


def test_a_look_that_dies_gives_back_what_it_held(amqp_url, queue, monkeypatch):
    put(amqp_url, queue, *BODIES)
    monkeypatch.setattr("tiercel.queues.peek._message", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        peek(amqp_url, queue)
    wait_until(lambda: ready(amqp_url, queue) == 20)
    assert bodies(amqp_url, queue) == BODIES
