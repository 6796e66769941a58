"""Pace of a spout task: the time of its next batch, and its rest when there is nothing to do."""

from __future__ import annotations

from tiercel.spark_jobs.running.slices import Spacing

# Otherwise, at a thousand messages per second, each would be a batch of its own, at ten
# times the price.
_BETWEEN_BATCHES_S = 0.01
_LONGEST_BETWEEN_BATCHES_S = 0.04
# Sending takes one part in this many of a worker's time, where nothing waits: on a busy machine
# batches are larger.
_OF_THE_TIME = 4
# Spouts that wake their worker do not depend on it.
_SHORTEST_REST_S = 0.02
_LONGEST_REST_S = 0.1


class Pace:
    """Of one task. Times are monotonic seconds."""

    def __init__(self, between_s: float = _BETWEEN_BATCHES_S) -> None:
        """``between_s`` is the least time from one batch to the next."""
        self._between_s = between_s
        self._next_batch = 0.0
        self._spacing = Spacing(times=_OF_THE_TIME, longest_s=_LONGEST_BETWEEN_BATCHES_S)
        self._rest_s = _SHORTEST_REST_S

    def may_begin(self, now: float) -> bool:
        """Return True if the last batch began long enough ago.

        After a pause the first tuple leaves at once.
        """
        return now >= self._next_batch

    def began(self, now: float) -> None:
        """There are tuples for a new batch."""
        self._next_batch = now + self._spacing.between_s(self._between_s)

    def sent(self, took_s: float) -> None:
        """A batch was sent, in so much time."""
        self._spacing.took(took_s)

    def worked(self) -> None:
        """There was something to do."""
        self._rest_s = _SHORTEST_REST_S

    def rest_s(self, now: float) -> float:
        """There was nothing to do: how long to wait for a wake-up.

        Until the next batch may begin, else longer each time.
        """
        if now < self._next_batch:
            return self._next_batch - now
        rest_s, self._rest_s = self._rest_s, min(2 * self._rest_s, _LONGEST_REST_S)
        return rest_s
