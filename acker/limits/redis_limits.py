"""The limits in Redis: one short string per value, on the server of the shard that the value's
digest says.

Its key is ``limit:DIGEST`` with the prefix of the shard, so that a cluster and several servers
share the values as they share the roots. Eight bytes are the bucket, and each task that
asked in the last half minute adds 24. It expires when the bucket is full and no task waits, some 40
seconds later: a value that is not used costs nothing.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any

from tiercel.acker.effects import Effect, perform_all
from tiercel.acker.layout import shard_prefix
from tiercel.acker.limits.contract import (
    CALLS_KEPT_MS,
    GRACE_MS,
    LONGEST_WAIT_MS,
    Grant,
    LimitSpec,
    RateLimits,
    check_returned,
    check_wants,
)
from tiercel.acker.redis.scripts import RedisScript, RedisServers, script_source

_TIMES_US = (LONGEST_WAIT_MS * 1000, GRACE_MS * 1000, CALLS_KEPT_MS * 1000)


def open_limits(spec: LimitSpec) -> RateLimits:
    """The limits that ``spec`` describes.

    Connects on its first call, so they may be opened while Redis is away.
    """
    return RedisLimits(spec)


class RedisLimits:
    """``RateLimits`` on one or several servers, by their clocks."""

    def __init__(self, spec: LimitSpec) -> None:
        """Raises ValueError without a server or a shard, RedisRefusedError for a malformed URL."""
        if spec.shards < 1:
            raise ValueError("limits need a shard at least")
        self._spec = spec
        self._servers = RedisServers(spec.urls)
        self._scripts: dict[int, RedisScript] = {}
        rate = spec.rate
        self._rate = (repr(rate.interval_us), repr(rate.depth_us), rate.most)
        component = spec.component.encode()
        self._digest = hashlib.blake2b(len(component).to_bytes(4) + component, digest_size=16)

    def take(self, task: int, wants: Mapping[bytes, int]) -> dict[bytes, Grant]:
        check_wants(wants)
        calls = [self._asking(task, value, 0, most) for value, most in wants.items()]
        return dict(zip(wants, perform_all(calls), strict=True))

    def give_back(self, task: int, permits: Mapping[bytes, int]) -> None:
        check_returned(permits)
        perform_all([self._asking(task, value, back, 0) for value, back in permits.items()])

    def close(self) -> None:
        self._servers.close()

    def _asking(self, task: int, value: bytes, returned: int, wanted: int) -> Effect[Grant]:
        digest = self._digest.copy()
        digest.update(value)
        shard = int.from_bytes(digest.digest()[:8]) % self._spec.shards
        key = f"{shard_prefix(self._spec.topology, shard)}limit:{digest.hexdigest()}"
        script = self._scripts.get(shard)
        if script is None:
            server = self._servers.at(shard % len(self._servers), key)
            text = script_source("take", package="tiercel.acker.limits")
            script = self._scripts.setdefault(shard, server.script(text))
        # Drawn, for two processes of one task know nothing of each other's calls.
        call = secrets.randbits(32)
        args = [task, call, returned, wanted, *self._rate, *_TIMES_US]
        return script([key], args, _grant, "take permits")


def _grant(reply: Any) -> Grant:
    permits, again_ms = reply
    return Grant(permits=permits, again_ms=None if again_ms < 0 else again_ms)
