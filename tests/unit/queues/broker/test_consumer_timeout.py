"""RabbitMQ's consumer timeout: the queue arguments and the warning."""

from datetime import timedelta

import pytest

from tests.support.fake_broker import ConsumerBench
from tiercel import BasicBolt, Config, Session, TopologyBuilder, WindowedBolt, tumbling
from tiercel.queues.broker.declare import (
    WorkQueue,
    consumer_timeout,
    short_timeout,
    timeout_arguments,
    work_queue_arguments,
)
from tiercel.queues.errors import BrokerRefusedError
from tiercel.testing import FeederSpout

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY_MS = 86_400_000


@pytest.mark.parametrize("version", [(3, 10), (3, 13), (4, 2), (4, 3)])
def test_where_no_bolt_takes_long_nothing_is_set_or_said(version):
    assert timeout_arguments(None, version) == {}
    decided = consumer_timeout(None, version, "q", {})
    assert (decided.arguments, decided.warning) == ({}, "")


def test_a_queue_that_is_declared_has_it_where_the_consumer_cannot_say_it():
    queue = WorkQueue(name="q", held=HOUR)
    assert work_queue_arguments(queue, (3, 13))["x-consumer-timeout"] == DAY_MS
    for version in ((3, 11), (4, 3)):
        assert "x-consumer-timeout" not in work_queue_arguments(queue, version)
    short = WorkQueue(name="q", held=5 * MINUTE)
    assert "x-consumer-timeout" not in work_queue_arguments(short, (3, 13)), "30 minutes are enough"


def test_from_4_3_on_the_consumer_says_it_whatever_the_queue_has():
    decided = consumer_timeout(HOUR, (4, 3), "q", {"x-consumer-timeout": 1000})
    assert decided.arguments == {"x-consumer-timeout": DAY_MS}
    assert decided.warning == ""
    assert consumer_timeout(24 * HOUR, (4, 4), "q", None).arguments == {
        "x-consumer-timeout": 2 * DAY_MS
    }


def test_a_queue_whose_timeout_is_long_enough_is_used_without_a_word():
    assert not consumer_timeout(HOUR, (3, 13), "q", {"x-consumer-timeout": 7_200_000}).warning
    assert not consumer_timeout(5 * MINUTE, (3, 10), "q", None).warning


def test_a_timeout_that_is_too_short_is_one_line_with_what_to_do():
    old = consumer_timeout(HOUR, (3, 10), "orders", {}).warning
    assert old == (
        "a bolt may hold a message of queue orders for 3600 s, and RabbitMQ 3.10 takes it back "
        f"after 1800 s unless it was told otherwise: set consumer_timeout = {DAY_MS} in "
        "rabbitmq.conf"
    )
    newer = consumer_timeout(HOUR, (3, 13), "orders", {"x-consumer-timeout": 60_000}).warning
    assert "after 60 s" in newer
    assert "rabbitmqctl set_policy" in newer


def test_what_waits_and_each_bolt_that_takes_long_count():
    def held(*limits):
        builder = TopologyBuilder("t", config=Config(message_timeout_secs=30))
        builder.set_spout("numbers", FeederSpout(fields="x long"))
        for number, limit in enumerate(limits):
            settings = {} if limit is None else {"execute_timeout_secs": limit}
            builder.set_bolt(f"b{number}", BasicBolt(), config=settings).shuffle_grouping("numbers")
        return builder.build().held

    assert held(None, 20) is None
    assert held(3600, None, 600) == timedelta(seconds=300 + 30 + 4200)


def test_the_consumer_is_begun_with_it():
    bench = ConsumerBench()
    assert bench.channel.consumer_arguments == {}
    bench.consumer._arguments = {"x-consumer-timeout": 5}
    bench.lose()
    bench.open()
    assert bench.channel.consumer_arguments == {"x-consumer-timeout": 5}


class Windowed(WindowedBolt):
    def __init__(self, window):
        self.window = window

    def execute(self, window, collector):
        pass


def timeout_of(window, version, arguments=None, policy=timedelta(0), **config):
    """Return the warning to a spout worker of a topology with this window; None: it is refused."""
    builder = TopologyBuilder("t", config=Config(**config))
    builder.set_spout("numbers", FeederSpout(fields="x long"))
    builder.set_bolt("windows", Windowed(window)).shuffle_grouping("numbers")
    topology = builder.build()
    queue = WorkQueue(
        name="orders",
        held=topology.held,
        needed=topology.windows_need,
        configured=topology.config.consumer_timeout,
    )
    if arguments is None:
        arguments = timeout_arguments(queue.held, version)
    return short_timeout(consumer_timeout(queue.held, version, "orders", arguments), queue, policy)


@pytest.mark.parametrize("version", [(3, 10), (3, 13), (4, 2), (4, 3)])
def test_windows_that_fit_into_the_usual_timeout_are_never_refused(version):
    assert timeout_of(tumbling(5 * MINUTE), version) == ""
    assert timeout_of(tumbling(5 * MINUTE), version, {}) == ""
    timeout_of(Session(10 * MINUTE), version, {})
    timeout_of(tumbling(29 * MINUTE), version, {})
    timeout_of(tumbling(1000), version, {})


def test_a_window_that_cannot_fit_is_refused_in_one_line_with_what_to_do():
    with pytest.raises(BrokerRefusedError) as refused:
        timeout_of(tumbling(HOUR), (3, 10), {})
    assert str(refused.value) == (
        "a window holds a message of queue orders for up to 3660 s (length, lag and idle), and "
        f"RabbitMQ takes it back after 1800 s: make the window shorter; or set consumer_timeout = "
        f"{DAY_MS} in rabbitmq.conf, and set Config(consumer_timeout_secs=…) to that time"
    )
    with pytest.raises(BrokerRefusedError, match=r"after 60 s.*rabbitmqctl set_policy"):
        timeout_of(tumbling(MINUTE), (3, 13), {"x-consumer-timeout": 60_000})
    with pytest.raises(BrokerRefusedError, match="after 1800 s"):
        timeout_of(tumbling(HOUR), (4, 2), {})
    with pytest.raises(BrokerRefusedError, match="after 2400 s"):
        timeout_of(tumbling(HOUR), (3, 13), {}, policy=40 * MINUTE)


def test_a_long_window_is_taken_where_the_broker_allows_it():
    assert timeout_of(tumbling(HOUR), (3, 13)) == "", "the queue is declared with a longer one"
    assert timeout_of(tumbling(HOUR), (4, 3), {}) == "", "the consumer asks for a longer one"
    assert timeout_of(tumbling(HOUR), (3, 13), {}, policy=24 * HOUR) == ""
    assert timeout_of(tumbling(HOUR), (3, 10), {}, consumer_timeout_secs=86_400) == ""
