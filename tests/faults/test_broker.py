"""What happens when RabbitMQ, or the way to it, fails."""

from __future__ import annotations

import threading

import pytest

from tests.broker import plain_channel
from tests.faults import numbered
from tests.faults.stack import Stack

pytestmark = pytest.mark.timeout(400)


def test_the_broker_is_killed_and_started_again(stack: Stack) -> None:
    def fault() -> None:
        stack.services.rabbitmq.kill()
        stack.services.rabbitmq.start()

    stack.survives("broker: SIGKILL and start", fault)


def test_the_broker_is_away_for_longer_than_the_message_timeout(stack: Stack) -> None:
    def fault() -> None:
        stack.services.rabbitmq.stop()
        threading.Event().wait(20)
        stack.services.rabbitmq.start()

    stack.survives("broker: away for 20 s, message timeout 15 s", fault)


def test_connections_are_cut(stack: Stack) -> None:
    stack.survives("broker: connections cut", stack.broker_wire.cut)


def test_connections_are_half_open(stack: Stack) -> None:
    stack.survives("broker: connections half-open", stack.broker_wire.mute)


def test_connections_are_slow(stack: Stack) -> None:
    def fault() -> None:
        stack.broker_wire.delay_s = 2
        threading.Event().wait(15)
        stack.broker_wire.delay_s = 0

    stack.survives("broker: everything 2 s late for 15 s", fault)


def test_the_queue_is_deleted_and_declared_again(stack: Stack) -> None:
    """What was in the queue is gone with it, by the operator's will; what comes afterwards is processed."""
    with plain_channel(stack.services.amqp_url) as channel:
        channel.queue_delete(numbered.QUEUE)
    stack.wait_for_the_queue()
    stack.survives("queue deleted and declared again, then the load", lambda: None)


def test_a_memory_alarm(stack: Stack) -> None:
    def fault() -> None:
        stack.services.rabbitmq.control("set_vm_memory_high_watermark", "absolute", "1MB")
        threading.Event().wait(10)
        stack.services.rabbitmq.control("set_vm_memory_high_watermark", "0.4")

    stack.survives("broker: memory alarm for 10 s", fault)


def test_all_channels_are_closed_by_the_broker(stack: Stack) -> None:
    close = "[rabbit_channel:shutdown(Channel) || Channel <- rabbit_channel:list()]."
    stack.survives("broker: closes every channel", lambda: stack.services.rabbitmq.control("eval", close))
