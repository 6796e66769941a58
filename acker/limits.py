"""Limits on the rate at which all tasks of a bolt together may begin tuples: contract, twin, Redis.

A *permit* is the right to begin one tuple. Each value of the limit has a *bucket* that fills with
permits at the bolt's rate; a task takes some of them at once, a *grant*, and returns for more.

``decide`` is one call for one bucket, pure; lua/limit.lua does the same in Redis. Times are
microseconds of one clock. A bucket is one number, the time at which it will be full: each permit
moves it by the rate's interval. It is never before now (full), nor later than now plus the bucket's
depth (empty). Both bounds also limit the effect of a jump of the clock.

In Redis a bucket is one short string, in the shard chosen by the value's digest. Its key is
``limit:DIGEST`` with the shard's prefix, so that values are spread over servers like roots. The
bucket takes eight bytes, plus 24 for each task that asked in the last half minute. It expires some
40 seconds after it is full and no task waits: an unused value costs nothing.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Protocol

from tiercel.acker.effects import Effect, perform_all
from tiercel.acker.layout import shard_prefix
from tiercel.acker.redis.scripts import RedisScript, RedisServers, script_source

# A full bucket holds one permit plus the permits of this time. So a late task loses no permits, and
# a minute at 100/s has at most 6,011.
DEPTH_MS = 100
# A grant is the permits of this time, and at least one.
GRANT_MS = 50
# A waiting task that is later than this is skipped.
GRACE_MS = 200
# A task that waits longer asks in between, which keeps its place. Abandoned places expire.
LONGEST_WAIT_MS = 10_000
# Longer than any client repeats a call.
CALLS_KEPT_MS = 30_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """Permits per time; both numbers are more than 0."""

    permits: float
    seconds: float = 1.0

    @property
    def interval_us(self) -> float:
        """Microseconds from one permit to the next."""
        return self.seconds * 1e6 / self.permits

    @property
    def depth_us(self) -> float:
        """Microseconds in which an empty bucket becomes full."""
        return self.interval_us + DEPTH_MS * 1000

    @property
    def most(self) -> int:
        """The largest grant, in permits."""
        return max(1, int(GRANT_MS * 1000 / self.interval_us + 1e-9))


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """The answer for one value."""

    # Permits to use now: at most the wanted number; 0 while other tasks are before this one.
    permits: int
    # Milliseconds until the task should ask for the rest; None if it got all permits.
    again_ms: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitSpec:
    """The limit of one bolt of a topology; picklable, travels to executors.

    ``urls`` may hold passwords: never log it.
    """

    topology: str
    component: str
    urls: tuple[str, ...]
    # The ledger's number of shards, so that both share servers and connections.
    shards: int
    rate: Rate


class RateLimits(Protocol):
    """One limit for all tasks of one bolt, for each value by itself. Thread-safe.

    A *value* is any bytes, ``b""`` where the limit is for all tuples; only a digest is kept. A
    *task* is the number of a bolt task: a new process at the task takes over its place.

    **The rate.** In any T seconds the tasks get at most rate times T permits plus a full bucket. A
    bucket holds one permit plus the permits of 100 ms, and is full at first. While permits are
    wanted none is lost, as long as a waiting task asks within 50 ms of its time. Times of this
    century are doubles with steps of a quarter of a microsecond, to which each grant is rounded:
    5,000/s, taken one by one, may be 0.06 % more.

    **The clock** is the server's, for all tasks. However far it jumps, the tasks gain or lose at
    most a full bucket.

    **Fairness.** A task that does not get all its permits joins the end of the line with one grant.
    When its time comes it gets that whole grant at once, and joins the end again with the rest. So
    tasks that always want more get equal shares, however often they ask. A task that is more than
    200 ms late is skipped, and keeps its place for 30 s.

    **Losses.** A call whose reply was lost may be repeated unchanged: it takes permits once. A
    process that dies loses its permits. A server that lost its memory has full buckets. No debt is
    kept: a changed limit applies from the next call on.
    """

    def take(self, task: int, wants: Mapping[bytes, int]) -> dict[bytes, Grant]:
        """Take up to this many permits of each value, at most one grant of each.

        Ask for the number of waiting tuples, at least 1: permits are for use now, and are not kept
        for a task that cannot use them. One round trip per server, with at most a few thousand
        values. Call it again after ``again_ms``; earlier calls, when more tuples wait, do no harm.

        Raises RedisUnavailableError, RedisRefusedError: nothing was granted, or it is lost.
        """

    def give_back(self, task: int, permits: Mapping[bytes, int]) -> None:
        """Return unused permits, and leave the line; 0 only leaves it.

        A bucket never overflows. Raises the errors of ``take``.
        """

    def close(self) -> None:
        """Release the connections. Idempotent."""


def check_wants(wants: Mapping[bytes, int]) -> None:
    """Raise ValueError for a count that cannot be taken."""
    if any(most < 1 for most in wants.values()):
        raise ValueError("take at least 1 permit; to leave the line, give back 0")


def check_returned(permits: Mapping[bytes, int]) -> None:
    """Raise ValueError for a count that cannot be given back."""
    if any(returned < 0 for returned in permits.values()):
        raise ValueError("the number of permits to give back is negative")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """One call for one bucket."""

    task: int
    # A different number for each call of a task.
    call: int
    wanted: int = 0
    returned: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The last call of one task, which is in line if it wants permits."""

    task: int
    call: int
    # The answer to the call, in case it is repeated.
    permits: int
    # Permits that the task gets at ``due``, at most one grant.
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
        # It keeps its place for a whole grant, instead of going to the end with a part of one.
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
    """Return False for an old place, and for one in the future after the clock was put back."""
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


_TIMES_US = (LONGEST_WAIT_MS * 1000, GRACE_MS * 1000, CALLS_KEPT_MS * 1000)


class RedisLimits:
    """``RateLimits`` on one or several servers, by their clocks.

    Connects on its first call, so they may be opened while Redis is away.
    """

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
            text = script_source("limit")
            script = self._scripts.setdefault(shard, server.script(text))
        # Random, because two processes of one task do not know each other's calls.
        call = secrets.randbits(32)
        args = [task, call, returned, wanted, *self._rate, *_TIMES_US]
        return script([key], args, _grant, "take permits")


def _grant(reply: Any) -> Grant:
    permits, again_ms = reply
    return Grant(permits=permits, again_ms=None if again_ms < 0 else again_ms)
