"""Queue arguments on each version of RabbitMQ, and how existing queues' arguments are read, on a
fake broker.
"""

import logging
from datetime import timedelta
from types import SimpleNamespace

import pytest
from pika.exceptions import ChannelClosedByBroker

from tiercel.queues.broker.address import Address
from tiercel.queues.broker.arguments import read_arguments
from tiercel.queues.broker.declare import Declared, WorkQueue, declare_work_queue
from tiercel.queues.errors import BrokerRefusedError
from tiercel.queues.retry import NO_WAIT, BrokerLimit, RetryPolicy

ADDRESS = Address.parse("amqp://host")
POLICY = RetryPolicy(first=timedelta(seconds=1), longest=timedelta(seconds=8))
PLAIN = {
    "x-queue-type": "quorum",
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": "q.dead",
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
    "x-delivery-limit": 1_000_000,
}
DELAYED = {
    **PLAIN,
    "x-delayed-retry-type": "failed",
    "x-delayed-retry-min": 1000,
    "x-delayed-retry-max": 8000,
}
FREE = BrokerLimit(returns=1_000_000)


class Broker:
    """Refuses to redeclare a queue with other arguments, with RabbitMQ's message, and records
    declarations.
    """

    def __init__(self, version, code=406, **existing):
        self._impl = SimpleNamespace(server_properties={"product": "RabbitMQ", "version": version})
        self._code = code
        self.declared = {}
        self.existing = {
            name: {"x-queue-type": "classic", **arguments} for name, arguments in existing.items()
        }

    def channel(self):
        return self

    def queue_declare(
        self, name, *, durable=False, auto_delete=False, passive=False, arguments=None
    ):
        if passive:
            return
        assert durable
        assert not auto_delete
        there = self.existing.get(name)
        if there is not None and there != arguments:
            raise ChannelClosedByBroker(self._code, self._refusal(name, there, arguments))
        self.declared[name] = arguments

    def queue_delete(self, name, **_):
        del self.declared[name]

    def _refusal(self, name, there, arguments):
        # In RabbitMQ's order of comparison: the limit comes last.
        names = sorted(
            there.keys() | arguments.keys(),
            key=lambda each: (each == "x-delivery-limit", each != "x-queue-type", each),
        )
        wrong = next(each for each in names if there.get(each) != arguments.get(each))
        received, current = (self._said(each.get(wrong)) for each in (arguments, there))
        return (
            f"PRECONDITION_FAILED - inequivalent arg '{wrong}' for queue '{name}' in vhost '/': "
            f"received {received} but current is {current}"
        )[:255]

    @staticmethod
    def _said(value):
        kind = {str: "longstr", int: "signedint", bool: "bool"}.get(type(value))
        return (
            "none"
            if value is None
            else f"the value '{str(value).lower() if kind == 'bool' else value}' of type '{kind}'"
        )


@pytest.mark.parametrize("version", ["3.10.0", "3.13.7", "4.2.9"])
def test_before_4_3_we_hold_failed_messages_back_ourselves(version):
    broker = Broker(version)
    queue = WorkQueue(name="q", delivery_limit=5, retry=POLICY)
    assert declare_work_queue(broker, ADDRESS, queue) == Declared(delays_retries=False, limit=FREE)
    assert broker.declared["q"] == PLAIN


def test_from_4_3_on_the_broker_does():
    broker = Broker("4.3.1")
    queue = WorkQueue(name="q", delivery_limit=5, retry=POLICY)
    assert declare_work_queue(broker, ADDRESS, queue) == Declared(delays_retries=True, limit=FREE)
    assert broker.declared["q"] == DELAYED


def test_without_a_wait_there_is_nothing_to_delay():
    broker = Broker("4.3.1")
    assert not declare_work_queue(
        broker, ADDRESS, WorkQueue(name="q", delivery_limit=5, retry=NO_WAIT)
    ).delays_retries
    assert broker.declared["q"] == PLAIN


@pytest.mark.parametrize(("arguments", "delays"), [(PLAIN, False), (DELAYED, True)])
def test_a_queue_of_an_older_tiercel_is_still_ours_and_its_limit_is_named(
    caplog, arguments, delays
):
    broker = Broker("4.3.1", q={**arguments, "x-delivery-limit": 20})
    with caplog.at_level(logging.WARNING):
        declared = declare_work_queue(broker, ADDRESS, WorkQueue(name="q", retry=POLICY))
    assert declared == Declared(delays_retries=delays, limit=BrokerLimit(returns=20))
    assert "dead-letters messages that come back more than 20 times" in caplog.text


def test_a_queue_with_other_waits_is_used_without_a_word(caplog):
    broker = Broker("4.3.1", q=PLAIN)
    with caplog.at_level(logging.WARNING):
        declared = declare_work_queue(broker, ADDRESS, WorkQueue(name="q", retry=POLICY))
    assert declared.limit.returns_are_free
    assert not caplog.text


@pytest.mark.parametrize(
    ("version", "arguments", "limit"),
    [
        ("3.10.0", {}, BrokerLimit()),
        ("3.10.0", {"x-delivery-limit": 5}, BrokerLimit(returns=5, deletes=True)),
        (
            "3.10.0",
            {"x-delivery-limit": 5, "x-max-length": 7, "x-single-active-consumer": True},
            BrokerLimit(returns=5, deletes=True),
        ),
        (
            "3.10.0",
            {"x-delivery-limit": 5, "x-dead-letter-exchange": "it's"},
            BrokerLimit(returns=5),
        ),
        ("4.0.0", {}, BrokerLimit(returns=20, deletes=True)),
        ("4.0.0", {"x-delivery-limit": -1}, BrokerLimit()),
    ],
)
@pytest.mark.parametrize("declare", [True, False])
def test_a_foreign_queue_is_left_alone_and_its_limit_is_known(version, arguments, limit, declare):
    broker = Broker(version, q={"x-queue-type": "quorum", **arguments})
    declared = declare_work_queue(broker, ADDRESS, WorkQueue(name="q", declare=declare))
    assert declared == Declared(delays_retries=False, limit=limit)


def test_a_classic_queue_has_no_count_and_no_limit():
    broker = Broker("4.0.0", q={"x-message-ttl": 5})
    declared = declare_work_queue(broker, ADDRESS, WorkQueue(name="q"))
    assert declared.limit == BrokerLimit(counts=False)


@pytest.mark.parametrize("declare", [True, False])
def test_a_queue_that_deletes_whatever_comes_back_is_refused(declare):
    broker = Broker("3.10.0", q={"x-queue-type": "quorum", "x-delivery-limit": 0})
    with pytest.raises(
        BrokerRefusedError, match="declare the queue with a higher limit or a dead-letter exchange"
    ):
        declare_work_queue(broker, ADDRESS, WorkQueue(name="q", declare=declare))


def test_what_cannot_be_read_is_taken_for_the_worst_that_this_version_makes_by_itself():
    name = "q" * 220
    for version, limit in (
        ("3.10.0", BrokerLimit()),
        ("4.0.0", BrokerLimit(returns=20, deletes=True)),
    ):
        broker = Broker(version, **{name: {"x-queue-type": "quorum", "x-delivery-limit": 5}})
        assert declare_work_queue(broker, ADDRESS, WorkQueue(name=name)).limit == limit


def test_a_missing_permission_is_no_foreign_queue():
    broker = Broker("3.10.0", code=403, q={})
    with pytest.raises(BrokerRefusedError):
        declare_work_queue(broker, ADDRESS, WorkQueue(name="q"))


def test_who_may_not_configure_may_still_consume():
    broker = Broker("3.10.0", code=403, q={})
    assert (
        declare_work_queue(broker, ADDRESS, WorkQueue(name="q", declare=False)).limit
        == BrokerLimit()
    )


def test_reading_the_arguments_of_a_queue_that_was_just_deleted_leaves_none_behind():
    broker = Broker("3.10.0")
    assert read_arguments(broker, "q") is None
    assert not broker.declared


def test_dead_letters_may_be_looked_at_any_number_of_times():
    old = Broker("3.13.7")
    new = Broker("4.0.0")
    for broker in (old, new):
        declare_work_queue(broker, ADDRESS, WorkQueue(name="q"))
    assert old.declared["q.dead"] == {"x-queue-type": "quorum"}
    assert new.declared["q.dead"] == {"x-queue-type": "quorum", "x-delivery-limit": -1}
