"""How many spout tuples a task may have in flight: a fixed number, or one that follows the complete latency."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

FIRST_BOUND = 500
LARGEST_BOUND = 200_000
_LARGEST_STEP = 4


@dataclass(frozen=True, kw_only=True)
class Admission:
    """The bound now, and the latencies between which it stays. ``observe`` gives the next one; values, not state."""

    bound: int
    fixed: bool = False
    grow_below_s: float = 2.0
    shrink_above_s: float = 10.0
    since: float = float("-inf")
    """When it last shrank. What was emitted before tells of the larger bound, and of whatever stood still meanwhile."""

    @classmethod
    def for_topology(cls, max_spout_pending: int | None, message_timeout: timedelta | None) -> Admission:
        """A fixed bound if the topology sets one.

        Else it grows while trees complete within two seconds (a sixth of the timeout if that is less), and shrinks when
        they take more than a third of the timeout, so that slow bolts never turn a backlog into timeouts and replays.
        """
        if max_spout_pending is not None:
            return cls(bound=max_spout_pending, fixed=True)
        if message_timeout is None:
            return cls(bound=FIRST_BOUND)
        timeout = message_timeout.total_seconds()
        return cls(bound=FIRST_BOUND, grow_below_s=min(2.0, timeout / 6), shrink_above_s=timeout / 3)

    def observe(self, emitted_at: float, now: float, *, was_full: bool) -> Admission:
        """What to do after a window of outcomes.

        ``emitted_at`` is when the oldest tuple in it was emitted, on the clock of ``now``, in seconds; ``was_full`` whether the
        bound was reached: one that nobody reached says nothing about a larger one.
        """
        if self.fixed or emitted_at <= self.since:
            return self
        latency_s = now - emitted_at
        if latency_s > self.shrink_above_s:
            return replace(self, bound=max(1, self.bound // 2), since=now)
        if was_full and latency_s < self.grow_below_s:
            # So that the latency comes to the limit at most, if all of it is due to the number in flight.
            step = min(_LARGEST_STEP, self.grow_below_s / max(latency_s, 0.001))
            return replace(self, bound=min(LARGEST_BOUND, int(self.bound * step) + 1))
        return self
