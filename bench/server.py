"""The one server that the measurements of a single part need, and the CPU time that it has used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import redis

from tiercel.compose.embedded import EmbeddedRedis


@contextmanager
def redis_server(url: str | None) -> Iterator[str]:
    """Yield the address of a server whose database may be emptied.

    The one at ``url``, or a private one.
    """
    if url is not None:
        yield url
        return
    with EmbeddedRedis() as server:
        yield server.url


def server_seconds(client: redis.Redis) -> float:
    """CPU seconds of the thread that executes commands."""
    usage = client.info("cpu")
    return float(usage["used_cpu_sys_main_thread"]) + float(usage["used_cpu_user_main_thread"])
