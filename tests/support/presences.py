"""The seats of a topology, in memory and in Redis, for tests that let time pass."""

from __future__ import annotations

import uuid

from tiercel.acker.redis.clients import connect
from tiercel.workers.control.presence import MemoryPresences, Presences
from tiercel.workers.control.redis_control import RedisPresences


class InMemory:
    """``presences`` as one process has them."""

    def __init__(self) -> None:
        self._now = 0.0
        self._presences = MemoryPresences(lambda: self._now)

    def presences(self) -> Presences:
        return self._presences

    def expire(self, seconds: float) -> None:
        self._now += seconds

    def lose(self) -> None:
        self._presences.lose()


class InRedis:
    """``presences`` as each process has its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.topology = f"presence-{uuid.uuid4().hex}"
        self.client = connect(url)

    def presences(self) -> Presences:
        return RedisPresences(self.url, self.topology)

    def expire(self, seconds: float) -> None:
        """As if this time had gone by."""
        for key in self._keys():
            left_ms = self.client.pttl(key) - round(seconds * 1000)
            self.client.pexpire(key, left_ms)  # not more than 0: at once

    def lose(self) -> None:
        self.client.delete(*self._keys())

    def _keys(self) -> list[bytes]:
        return list(self.client.scan_iter(f"tiercel:{{{self.topology}}}:present:*"))
