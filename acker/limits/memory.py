"""The limits in memory: the twin of ``RedisLimits``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from itertools import count

from tiercel.acker.limits.bucket import Ask, Bucket, decide
from tiercel.acker.limits.contract import Grant, Rate, check_returned, check_wants


class MemoryLimits:
    """``RateLimits`` within one process."""

    def __init__(self, rate: Rate, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` counts seconds."""
        self._rate = rate
        self._clock = clock
        self._lock = threading.Lock()
        self._calls = count()
        self._buckets: dict[bytes, Bucket] = {}

    def take(self, task: int, wants: Mapping[bytes, int]) -> dict[bytes, Grant]:
        check_wants(wants)
        return {value: self._ask(task, value, wanted=most) for value, most in wants.items()}

    def give_back(self, task: int, permits: Mapping[bytes, int]) -> None:
        check_returned(permits)
        for value, returned in permits.items():
            self._ask(task, value, returned=returned)

    def close(self) -> None:
        pass

    def _ask(self, task: int, value: bytes, *, wanted: int = 0, returned: int = 0) -> Grant:
        with self._lock:
            now = self._clock() * 1e6
            ask = Ask(task=task, call=next(self._calls), wanted=wanted, returned=returned)
            bucket = self._buckets.get(value) or Bucket(full_at=now)
            grant, self._buckets[value] = decide(bucket, ask, self._rate, now)
            return grant
