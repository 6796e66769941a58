"""The work of a task on a word, and the start of the first task."""

from __future__ import annotations

import os
import time
from functools import cache

import redis

BEGAN = "bench-began"


@cache
def client() -> redis.Redis:
    """The connection of this process."""
    return redis.Redis.from_url(os.environ["TIERCEL_REDIS"])


@cache
def note_beginning() -> None:
    """Once a process; the first of all processes counts."""
    client().set(BEGAN, time.monotonic(), nx=True)


def count_word(word: str) -> None:
    """One more of it."""
    client().hincrby("bench-counts", word, 1)
