"""Limits for the contract suite, and the time that passes for them."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from tiercel.acker import limits
from tiercel.acker.layout import shard_prefix
from tiercel.acker.limits import (
    LimitSpec,
    MemoryLimits,
    Rate,
    RateLimits,
    RedisLimits,
)
from tiercel.acker.redis.clients import connect
from tiercel.acker.redis.scripts import script_source

_PLACE = ">IIIId"
_CLOCK = "redis.call('TIME')"
_STANDS_STILL = "{'1700000000', '0'}"


@dataclass
class MemoryPlace:
    """Limits in this process, with their clock."""

    now: float = 1_000_000.0
    _made: dict[Rate, MemoryLimits] = field(default_factory=dict)

    def open(self, rate: Rate) -> RateLimits:
        return self._made.setdefault(rate, MemoryLimits(rate, lambda: self.now))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class RedisPlace:
    """A server's clock cannot be moved, so its stored times move the other way."""

    url: str
    shards: int
    closing: ExitStack
    topology: str = field(default_factory=lambda: f"limits-{uuid.uuid4().hex}")

    def spec(self, rate: Rate, **changed: Any) -> LimitSpec:
        settings = {
            "topology": self.topology,
            "component": "call",
            "urls": (self.url,),
            "shards": self.shards,
            "rate": rate,
        }
        return LimitSpec(**{**settings, **changed})

    def open(self, rate: Rate, **changed: Any) -> RateLimits:
        limits = RedisLimits(self.spec(rate, **changed))
        self.closing.callback(limits.close)
        return limits

    def buckets(self) -> Iterator[tuple[Any, bytes]]:
        """Yield each key of a limit, with a client for it."""
        for shard in range(self.shards):
            prefix = shard_prefix(self.topology, shard)
            client = connect(self.url, prefix)
            self.closing.callback(client.close)
            for key in list(client.scan_iter(f"{prefix}limit:*", count=1000)):
                yield client, key

    def pass_time(self, seconds: float) -> None:
        for client, key in self.buckets():
            packed = client.get(key)
            (full_at,) = struct.unpack_from(">d", packed)
            moved = struct.pack(">d", full_at - seconds * 1e6)
            for *place, due in struct.iter_unpack(_PLACE, packed[8:]):
                moved += struct.pack(_PLACE, *place, due - seconds * 1e6)
            client.set(key, moved, keepttl=True)


@pytest.fixture
def in_redis(redis_url: str) -> Iterator[Callable[..., RedisPlace]]:
    """``in_redis(shards=…, url=…)``: a topology's limits on the session's server."""
    with ExitStack() as closing:
        yield lambda shards=1, url=redis_url: RedisPlace(url, shards, closing)


def _without_a_clock(*names: str, package: str = "tiercel.acker") -> str:
    text = script_source(*names, package=package)
    assert _CLOCK in text
    return text.replace(_CLOCK, _STANDS_STILL)


@pytest.fixture(
    params=["memory", "redis", "redis in three shards", "redis cluster in three shards"]
)
def place(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> MemoryPlace | RedisPlace:
    """Time passes only by ``pass_time``: a task is late after a fifth of a second, which a busy
    machine may need between two calls.
    """
    if request.param == "memory":
        return MemoryPlace()
    monkeypatch.setattr(limits, "script_source", _without_a_clock)
    make = request.getfixturevalue("in_redis")
    if "cluster" in request.param:
        return make(3, request.getfixturevalue("clustered_redis").url)
    return make(3 if "three" in request.param else 1)
