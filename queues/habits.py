"""The habits of a spout with messages that come again, as far as bolts go by them."""

from __future__ import annotations

from dataclasses import dataclass

from tiercel.queues.queue_spout import QueueSpout
from tiercel.queues.spout import Spout, overrides_last


@dataclass(frozen=True, kw_only=True, slots=True)
class Habits:
    """The part of a spout's ways that bolts count on."""

    # It has a message again at the time that a bolt asks for.
    retries_later: bool
    # It emits messages that it is given back again by itself.
    takes_back: bool
    # Longest time after which it emits a failed message again; 0 if it does not say.
    back_off_s: float


class AbsentSpout(Spout):
    """In the place of a spout where bolts run: it stays in its worker, and may hold anything."""

    def __init__(self, habits: Habits) -> None:
        self.habits = habits


def habits_of(spout: Spout) -> Habits:
    """Return the habits of a spout, also of one that is absent."""
    if isinstance(spout, AbsentSpout):
        return spout.habits
    kind = type(spout)
    return Habits(
        retries_later=kind.retry_later is not Spout.retry_later
        and overrides_last(spout, "retry_later", "fail"),
        takes_back=kind.release is not Spout.release,
        back_off_s=spout.queue.retry.longest.total_seconds()
        if isinstance(spout, QueueSpout)
        else 0.0,
    )
