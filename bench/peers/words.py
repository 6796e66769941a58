"""The work of a task on a word, and the start of the first task."""

from __future__ import annotations

import os
import time
from functools import cache

import redis

BEGAN = "bench-began"


@cache
def client() -> redis.Redis:
    """Return the connection of this process."""
    return redis.Redis.from_url(os.environ["TIERCEL_REDIS"])


@cache
def note_beginning() -> None:
    """Note the start of a process's first task; the earliest of all processes counts."""
    client().set(BEGAN, time.monotonic(), nx=True)


def count_word(word: str) -> None:
    """Count one occurrence of a word."""
    client().hincrby("bench-counts", word, 1)
