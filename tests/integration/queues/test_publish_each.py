"""Publishing many messages, each with its own result."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta

import pytest

from tests.support.broker import (
    delete,
    plain_channel,
    ready,
    restart_in_order,
    take_all,
    to_queues,
    unique,
)
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until
from tiercel.queues import outage
from tiercel.queues.broker.declare import WorkQueue, declare_queue
from tiercel.queues.errors import (
    AccessRefusedError,
    BrokerUnavailableError,
    MessageTooLargeError,
    PublishRefusedError,
)
from tiercel.queues.limits import MAX_BODY_BYTES
from tiercel.queues.publishing import outlet
from tiercel.queues.publishing.publisher import Publisher

# Nothing listens there.
NOWHERE = "amqp://127.0.0.1:1"


@pytest.fixture
def queue(amqp_url):
    name = unique()
    declare_queue(amqp_url, WorkQueue(name=name))
    return name


@pytest.fixture
def publisher(amqp_url):
    with Publisher(amqp_url) as made:
        yield made


def bodies(amqp_url, queue):
    return [body for body, _ in take_all(amqp_url, queue)]


def test_all_are_in_their_queues_in_order_when_it_returns(amqp_url, queue, publisher):
    other = unique()
    declare_queue(amqp_url, WorkQueue(name=other))
    messages = [(queue if number % 3 else other, b"%d" % number) for number in range(2500)]
    assert publisher.publish_each(to_queues(messages)) == [None] * 2500
    assert bodies(amqp_url, queue) == [body for name, body in messages if name == queue]
    assert bodies(amqp_url, other) == [body for name, body in messages if name == other]


def test_nothing_to_publish_is_done_at_once(publisher):
    assert publisher.publish_each(to_queues([])) == []


def test_they_are_persistent_and_each_has_an_id(amqp_url, queue, publisher):
    publisher.publish_each(to_queues([(queue, b"a"), (queue, b"b")]))
    with plain_channel(amqp_url) as channel:
        found = [channel.basic_get(queue, auto_ack=True)[1] for _ in range(2)]
    assert [properties.delivery_mode for properties in found] == [2, 2]
    assert len({properties.message_id for properties in found}) == 2


def test_a_message_for_a_queue_that_is_missing_is_returned_and_its_neighbours_are_not(
    amqp_url, queue, publisher
):
    missing = unique("missing")
    # Some bodies are the same, because a return does not identify its message.
    fates = publisher.publish_each(
        to_queues([(queue, b"x"), (missing, b"x"), (queue, b"x"), (missing, b"y"), (queue, b"z")])
    )
    assert [fate is None for fate in fates] == [True, False, True, False, True]
    assert all(isinstance(fate, PublishRefusedError) for fate in fates if fate)
    assert f"there is no queue '{missing}'" in str(fates[1])
    assert bodies(amqp_url, queue) == [b"x", b"x", b"z"]


def test_a_message_for_a_full_queue_is_refused_and_its_neighbours_are_not(
    amqp_url, queue, publisher
):
    full = unique("full")
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(
            full, durable=True, arguments={"x-max-length": 2, "x-overflow": "reject-publish"}
        )
    fates = publisher.publish_each(
        to_queues(
            [(full, b"1"), (queue, b"a"), (full, b"2"), (full, b"3"), (queue, b"b"), (full, b"4")]
        )
    )
    assert [fate is None for fate in fates] == [True, True, True, False, True, False]
    assert "is full or unavailable" in str(fates[3])
    assert bodies(amqp_url, full) == [b"1", b"2"]
    assert bodies(amqp_url, queue) == [b"a", b"b"]
    assert publisher.publish_each(to_queues([(full, b"5")])) == [None], "there is room again"


def test_a_message_that_is_too_large_is_refused_with_its_size_and_its_neighbours_are_not(
    amqp_url, queue, publisher
):
    fates = publisher.publish_each(
        to_queues([(queue, b"before"), (queue, bytes(MAX_BODY_BYTES + 1)), (queue, b"after")])
    )
    assert [type(fate) for fate in fates] == [type(None), MessageTooLargeError, type(None)]
    assert str(MAX_BODY_BYTES + 1) in str(fates[1])
    assert bodies(amqp_url, queue) == [b"before", b"after"]


def test_what_amqp_cannot_say_is_refused_alone(amqp_url, queue, publisher):
    fates = publisher.publish_each(to_queues([(queue, b"a"), ("q" * 256, b"b"), (queue, b"c")]))
    assert [type(fate) for fate in fates] == [type(None), PublishRefusedError, type(None)]
    assert "cannot be written as AMQP" in str(fates[1])
    assert bodies(amqp_url, queue) == [b"a", b"c"]


@pytest.mark.parametrize("key", [5, b"a"])
def test_a_routing_key_that_is_no_text_is_refused_alone(amqp_url, queue, publisher, key):
    fates = publisher.publish_each(to_queues([(queue, b"a"), (key, b"b"), (queue, b"c")]))
    assert [type(fate) for fate in fates] == [type(None), PublishRefusedError, type(None)]
    assert bodies(amqp_url, queue) == [b"a", b"c"]


class Interrupted(list):
    """List that calls a function half way through its iteration."""

    interrupt = None

    def __iter__(self):
        for number, item in enumerate(list.__iter__(self)):
            if number == len(self) // 2:
                self.interrupt()
            yield item


def test_of_a_queue_that_is_deleted_meanwhile_the_rest_is_returned(amqp_url, queue, publisher):
    messages = Interrupted(to_queues((queue, b"%d" % number) for number in range(4_000)))
    messages.interrupt = lambda: (
        wait_until(lambda: ready(amqp_url, queue)) and delete(amqp_url, queue)
    )
    fates = publisher.publish_each(messages)
    assert all(fate is None or isinstance(fate, PublishRefusedError) for fate in fates)
    assert all(f"there is no queue '{queue}'" in str(fate) for fate in fates[2_000:])


def test_a_connection_that_breaks_again_and_again_loses_nothing(amqp_url, queue):
    messages = [(queue, b"%d" % number) for number in range(3_000)]
    done = threading.Event()

    def cut():
        for _ in range(8):
            # Cut only after another message has come through, so that every connection is of some
            # use.
            before = ready(amqp_url, queue)
            wait_until(lambda: done.is_set() or ready(amqp_url, queue) > before)  # noqa: B023 - called at once
            wire.cut()

    with Proxy(amqp_url) as wire, Publisher(wire.url, patience=timedelta(seconds=60)) as publisher:
        saboteur = threading.Thread(target=cut)
        saboteur.start()
        fates = publisher.publish_each(to_queues(messages))
        done.set()
        saboteur.join()
    assert fates == [None] * len(messages)
    assert set(bodies(amqp_url, queue)) == {body for _, body in messages}


def test_a_confirm_that_never_comes_is_not_waited_for_for_ever(amqp_url, queue, monkeypatch):
    monkeypatch.setattr(outlet, "_STALL_S", 1.5)
    other = unique()
    declare_queue(amqp_url, WorkQueue(name=other))
    with Proxy(amqp_url) as wire, Publisher(wire.url) as publisher:
        assert publisher.publish_each(to_queues([(queue, b"first")])) == [None]
        wire.mute()
        # The window is full of messages without confirms; the messages behind them must get
        # through.
        messages = [(queue, b"%d" % number) for number in range(1_100)] + [(other, b"b")]
        assert publisher.publish_each(to_queues(messages)) == [None] * 1_101
    assert set(bodies(amqp_url, queue)) == {b"first"} | {body for _, body in messages[:-1]}
    assert set(bodies(amqp_url, other)) == {b"b"}


def test_a_message_that_takes_long_over_a_slow_link_is_sent_once(amqp_url, queue, monkeypatch):
    monkeypatch.setattr(outlet, "_STALL_S", 1.0)
    body = b"x" * 12_000_000
    with (
        Proxy(amqp_url, rate=4e6) as wire,
        Publisher(wire.url, patience=timedelta(seconds=1.5)) as publisher,
    ):
        assert publisher.publish_each(to_queues([(queue, body)])) == [None]
        assert wire.accepted == 1
    assert bodies(amqp_url, queue) == [body]


def test_a_broker_that_is_away_is_told_after_the_patience_and_nothing_comes_later(amqp_url, queue):
    with Proxy(amqp_url) as wire, Publisher(wire.url, patience=timedelta(seconds=4)) as publisher:
        assert publisher.publish_each(to_queues([(queue, b"first")])) == [None]
        wire.retarget(NOWHERE)
        fates = publisher.publish_each(
            to_queues([(queue, b"lost"), (queue, bytes(MAX_BODY_BYTES + 1))])
        )
        assert [type(fate) for fate in fates] == [BrokerUnavailableError, MessageTooLargeError]
        assert "gave up after" in str(fates[0])
        wire.retarget(amqp_url)
        assert publisher.publish_each(to_queues([(queue, b"second")])) == [None]
        assert bodies(amqp_url, queue) == [b"first", b"second"], (
            "what had failed was published after all"
        )


@pytest.mark.rest
def test_a_broker_that_stops_and_starts_is_waited_for(rabbitmq):
    broker = rabbitmq()
    queue = unique()
    with plain_channel(broker.url) as channel:
        # A quorum queue will not do: it nacks until it finds its leader.
        channel.queue_declare(queue, durable=True)
    restart_in_order(broker)
    with Publisher(broker.url, patience=timedelta(seconds=60)) as publisher:
        assert publisher.publish_each(to_queues([(queue, b"before")])) == [None]
        broker.kill()
        fates = []
        thread = threading.Thread(
            target=lambda: fates.extend(publisher.publish_each(to_queues([(queue, b"after")])))
        )
        thread.start()
        broker.start()
        thread.join(60)
        assert fates == [None]
        assert bodies(broker.url, queue) == [b"before", b"after"]


def test_an_alarm_is_waited_out_and_nothing_is_published_twice(rabbitmq):
    broker = rabbitmq()
    queue = unique()
    declare_queue(broker.url, WorkQueue(name=queue))
    alarms = []

    def on_wait(alarm):
        alarms.append(alarm)
        if alarms.count(True) == 3:
            broker.control("set_vm_memory_high_watermark", "0.4")

    broker.control("set_vm_memory_high_watermark", "absolute", "1MB")
    # The alarm comes with RabbitMQ's next look at its memory.
    wait_until(lambda: "memory" in broker.control("eval", "rabbit_alarm:get_alarms()."), 30)
    with Publisher(broker.url, patience=timedelta(seconds=1)) as publisher:
        assert publisher.publish_each(to_queues([(queue, b"once")]), on_wait) == [None]
    assert alarms.count(True) >= 3
    assert bodies(broker.url, queue) == [b"once"]


@pytest.mark.slow
def test_an_alarm_that_comes_and_goes_is_two_lines_for_all_publishers_of_a_process(
    rabbitmq, caplog, monkeypatch
):
    for name in ("_QUIET_S", "_LASTING_S"):
        monkeypatch.setattr(outage, name, 600.0)
    caplog.set_level("INFO", "tiercel")
    broker = rabbitmq()
    queue = unique()
    declare_queue(broker.url, WorkQueue(name=queue))
    alarm = "{resource_limit, memory, node()}"
    with ExitStack() as opened:
        publishers = [opened.enter_context(Publisher(broker.url)) for _ in range(3)]
        for _ in range(2):
            broker.control("eval", f"rabbit_alarm:set_alarm({{{alarm}, []}}).")
            with ThreadPoolExecutor() as threads:
                fates = [
                    threads.submit(publisher.publish_each, to_queues([(queue, b"late")]))
                    for publisher in publishers
                ]
                wait_until(lambda: all(each._outlet.blocked for each in publishers))
                broker.control("eval", f"rabbit_alarm:clear_alarm({alarm}).")
            assert [fate.result() for fate in fates] == [[None]] * 3
    lines = [record for record in caplog.records if record.name.startswith("tiercel")]
    assert [record.event for record in lines if record.event.startswith("broker")] == [
        "broker_lost",
        "broker_back",
    ]
    assert "takes no messages now (memory or disk alarm)" in lines[0].getMessage()


def test_a_login_that_is_refused_is_the_fate_of_all_and_is_tried_again_the_next_time(amqp_url):
    rest = amqp_url.rpartition("@")[2]
    with Publisher(f"amqp://nobody:hush-hush@{rest}") as publisher:
        for _ in range(2):
            fates = publisher.publish_each(to_queues([("q", b"a"), ("q", b"b")]))
            assert [type(fate) for fate in fates] == [AccessRefusedError] * 2
            assert "login" in str(fates[0])
            assert "hush" not in str(fates[0])
