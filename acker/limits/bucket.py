"""One bucket and the line of tasks before it. Pure; lua/take.lua decides the same in Redis.

Times are microseconds of one clock. A bucket is one number, the time at which it will be full: each
permit moves it by the rate's interval, and it is never before now (full), nor later than now and
the bucket's depth (empty). Both bounds also hold what a clock that was put back or forward can do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tiercel.acker.limits.contract import (
    CALLS_KEPT_MS,
    GRACE_MS,
    LONGEST_WAIT_MS,
    Grant,
    Rate,
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
    # What it comes for at ``due``, at most one grant.
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
    # The microsecond is what doubles of this size may be off.
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
    """Return False for what is old, and for what a clock that was put back left behind."""
    return -CALLS_KEPT_MS * 1000 <= place.due - now <= 2 * LONGEST_WAIT_MS * 1000


def _answer(place: Place, now: float) -> Grant:
    if not place.wanted:
        return Grant(permits=place.permits)
    again_ms = max(0, math.ceil((place.due - now) / 1000))
    return Grant(permits=place.permits, again_ms=again_ms)
