"""Opens the relay in Redis: the client and its errors are ``acker``'s, what is kept there is ``queues``'."""

from __future__ import annotations

from acker.redis_client import connect_topology
from acker.redis_errors import translated
from queues import RedisRelay


def relay_on(redis_url: str, topology: str, lanes: int) -> RedisRelay:
    """The relay of a topology, with a client of its own. Connects on its first call."""
    return RedisRelay(connect_topology(redis_url, topology), topology, lanes, translated)
