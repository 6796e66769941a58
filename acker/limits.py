"""Limits on the rate at which all tasks of a bolt together may begin tuples: contract, twin, Redis.

A *permit* is the right to begin one tuple. Each value of the limit has a *bucket* that fills with
permits at the bolt's rate; a task takes some of them at once, a *grant*, and comes again for more.

``decide`` is one call for one bucket, pure; lua/limit.lua decides the same in Redis. Times are
microseconds of one clock. A bucket is one number, the time at which it will be full: each permit
moves it by the rate's interval, and it is never before now (full), nor later than now and the
bucket's depth (empty). Both bounds also limit the effect of a clock that was put back or forward.

In Redis a bucket is one short string, on the server of the shard that the value's digest says. Its
key is ``limit:DIGEST`` with the prefix of the shard, so that a cluster and several servers share
the values as they share the roots. Eight bytes are the bucket, and each task that asked in the last
half minute adds 24. It expires when the bucket is full and no task waits, some 40 seconds later: a
value that is not used costs nothing.
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

# A full bucket holds one permit, and those that come in this time. So a task that comes late costs
# no permit, and a minute at 100/s has 6,011 at most.
DEPTH_MS = 100
# A grant is the permits of this time, and at least one.
GRANT_MS = 50
# A task that waits and is later than this is passed over.
GRACE_MS = 200
# A task that waits longer comes in between: this keeps its place, and those that were given up
# leave theirs.
LONGEST_WAIT_MS = 10_000
# Longer than any client goes on repeating a call.
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
        """The permits of one grant, at most."""
        return max(1, int(GRANT_MS * 1000 / self.interval_us + 1e-9))


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """The answer for one value."""

    # To use now. More than was wanted never; 0 while others are before this task.
    permits: int
    # Milliseconds until the task should come for the rest, in which it need not ask; None if it
    # got all that it wanted.
    again_ms: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitSpec:
    """The limit of one bolt of a topology; picklable, travels to executors.

    ``urls`` may hold passwords: never log it.
    """

    topology: str
    component: str
    urls: tuple[str, ...]
    # As many as the ledger has: its keys and these share servers, hence connections.
    shards: int
    rate: Rate


class RateLimits(Protocol):
    """One limit for all tasks of one bolt, for each value by itself. Thread-safe.

    A *value* is any bytes, ``b""`` where the limit is for all tuples; only a digest is kept. A
    *task* is the number of a bolt task: a new process at the task takes over its place.

    **The rate.** In any time of T seconds the tasks get rate times T permits at most, and a full
    bucket. A bucket holds one permit and those of 100 ms, and is full in the beginning. While
    permits are wanted none is lost, as long as a task that waits comes within 50 ms of its time.

    **The clock** is one for all tasks, that of the server. If it is put back or forward, by any
    time, the tasks get or lose at most a full bucket.

    **Fairness.** A task that does not get all its permits stands in line, behind the tasks before
    it, with one grant. When its time comes it gets that whole grant at once, and stands behind the
    others with the rest. So tasks that always want more get equal parts, however fast they ask. A
    task that comes later than 200 ms is passed over, and keeps its place until it comes, for 30 s.

    **What is lost.** A call whose reply was lost may be repeated as it is: it takes once. A process
    that dies loses the permits that it holds. A server that lost its memory has full buckets.
    Nothing is ever owed: a limit that was changed holds from the next call on.
    """

    def take(self, task: int, wants: Mapping[bytes, int]) -> dict[bytes, Grant]:
        """Take up to this many permits of each value, at most one grant of each.

        Give the number of tuples that wait, 1 at least: permits are granted for now, and are not
        kept for a task that cannot use them. One round trip per server, of a few thousand values at
        most. Come again after ``again_ms``, or before if more tuples wait: it changes nothing.

        Raises RedisUnavailableError, RedisRefusedError: nothing was granted, or it is lost.
        """

    def give_back(self, task: int, permits: Mapping[bytes, int]) -> None:
        """Return permits that were not used, and leave the line; 0 only leaves it.

        A bucket never gets more than full. Raises as ``take``.
        """

    def close(self) -> None:
        """Release the connections. Idempotent."""


def check_wants(wants: Mapping[bytes, int]) -> None:
    """Raise ValueError for a count that cannot be taken."""
    if any(most < 1 for most in wants.values()):
        raise ValueError("take 1 permit at least: who wants none, gives back 0")


def check_returned(permits: Mapping[bytes, int]) -> None:
    """Raise ValueError for a count that cannot be given back."""
    if any(returned < 0 for returned in permits.values()):
        raise ValueError("give back 0 permits at least, and not fewer")


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
        # Drawn, for two processes of one task know nothing of each other's calls.
        call = secrets.randbits(32)
        args = [task, call, returned, wanted, *self._rate, *_TIMES_US]
        return script([key], args, _grant, "take permits")


def _grant(reply: Any) -> Grant:
    permits, again_ms = reply
    return Grant(permits=permits, again_ms=None if again_ms < 0 else again_ms)
