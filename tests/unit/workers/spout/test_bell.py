"""A bell wakes the thread that waits for it, now or the next time it waits."""

import threading
import time

import pytest

from tiercel.workers.spout.loop import Bell


def waited(bell: Bell, timeout_s: float) -> float:
    began = time.monotonic()
    bell.wait(timeout_s)
    return time.monotonic() - began


def test_a_wait_ends_with_its_time():
    assert 0.05 <= waited(Bell(), 0.05) < 20


@pytest.mark.parametrize("times", [1, 3])
def test_rings_before_a_wait_end_that_one_and_no_other(times):
    bell = Bell()
    for _ in range(times):
        bell.ring()
    assert waited(bell, 60) < 20
    assert waited(bell, 0.05) >= 0.05


def test_another_thread_ends_a_wait():
    bell = Bell()
    timer = threading.Timer(0.05, bell.ring)
    timer.start()
    assert waited(bell, 60) < 20
    timer.join()


def test_no_time_is_too_short_to_end():
    bell = Bell()
    for _ in range(2_000):
        bell.wait(1e-6)
    bell.wait(0.0)
