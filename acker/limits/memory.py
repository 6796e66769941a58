"""The limits in memory: the twin of ``RedisLimits``.

``decide`` is one call for one bucket, pure; lua/take.lua decides the same in Redis. Times are
microseconds of one clock. A bucket is one number, the time at which it will be full: each permit
moves it by the rate's interval, and it is never before now (full), nor later than now and the
bucket's depth (empty). Both bounds also limit the effect of a clock that was put back or forward.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from tiercel.acker.limits.contract import (
    CALLS_KEPT_MS,
    GRACE_MS,
    LONGEST_WAIT_MS,
    Grant,
    Rate,
    check_returned,
    check_wants,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """One call for one bucket."""

    task: int
    # Another one for each call of a task.
    call: int
    wanted: int = 0
    returned: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The last call of one task. It stands in line if it wants something."""

    task: int
    call: int
    # The answer to the call, should it be repeated.
    permits: int
    # Permits that it comes for at ``due``, at most one grant.
    wanted: int
    due: float

    def in_line(self, now: float) -> bool:
        """Return True if the task may still come in time."""
        return self.wanted > 0 and self.due >= now - GRACE_MS * 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """The state of one value, until the next call."""

    full_at: float
    # In the order in which they wait; one per task.
    places: Sequence[Place] = ()


def decide(bucket: Bucket, ask: Ask, rate: Rate, now: float) -> tuple[Grant, Bucket]:
    """Return the answer to one call, and the bucket after it."""
    places = [place for place in bucket.places if _is_kept(place, now)]
    mine = next((place for place in places if place.task == ask.task), None)
    if mine is not None and mine.call == ask.call:
        return _answer(mine, now), bucket
    full_at = min(bucket.full_at, now + rate.depth_us) - ask.returned * rate.interval_us
    full_at = max(now, full_at)

    waits = mine is not None and mine.wanted > 0
    others = sum(p.wanted for p in places if p is not mine and p.in_line(now))
    before = others
    if mine is not None and waits:
        before = sum(p.wanted for p in places[: places.index(mine)] if p.in_line(now))
    asked = min(ask.wanted, rate.most)
    # Doubles of this size may be off by a microsecond.
    room = math.floor((rate.depth_us - (full_at - now) + 1) / rate.interval_us) - before
    permits = max(0, min(asked, room))
    if waits and permits < asked:
        # It keeps its place, for a whole grant, instead of going to the end with a part.
        permits = 0
    keeps_place = waits and permits == 0 and ask.wanted > 0

    full_at += permits * rate.interval_us
    left = min(ask.wanted - permits, rate.most)
    ahead = before if keeps_place else others
    wait_ms = 0
    if left:
        due = full_at - rate.depth_us + (ahead + left) * rate.interval_us
        wait_ms = min(max(0, math.ceil((due - now) / 1000)), LONGEST_WAIT_MS)
    place = Place(
        task=ask.task, call=ask.call, permits=permits, wanted=left, due=now + wait_ms * 1000
    )
    if mine is not None and keeps_place:
        places[places.index(mine)] = place
    else:
        places = [other for other in places if other is not mine] + [place]
    return _answer(place, now), replace(bucket, full_at=full_at, places=places)


def _is_kept(place: Place, now: float) -> bool:
    """Return False for an old place, and for one in the future of a clock that was put back."""
    return -CALLS_KEPT_MS * 1000 <= place.due - now <= 2 * LONGEST_WAIT_MS * 1000


def _answer(place: Place, now: float) -> Grant:
    if not place.wanted:
        return Grant(permits=place.permits)
    again_ms = max(0, math.ceil((place.due - now) / 1000))
    return Grant(permits=place.permits, again_ms=again_ms)


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
