"""Times at which tuples come again for which there is no room in a line before a rate limit."""

from __future__ import annotations

from tiercel.spark_jobs.bolts.retry_later import LONGEST_S, RetryLater

# The broker rounds up, by one part in ten at most. One that comes early waits, or goes back again;
# one that comes late leaves permits unused.
_EARLY = 0.9
_LEAST_S = 1.0
_FORGET = 10_000
_REASON = "more tuples wait for the rate limit than begin soon"


class Returns:
    """Of one bolt task, per value of the limit. Times are seconds on one clock."""

    def __init__(self, interval_s: float) -> None:
        """``interval_s`` from one permit to the next, as far as this task gets them."""
        self._interval_s = interval_s
        # Time of the last turn that was promised.
        self._promised: dict[bytes, float] = {}

    def later(self, value: bytes, before: int, now: float) -> RetryLater:
        """Return when a tuple comes again whose value has ``before`` tuples in line: each of those
        that go back has a turn of its own.
        """
        if len(self._promised) > _FORGET:
            self._promised = {one: at for one, at in self._promised.items() if at > now}
        turn = max(now + before * self._interval_s, self._promised.get(value, now))
        self._promised[value] = turn + self._interval_s
        seconds = min(LONGEST_S, max(_LEAST_S, _EARLY * (turn - now)))
        return RetryLater(seconds, _REASON, blame=False)
