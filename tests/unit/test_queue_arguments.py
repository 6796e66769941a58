"""What the queues are declared with on each version of RabbitMQ, against a broker made of notes."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
from pika.exceptions import ChannelClosedByBroker

from queues.address import Address
from queues.declare import Declared, WorkQueue, declare_work_queue
from queues.errors import BrokerRefusedError
from queues.retry import NO_WAIT, RetryPolicy

ADDRESS = Address.parse("amqp://host")
POLICY = RetryPolicy(first=timedelta(seconds=1), longest=timedelta(seconds=8))
PLAIN = {
    "x-queue-type": "quorum",
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": "q.dead",
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
    "x-delivery-limit": 5,
}
DELAYED = {**PLAIN, "x-delayed-retry-type": "failed", "x-delayed-retry-min": 1000, "x-delayed-retry-max": 8000}


class Broker:
    """Says no to arguments that ``refuses`` likes, and notes what was declared."""

    def __init__(self, version, refuses=lambda arguments: False, code=406):
        self._impl = SimpleNamespace(server_properties={"product": "RabbitMQ", "version": version})
        self._refuses, self._code = refuses, code
        self.declared = {}

    def channel(self):
        return self

    def queue_declare(self, name, *, durable=False, passive=False, arguments=None):
        if not passive and self._refuses(arguments):
            raise ChannelClosedByBroker(self._code, "PRECONDITION_FAILED - inequivalent arg")
        self.declared[name] = None if passive else arguments
        assert durable != passive


@pytest.mark.parametrize("version", ["3.10.0", "3.13.7", "4.2.9"])
def test_before_4_3_we_hold_failed_messages_back_ourselves(version):
    broker = Broker(version)
    queue = WorkQueue(name="q", delivery_limit=5, retry=POLICY)
    assert declare_work_queue(broker, ADDRESS, queue) == Declared(ours=True, delays_retries=False)
    assert broker.declared["q"] == PLAIN


def test_from_4_3_on_the_broker_does():
    broker = Broker("4.3.1")
    queue = WorkQueue(name="q", delivery_limit=5, retry=POLICY)
    assert declare_work_queue(broker, ADDRESS, queue) == Declared(ours=True, delays_retries=True)
    assert broker.declared["q"] == DELAYED


def test_without_a_wait_there_is_nothing_to_delay():
    broker = Broker("4.3.1")
    assert not declare_work_queue(broker, ADDRESS, WorkQueue(name="q", delivery_limit=5, retry=NO_WAIT)).delays_retries
    assert broker.declared["q"] == PLAIN


def test_a_queue_of_ours_from_before_an_upgrade_is_still_ours():
    broker = Broker("4.3.1", refuses=lambda arguments: "x-delayed-retry-type" in arguments)
    queue = WorkQueue(name="q", delivery_limit=5, retry=POLICY)
    assert declare_work_queue(broker, ADDRESS, queue) == Declared(ours=True, delays_retries=False)


def test_a_foreign_queue_is_left_alone():
    broker = Broker("4.3.1", refuses=lambda arguments: "x-overflow" in arguments)
    assert declare_work_queue(broker, ADDRESS, WorkQueue(name="q")) == Declared(ours=False, delays_retries=False)
    assert broker.declared["q"] is None


def test_a_missing_permission_is_no_foreign_queue():
    broker = Broker("3.10.0", refuses=lambda arguments: "x-overflow" in arguments, code=403)
    with pytest.raises(BrokerRefusedError):
        declare_work_queue(broker, ADDRESS, WorkQueue(name="q"))


def test_dead_letters_may_be_looked_at_any_number_of_times():
    old, new = Broker("3.13.7"), Broker("4.0.0")
    for broker in (old, new):
        declare_work_queue(broker, ADDRESS, WorkQueue(name="q"))
    assert old.declared["q.dead"] == {"x-queue-type": "quorum"}
    assert new.declared["q.dead"] == {"x-queue-type": "quorum", "x-delivery-limit": -1}
