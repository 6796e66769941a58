"""Tells the spouts of tuples of one bolt task that wait for another one of their key: their
messages do not time out, and leave room for others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from tiercel.acker.errors import RedisUnavailableError
from tiercel.acker.ledger import Ledger

log = logging.getLogger(__name__)

# What waits for less is not worth telling.
_LOOK_S = 0.1
# Parts of a message's timeout, so that one call may fail.
_TELLS_PER_TIMEOUT = 3


class SetApart:
    """Of one bolt task. One thread only; times are seconds on ``clock``."""

    def __init__(
        self, ledger: Ledger | None, clock: Callable[[], float], timeout_s: float | None
    ) -> None:
        """``timeout_s`` of None: messages never time out."""
        self._ledger = ledger
        self._clock = clock
        self._tells_s = None if timeout_s is None else timeout_s / _TELLS_PER_TIMEOUT
        # Those that were told of and still wait.
        self._told: set[int] = set()
        self._look_at = float("-inf")
        self._tell_all_at = float("-inf")

    @property
    def next_at(self) -> float:
        """Time at which to look again, as long as tuples wait."""
        return self._look_at

    def look(self, waiting: Callable[[], Iterable[int]]) -> None:
        """Tell of the roots of what waits now: of each once soon, and of all before they time out.

        Call it in every turn in which something is awaited.
        """
        now = self._clock()
        if self._ledger is None or now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        roots = set(waiting())
        everything = now >= self._tell_all_at
        news = roots if everything else roots - self._told
        try:
            if news:
                self._ledger.reset_timeout(sorted(news), waiting=True)
        except RedisUnavailableError as error:
            log.debug("told later that tuples wait: %s", error, extra={"event": "redis_away"})
            return
        self._told = roots
        if everything and self._tells_s is not None:
            self._tell_all_at = now + self._tells_s
