"""Publishing with confirms."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from pika import BasicProperties

from tests.support.broker import plain_channel, take_all, to_queues, unique, wait_ready
from tests.support.proxy import Proxy
from tests.support.raw import ODD, Raw, properties
from tests.support.waiting import wait_until
from tiercel.queues import outage
from tiercel.queues.broker.address import Address
from tiercel.queues.broker.declare import WorkQueue, declare_queue
from tiercel.queues.errors import (
    BrokerRefusedError,
    BrokerUnavailableError,
    MessageTooLargeError,
    PublishRefusedError,
)
from tiercel.queues.limits import MAX_BODY_BYTES
from tiercel.queues.publishing.outlet import Outlet, Publication
from tiercel.queues.publishing.publisher import Publisher

# RabbitMQ's parser fails at such a header and closes the connection. tiercel does not write it.
NOT_A_NUMBER = Raw(properties(ODD["not a number"]))


@pytest.fixture
def queue(amqp_url):
    name = unique()
    declare_queue(amqp_url, WorkQueue(name=name))
    return name


def test_everything_is_in_the_queue_in_order_when_it_returns(amqp_url, queue):
    bodies = [b"%d" % number for number in range(6000)]
    confirmed = []
    with Publisher(amqp_url) as publisher:
        assert (
            publisher.publish(
                queue, iter(bodies), on_confirmed=confirmed.append, headers={"from": "here"}
            )
            == 6000
        )
    assert sum(confirmed) == 6000
    messages = take_all(amqp_url, queue)
    assert [body for body, _ in messages] == bodies
    assert messages[0][1]["from"] == "here"


def test_a_second_batch_goes_over_the_same_publisher(amqp_url, queue):
    with Publisher(amqp_url) as publisher:
        assert publisher.publish(queue, []) == 0
        assert publisher.publish(queue, [b"a"]) == 1
        assert publisher.publish(queue, [b"b", b"c"]) == 2
    wait_ready(amqp_url, queue, 3)


def test_sixteen_mebibytes_pass_and_one_byte_more_is_refused_with_its_size(amqp_url, queue):
    with Publisher(amqp_url) as publisher:
        assert publisher.publish(queue, [bytes(MAX_BODY_BYTES)]) == 1
        with pytest.raises(MessageTooLargeError, match=f"message 2 has {MAX_BODY_BYTES + 1} bytes"):
            publisher.publish(queue, [b"before", bytes(MAX_BODY_BYTES + 1), b"after"])
    wait_ready(amqp_url, queue, 2)


def test_a_missing_queue_is_named_together_with_the_first_message(amqp_url):
    missing = unique()
    with (
        Publisher(amqp_url) as publisher,
        pytest.raises(PublishRefusedError, match=f"message 1 .*{missing}") as caught,
    ):
        publisher.publish(missing, [b"a", b"b", b"c"])
    assert caught.value.index == 0


def full_at(amqp_url, count):
    name = unique()
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(
            name, durable=True, arguments={"x-max-length": count, "x-overflow": "reject-publish"}
        )
    return name


def test_a_queue_that_stays_full_refuses_and_says_from_which_message_on(amqp_url):
    name = full_at(amqp_url, 3)
    patience = timedelta(seconds=4)
    with (
        Publisher(amqp_url, patience) as publisher,
        pytest.raises(PublishRefusedError, match=r"message 4 .*full") as caught,
    ):
        publisher.publish(name, [b"%d" % number for number in range(100)])
    assert caught.value.index == 3
    assert [body for body, _ in take_all(amqp_url, name)] == [b"0", b"1", b"2"]


def test_a_queue_that_is_full_for_a_while_gets_everything_once_in_the_end(amqp_url):
    name = full_at(amqp_url, 100)
    bodies = [b"%d" % number for number in range(3000)]
    confirmed = []
    taken = []
    with Publisher(amqp_url) as publisher, ThreadPoolExecutor() as threads:
        counted = threads.submit(
            publisher.publish, name, iter(bodies), on_confirmed=confirmed.append
        )
        wait_until(lambda: sum(confirmed) == 100, timeout=30)
        wait_until(
            lambda: (
                taken.extend(body for body, _ in take_all(amqp_url, name)) or len(taken) == 3000
            ),
            timeout=120,
        )
        assert counted.result(timeout=30) == sum(confirmed) == 3000
    assert sorted(taken, key=int) == bodies


def test_a_connection_that_breaks_meanwhile_loses_nothing(amqp_url, queue):
    bodies = [b"%d" % number for number in range(3000)]

    def feed():
        for number, body in enumerate(bodies):
            if number in (500, 1500, 2500):
                wire.cut()
            yield body

    with Proxy(amqp_url) as wire, Publisher(wire.url) as publisher:
        assert publisher.publish(queue, feed()) == 3000
    assert {body for body, _ in take_all(amqp_url, queue)} == set(bodies)


def test_a_message_that_makes_the_broker_close_the_channel_does_not_take_others_along(
    amqp_url, queue
):
    fates = {}
    outlet = Outlet(Address.parse(amqp_url), "test")
    try:
        for number in range(50):
            with_expiration = BasicProperties(expiration="never" if number in (7, 8) else None)
            outlet.submit(
                Publication(
                    "",
                    queue,
                    b"%d" % number,
                    with_expiration,
                    lambda error, number=number: fates.update({number: error}),
                )
            )
        wait_until(lambda: len(fates) == 50, timeout=60)
    finally:
        outlet.close(5)
    assert {number for number, error in fates.items() if error is not None} == {7, 8}
    assert "expiration" in str(fates[7])
    assert len({body for body, _ in take_all(amqp_url, queue)}) == 48


def test_a_message_at_which_the_broker_fails_does_not_take_others_along(amqp_url, queue):
    messages = to_queues((queue, b"%d" % number) for number in range(50))
    messages[7] = replace(messages[7], properties=NOT_A_NUMBER)
    with Publisher(amqp_url) as publisher:
        fates = publisher.publish_each(messages)
    assert [number for number, fate in enumerate(fates) if fate is not None] == [7]
    assert "RabbitMQ fails at a message for queue" in str(fates[7])
    expected = {b"%d" % number for number in range(50) if number != 7}
    assert {body for body, _ in take_all(amqp_url, queue)} == expected


def test_a_message_at_which_the_broker_fails_is_named_and_those_before_it_arrive(amqp_url, queue):
    messages = to_queues((queue, b"%d" % number) for number in range(5))
    messages[3] = replace(messages[3], properties=NOT_A_NUMBER)
    with Publisher(amqp_url) as publisher, pytest.raises(PublishRefusedError) as refused:
        publisher.publish_all(messages)
    assert refused.value.index == 3
    assert "message 4 was refused: RabbitMQ fails at a message" in str(refused.value)
    assert {b"0", b"1", b"2"} <= {body for body, _ in take_all(amqp_url, queue)}


def test_a_queue_that_goes_on_refusing_is_asked_over_a_new_connection(
    amqp_url, queue, caplog, monkeypatch
):
    monkeypatch.setattr("tiercel.queues.publishing.outlet._REFUSAL_S", 0.2)
    # Only the first log line of an outage is a warning.
    caplog.set_level("DEBUG", logger="tiercel.queues.outage")
    full = full_at(amqp_url, 0)
    with Publisher(amqp_url) as publisher:
        offered = []

        def again():
            offered.append(b"%d" % len(offered))
            refused, taken = publisher.publish_each(to_queues([(full, b"a"), (queue, offered[-1])]))
            assert isinstance(refused, PublishRefusedError)
            assert taken is None
            return sum(
                "refuses published messages" in record.getMessage() for record in caplog.records
            )

        wait_until(lambda: again() == 2, timeout=60)
    assert [body for body, _ in take_all(amqp_url, queue)] == offered


def test_no_broker_is_given_up_after_the_patience(amqp_url):
    wire = Proxy(amqp_url)
    wire.close()
    with (
        Publisher(wire.url, patience=timedelta(milliseconds=300)) as publisher,
        pytest.raises(BrokerUnavailableError, match="nothing"),
    ):
        publisher.publish("q", [b"a"])


def test_a_refused_login_is_raised_without_the_password(amqp_url):
    rest = amqp_url.rpartition("@")[2]
    with (
        Publisher(f"amqp://nobody:hush-hush@{rest}") as publisher,
        pytest.raises(BrokerRefusedError, match="login") as caught,
    ):
        publisher.publish("q", [b"a"])
    assert "hush" not in str(caught.value)


def test_closing_while_the_connection_is_being_made_ends_quietly(amqp_url, caplog):
    for _ in range(20):
        publisher = Publisher(amqp_url)
        while publisher._outlet._link._connection is None:
            pass  # the moment is too short for a wait
        publisher.close()
    assert not [
        record
        for record in caplog.records
        if record.levelname == "ERROR" and not record.name.startswith("pika")
    ]


def test_the_outage_after_one_in_which_a_publisher_gave_up_is_two_lines(
    amqp_url, queue, caplog, monkeypatch
):
    monkeypatch.setattr(outage, "_QUIET_S", 0.0)
    caplog.set_level("INFO", "tiercel")
    with Proxy(amqp_url) as wire:
        with Publisher(wire.url, timedelta(seconds=1)) as publisher:
            publisher.publish(queue, [b"1"])
            wire.retarget("amqp://127.0.0.1:1/")
            with pytest.raises(BrokerUnavailableError, match="gave up after 1 s"):
                publisher.publish(queue, [b"2"])
        wire.retarget(amqp_url)
        with Publisher(wire.url) as publisher:
            publisher.publish(queue, [b"3"])
            caplog.clear()
            wire.cut()
            publisher.publish(queue, [b"4"])
    events = [getattr(record, "event", "") for record in caplog.records]
    assert [event for event in events if event.startswith("broker_")] == [
        "broker_lost",
        "broker_back",
    ]
