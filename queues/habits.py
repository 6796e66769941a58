"""The way a spout emits messages again, as far as bolts depend on it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tiercel.queues.queue_spout import QueueSpout
from tiercel.queues.retry import DEFAULT_RETRY, DELIVERY_LIMIT, RetryPolicy
from tiercel.queues.spout import Spout, overrides_last


@dataclass(frozen=True, kw_only=True, slots=True)
class Habits:
    """The properties of a spout that bolts depend on."""

    # It emits a message again at the time that a bolt asks for.
    retries_later: bool
    # It emits released messages again by itself.
    takes_back: bool
    # Longest time after which it emits a failed message again; 0 if unknown.
    back_off_s: float
    # How often, and after which waits, a bolt with an order tries a tuple of it again.
    retry: RetryPolicy = DEFAULT_RETRY
    delivery_limit: int = DELIVERY_LIMIT


class StandIn(Spout):
    """A spout that has the habits of another one."""

    habits: Habits


class AbsentSpout(StandIn):
    """Stand-in for a spout in the processes of bolts: the spout itself may not be picklable."""

    def __init__(self, habits: Habits) -> None:
        self.habits = habits


def habits_of(spout: Spout) -> Habits:
    """Return the habits of a spout; a stand-in has the habits of the spout that it replaces."""
    if isinstance(spout, StandIn):
        return spout.habits
    kind = type(spout)
    habits = Habits(
        retries_later=kind.retry_later is not Spout.retry_later
        and overrides_last(spout, "retry_later", "fail"),
        takes_back=kind.release is not Spout.release,
        back_off_s=0.0,
    )
    if not isinstance(spout, QueueSpout):
        return habits
    queue = spout.queue
    return replace(
        habits,
        back_off_s=queue.retry.longest.total_seconds(),
        retry=queue.retry,
        delivery_limit=queue.delivery_limit,
    )
