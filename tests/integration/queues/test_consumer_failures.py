"""Faults of RabbitMQ and the network that a consumer survives."""

import random
import threading
import time
from contextlib import contextmanager
from datetime import timedelta
from urllib.parse import urlsplit

import pytest

from tests.support.broker import (
    Desk,
    add_user,
    delete,
    manage,
    plain_channel,
    put,
    ready,
    restart_in_order,
    unique,
    wait_ready,
)
from tests.support.fake_broker import held_by
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until
from tiercel.queues.broker import link
from tiercel.queues.broker.declare import WorkQueue, declare_queue, declare_work_queue
from tiercel.queues.errors import BrokerRefusedError, QueueMissingError
from tiercel.queues.publishing.copies import DeadLetterWriter
from tiercel.queues.retry import NO_WAIT, RetryPolicy


def filled(amqp_url, *bodies):
    queue = WorkQueue(name=unique(), retry=NO_WAIT)
    declare_queue(amqp_url, queue)
    put(amqp_url, queue.name, *bodies)
    return queue.name


def test_after_a_broken_connection_open_messages_come_again_and_old_outcomes_are_dropped(amqp_url):
    queue = filled(amqp_url, b"a", b"b", b"c")
    with Proxy(amqp_url) as wire, Desk(wire.url, queue) as desk:
        before = desk.take(3)
        wire.cut()
        after = desk.take(3)
        assert {delivery.epoch for delivery in before} == {1}
        assert {delivery.epoch for delivery in after} == {2}
        assert sorted(delivery.body for delivery in after) == [b"a", b"b", b"c"]
        for delivery in before:
            desk.ack(delivery)
        desk.wait_for("stale", 3)
        assert desk.counts["acked_to_broker"] == 0
        desk.consumer.stop(timedelta(seconds=10))
    wait_ready(amqp_url, queue, 3)


def test_a_broker_that_is_silent_is_left_and_open_messages_come_again(amqp_url, caplog):
    queue = filled(amqp_url, b"a")
    with Proxy(f"{amqp_url}?heartbeat=2") as wire, Desk(wire.url, queue) as desk:
        first = desk.next()
        heard = []

        def heartbeats():
            desk.on_channel(lambda channel: heard.append(channel.connection.frames_received))
            return heard[-1] - heard[0] if heard else 0

        wait_until(lambda: heartbeats() >= 5, 60, "heartbeats, and nothing else")
        assert desk.counts["channels"] == 1
        wire.mute()
        [second] = wait_until(lambda: desk.consumer.get(1), timeout=60)
        assert (second.epoch, second.body) == (first.epoch + 1, b"a")
        desk.ack(second)
        desk.wait_for("acked_to_broker")
    assert "has been silent for 4 s" in caplog.text
    assert ready(amqp_url, queue) == 0


def test_a_connection_that_breaks_again_and_again_loses_nothing(amqp_url):
    bodies = {b"%d" % number for number in range(200)}
    queue = filled(amqp_url, *bodies)
    seen = set()
    with Proxy(amqp_url) as wire, Desk(wire.url, queue, prefetch=20) as desk:
        for count in range(60):
            delivery = desk.next()
            seen.add(delivery.body)
            desk.ack(delivery)
            if count % 20 == 19:
                wire.cut()
        while seen != bodies:
            delivery = desk.next()
            seen.add(delivery.body)
            desk.ack(delivery)
        wait_until(lambda: desk.counts["channels"] >= 4)
    assert ready(amqp_url, queue) == 0


def test_a_channel_closed_by_the_broker_is_opened_again(amqp_url):
    queue = filled(amqp_url, b"a")
    with Desk(amqp_url, queue) as desk:
        first = desk.next()
        # an unknown tag: 406, the broker closes the channel
        desk.on_channel(lambda channel: channel.basic_ack(12345))
        second = desk.next()
        assert (second.epoch, second.body) == (first.epoch + 1, b"a")
        desk.ack(second)
        desk.wait_for("acked_to_broker")
    assert ready(amqp_url, queue) == 0


def test_a_deleted_queue_is_declared_again(amqp_url):
    queue = filled(amqp_url, b"lost with its queue")
    with Desk(amqp_url, queue) as desk:
        desk.next()
        delete(amqp_url, queue)
        desk.wait_for("channels", 2)
        put(amqp_url, queue, b"new")
        assert desk.next().body == b"new"


def test_a_broker_consumer_that_is_gone_without_a_word_is_noticed(amqp_url):
    queue = filled(amqp_url, b"a")
    with Desk(amqp_url, queue) as desk:
        desk.next()
        # At its first message the consumer subscribes anew, with a larger prefetch. Only a
        # subscription can be lost.
        lost = threading.Event()

        def lose(channel):
            if (
                not lost.is_set()
                and desk.consumer._epoch.broker_consumer.consumer_tag in channel.consumer_tags
            ):
                channel._consumers.clear()
                lost.set()

        wait_until(lambda: lost.is_set() or desk.on_channel(lose))
        assert desk.next().epoch == 2


def test_a_refused_login_ends_it_with_one_line_and_no_password(amqp_url):
    rest = amqp_url.rpartition("@")[2].partition("://")[2] or amqp_url.rpartition("@")[2]
    with Desk(f"amqp://nobody:hush-hush@{rest}", unique()) as desk:
        error = wait_until(desk.consumer.error)
    assert isinstance(error, BrokerRefusedError)
    assert "refused the login of user 'nobody'" in str(error)
    assert "hush" not in str(error)


@contextmanager
def worker_at(server, user):
    """Yield the wire and the desk of this new user, who has had a message."""
    queue = filled(server.url, b"a")
    add_user(server, user, configure=".*")
    parts = urlsplit(server.url)
    with (
        Proxy(f"amqp://{user}:{user}@{parts.hostname}:{parts.port}/") as wire,
        Desk(wire.url, queue) as desk,
    ):
        desk.next()
        yield wire, desk


@contextmanager
def refused_while_it_works(server, user, monkeypatch):
    """Yield a desk that had a message before the broker began to refuse its user's login."""
    monkeypatch.setattr(link, "_STABLE_S", 0)
    with worker_at(server, user) as (wire, desk):
        manage(server, f"users/{user}", password="another", tags="")
        wire.cut()
        yield desk


def test_a_login_that_is_refused_while_it_works_is_waited_for(shared_rabbitmq, caplog, monkeypatch):
    caplog.set_level("INFO", "tiercel")
    user = unique("worker")
    with refused_while_it_works(shared_rabbitmq, user, monkeypatch) as desk:
        wait_until(lambda: desk.consumer._link._refusals > 8, 60, "refusals")
        assert desk.consumer.error() is None
        manage(shared_rabbitmq, f"users/{user}", password=user, tags="")
        assert desk.next().body == b"a"
    lost = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len(lost) == 2, "that it was away, then that the login is refused"
    assert f"refused the login of user '{user}'" in lost[1]
    assert sum(getattr(each, "event", "") == "broker_back" for each in caplog.records) == 1


def test_a_login_that_is_refused_for_ten_minutes_ends_it(shared_rabbitmq, monkeypatch):
    monkeypatch.setattr(link, "_PATIENCE_S", 1.0)
    user = unique("worker")
    with refused_while_it_works(shared_rabbitmq, user, monkeypatch) as desk:
        error = wait_until(desk.consumer.error, 60)
    assert f"refused the login of user '{user}'" in str(error)


def test_a_queue_that_its_owner_redeclares_while_it_is_read_is_waited_for(
    amqp_url, caplog, monkeypatch
):
    caplog.set_level("INFO", "tiercel")
    monkeypatch.setattr(link, "_STABLE_S", 0)
    queue = filled(amqp_url, b"a")
    with Desk(amqp_url, queue, declare=False) as desk:
        desk.ack(desk.next())
        desk.wait_for("acked_to_broker", 1)
        delete(amqp_url, queue)
        wait_until(lambda: desk.consumer._link._refusals > 6, 60, "refusals")
        assert desk.consumer.error() is None
        declare_queue(amqp_url, WorkQueue(name=queue, retry=NO_WAIT))
        put(amqp_url, queue, b"b")
        assert desk.next().body == b"b"
    said = [each.getMessage() for each in caplog.records if each.name.startswith("tiercel")]
    [missing] = [line for line in said if "no queue" in line]
    assert missing.endswith("waits for RabbitMQ")


def test_a_right_to_read_that_is_taken_away_is_one_outage_until_it_is_back(
    shared_rabbitmq, caplog, monkeypatch
):
    """Each new connection succeeds, and RabbitMQ refuses only its consumer."""
    caplog.set_level("INFO", "tiercel")
    monkeypatch.setattr(link, "_STABLE_S", 0.5)
    server = shared_rabbitmq
    user = unique("worker")
    with worker_at(server, user) as (wire, desk):
        opened_at = desk.consumer._link._opened_at
        wait_until(lambda: time.monotonic() - opened_at > link._STABLE_S, 30, "it to be stable")
        manage(server, f"permissions/%2F/{user}", configure=".*", write="", read="")
        wire.cut()
        wait_until(lambda: desk.consumer._link._refusals > 4, 60, "refusals")
        manage(server, f"permissions/%2F/{user}", configure=".*", write="", read=".*")
        assert desk.next().body == b"a"
        wait_until(lambda: len(told(caplog, "broker_back")) > 1, 30, "the end to be logged")
    lost = told(caplog, "broker_lost")
    assert len(lost) == 2, "that the connection broke, then what is refused"
    assert "grant the permission" in lost[1]
    assert len(told(caplog, "broker_back")) == 2, "each has an end"


def told(caplog, event):
    return [
        each.getMessage()
        for each in caplog.records
        if getattr(each, "event", "") == event and each.levelname != "DEBUG"
    ]


def test_a_queue_that_must_exist_and_does_not_ends_it(amqp_url):
    queue = unique()
    with Desk(amqp_url, queue, declare=False) as desk:
        error = wait_until(desk.consumer.error)
    assert isinstance(error, QueueMissingError)
    assert queue in str(error)


# RabbitMQ reads the one or the other, by its version.
_SMALLER = (
    "application:set_env(rabbit, max_message_size, 1000), "
    "persistent_term:put(max_message_size, 1000)."
)


@pytest.mark.parametrize("moves", [True, False], ids=["dead-letter exchange", "none"])
def test_a_message_that_rabbitmq_takes_no_more_makes_no_connection_per_try(
    rabbitmq, caplog, moves, monkeypatch
):
    """``max_message_size`` was lowered, as by the upgrade to RabbitMQ 4, while the message waited.
    The queue's own dead-letter exchange takes it, else it stays.
    """
    caplog.set_level("INFO", "tiercel")
    opened = []

    def opened_by(writer):
        opened.append(writer)

    monkeypatch.setattr(DeadLetterWriter, "_prepare", opened_by)
    server = rabbitmq()
    queue = WorkQueue(name=unique(), retry=NO_WAIT)
    if moves:
        declare_queue(server.url, queue)
    else:
        with plain_channel(server.url) as channel:
            channel.queue_declare(queue.name, durable=True, arguments={"x-queue-type": "quorum"})
    put(server.url, queue.name, b"x" * 2_000, b"y" * 2_000)
    server.control("eval", _SMALLER)
    with Desk(server.url, queue.name) as desk:
        for _ in range(2 if moves else 6):
            delivery = desk.next()
            desk.consumer.dead_letter(delivery.epoch, delivery.tag, "rejected: bad")
        desk.wait_for("dead_lettered" if moves else "redelivered", 2)
    wait_ready(server.url, queue.dead if moves else queue.name, 2)
    assert len(opened) <= 4, "each message once, and again without the other"
    assert told(caplog, "broker_lost") == []
    [said] = told(caplog, "dead_letter_refused")
    where = "without its reason (rejected: bad)" if moves else "a message stays in its queue"
    assert where in said
    assert "no message of 2,000 bytes: its max_message_size is 1,000; raise it" in said


def test_a_broker_that_is_not_there_yet_is_waited_for(amqp_url):
    wire = Proxy(amqp_url)
    wire.close()
    with Desk(wire.url, unique()) as desk:
        wait_until(lambda: desk.consumer._link._attempts >= 3)
        assert desk.consumer.error() is None


def test_stopping_without_a_broker_is_quick(amqp_url):
    wire = Proxy(amqp_url)
    desk = Desk(wire.url, filled(amqp_url, b"a"))
    desk.consumer.start()
    desk.next()
    wire.close()
    assert desk.consumer.stop(timedelta(seconds=10))


@pytest.mark.rest
def test_a_broker_that_restarts_or_is_killed_delivers_everything_again(rabbitmq):
    broker = rabbitmq()
    bodies = {b"%d" % number for number in range(50)}
    queue = filled(broker.url, *bodies)
    with Desk(broker.url, queue) as desk:
        for delivery in desk.take(50)[:20]:
            desk.ack(delivery)
            bodies.remove(delivery.body)
        desk.wait_for("acked_to_broker", 20)
        restart_in_order(broker)
        again = [desk.next(timeout=60) for _ in range(30)]
        assert {delivery.body for delivery in again} == bodies
        broker.kill()
        broker.start()
        while bodies:
            delivery = desk.next(timeout=60)
            bodies.discard(delivery.body)
            desk.ack(delivery)
    assert ready(broker.url, queue) == 0


def test_settling_while_the_channel_closes_ends_no_thread(amqp_url, caplog):
    queue = filled(amqp_url, b"failed", b"acked", b"given back", b"odd")
    with Desk(amqp_url, queue) as desk:
        failed, acked, given_back, odd = desk.take(4)

        def settle(channel):
            channel.close()  # the channel is closing until the broker answers
            desk.consumer.fail(failed.epoch, failed.tag)
            desk.consumer.ack(acked.epoch, acked.tag)
            desk.consumer.dead_letter(odd.epoch, odd.tag, "odd")
            desk.consumer._set_paused(paused=True)
            desk.consumer.release(given_back.epoch, given_back.tag)
            desk.consumer._flush()
            desk.consumer._set_paused(paused=False)

        desk.on_channel(settle)
        assert {delivery.body for delivery in desk.take(4)} == {
            b"failed",
            b"acked",
            b"given back",
            b"odd",
        }
        desk.wait_for("stale", 4)
    assert "after an error" not in caplog.text


def test_an_error_of_ours_on_the_io_thread_costs_a_connection_and_no_more(amqp_url, caplog):
    queue = filled(amqp_url, b"a")
    with Desk(amqp_url, queue) as desk:
        assert desk.next().epoch == 1
        desk.consumer._link.call(lambda: 1 / 0)
        assert desk.next().epoch == 2
        # as one of pika's own errors
        desk.on_channel(lambda channel: channel.connection.ioloop.call_later(0, lambda: 1 / 0))
        delivery = desk.next()
        assert delivery.epoch == 3
        desk.ack(delivery)
        desk.wait_for("acked_to_broker")
        assert desk.consumer.error() is None
    assert caplog.text.count("connecting again after an error") == 2


def test_an_error_of_ours_while_connecting_is_tried_again(amqp_url, monkeypatch):
    queue = filled(amqp_url, b"a")
    errors = [RuntimeError("a fault of ours"), ValueError("another")]

    def declare(*arguments):
        if errors:
            raise errors.pop()
        return declare_work_queue(*arguments)

    monkeypatch.setattr("tiercel.queues.consuming.consumer.declare_work_queue", declare)
    with Desk(amqp_url, queue) as desk:
        assert desk.next().body == b"a"
        assert desk.consumer.error() is None


@pytest.mark.parametrize("seed", range(3))
def test_after_any_order_of_events_it_takes_messages_again_and_its_counts_are_right(
    amqp_url, monkeypatch, seed
):
    monkeypatch.setattr("tiercel.queues.broker.link.backoff_s", lambda _attempt: 0.02)
    chance = random.Random(seed)
    retry = RetryPolicy(first=timedelta(milliseconds=20), longest=timedelta(milliseconds=50))
    queue = WorkQueue(name=unique(), retry=retry)
    declare_queue(amqp_url, queue)
    put(
        amqp_url,
        queue.name,
        *[b"%03d" % number + bytes(chance.randrange(5_000)) for number in range(200)],
    )
    acked = set()
    handed = []
    with (
        Proxy(amqp_url) as wire,
        Desk(wire.url, queue.name, retry=retry, prefetch=60, bytes_held=60_000) as desk,
    ):
        consumer = desk.consumer

        def settle(verb, count):
            chance.shuffle(handed)
            for delivery in handed[:count]:
                getattr(consumer, verb)(delivery.epoch, delivery.tag)
            del handed[:count]

        events = {
            "get": lambda: handed.extend(consumer.get(chance.randrange(1, 40))),
            "fail": lambda: settle("fail", chance.randrange(30)),
            "release": lambda: settle("release", chance.randrange(30)),
            "expect": lambda: consumer.expect(chance.randrange(40)),
            "pause": consumer.pause,
            "resume": consumer.resume,
            "cut": wire.cut,
            "close": lambda: consumer._link.call(
                lambda: (
                    consumer._epoch and consumer._epoch.is_open and consumer._epoch._channel.close()
                )
            ),
            "wait": lambda: time.sleep(chance.random() / 20),
        }
        for name in chance.choices(list(events), weights=[9, 6, 6, 4, 1, 4, 1, 1, 9], k=150):
            events[name]()
        consumer.resume()
        consumer.expect(30)
        settle("release", len(handed))

        def all_acked():
            for delivery in consumer.get(100):
                consumer.ack(delivery.epoch, delivery.tag)
                acked.add(delivery.body)
            return len(acked) == 200 and held_by(consumer).messages == 0

        wait_until(all_acked, 60)
        assert held_by(consumer).size == 0
        wait_until(lambda: consumer._epoch and consumer._epoch.broker_consumer.prefetch)
    assert ready(amqp_url, queue.name) == ready(amqp_url, queue.dead) == 0
