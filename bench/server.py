"""The Redis server of measurements that need nothing else, and its CPU time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import redis

from tiercel.compose.embedded import EmbeddedRedis


@contextmanager
def redis_server(url: str | None) -> Iterator[str]:
    """Yield ``url``, or the address of a private server; its database will be emptied."""
    if url is not None:
        yield url
        return
    with EmbeddedRedis() as server:
        yield server.url


def server_seconds(client: redis.Redis) -> float:
    """Return the CPU seconds of the thread that executes commands."""
    usage = client.info("cpu")
    return float(usage["used_cpu_sys_main_thread"]) + float(usage["used_cpu_user_main_thread"])
