"""The contract of the limits: the rate at which all tasks of a bolt together may begin tuples.

A *permit* is the right to begin one tuple. Each value of the limit has a *bucket* that fills with
permits at the bolt's rate; a task takes some of them at once, a *grant*, and comes again for more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

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
        ...

    def give_back(self, task: int, permits: Mapping[bytes, int]) -> None:
        """Return permits that were not used, and leave the line; 0 only leaves it.

        A bucket never gets more than full. Raises as ``take``.
        """
        ...

    def close(self) -> None:
        """Release the connections. Idempotent."""
        ...


def check_wants(wants: Mapping[bytes, int]) -> None:
    """Raise ValueError for a count that cannot be taken."""
    if any(most < 1 for most in wants.values()):
        raise ValueError("take 1 permit at least: who wants none, gives back 0")


def check_returned(permits: Mapping[bytes, int]) -> None:
    """Raise ValueError for a count that cannot be given back."""
    if any(returned < 0 for returned in permits.values()):
        raise ValueError("give back 0 permits at least, and not fewer")
