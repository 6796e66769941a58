"""Waiting for a condition: tests never sleep for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout: float = 30, message: str = "") -> T:
    """Call ``condition`` until it returns a true value, and return that value.

    Fails after ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    pause = 0.002
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {message or condition}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)
    return found
