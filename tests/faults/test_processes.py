"""What happens when one of tiercel's processes dies, is asked to end, or stands still."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from tests.children import kill, python_workers
from tests.faults.stack import Stack
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(400)


def test_a_spout_worker_is_killed(stack: Stack) -> None:
    stack.survives("spout worker: SIGKILL", lambda: kill(stack.child("0"), signal.SIGKILL))


def test_a_spout_worker_is_asked_to_end(stack: Stack) -> None:
    stack.survives("spout worker: SIGTERM", lambda: stop_and_start(stack, "0"))


def test_a_spout_worker_stands_still_for_longer_than_the_message_timeout(stack: Stack) -> None:
    def fault() -> None:
        stack.signal("0", signal.SIGSTOP)
        threading.Event().wait(25)
        stack.signal("0", signal.SIGCONT)

    stack.survives("spout worker: SIGSTOP for 25 s, message timeout 15 s", fault)


def test_a_driver_is_killed(stack: Stack) -> None:
    shown = stack.survives("driver: SIGKILL", lambda: kill(stack.child("driver"), signal.SIGKILL))
    assert shown.recovery_s < 60


def test_a_driver_is_asked_to_end(stack: Stack) -> None:
    stack.survives("driver: SIGTERM", lambda: stop_and_start(stack, "driver"))


def test_a_python_worker_of_spark_is_killed(stack: Stack) -> None:
    def fault() -> None:
        workers = python_workers(stack.pid("driver"))
        assert workers, "Spark has no Python workers"
        os.kill(workers[-1], signal.SIGKILL)

    stack.survives("a Python worker of Spark: SIGKILL", fault)


def stop_and_start(stack: Stack, name: str) -> None:
    """As an operator or a container engine does it: SIGTERM, and a new one when the old one has ended."""
    stack.signal(name, signal.SIGTERM)
    wait_until(lambda: stack.child(name).exit_code == 0, 60, f"{name} to end")
    stack.start_again(name)
