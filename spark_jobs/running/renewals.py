"""Timeouts of what waits for long calls of a bolt whose calls are under way: begun anew."""

from __future__ import annotations

import logging

from tiercel.acker.errors import RedisUnavailableError
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.arrivals import waiting_roots

log = logging.getLogger(__name__)


class Renewals:
    """Of one bolt task, where a call may last longer than a message (``execute_timeout_secs``).

    One thread only. The watchdog does it for bolts that execute one tuple after the other.
    """

    def __init__(self, around: Around, task: int) -> None:
        limit = around.call_limit(task)
        self._around = around
        self._task = task
        self._renew_s = None if limit is None else limit.renew_s
        self._next_at = float("inf")

    @property
    def next_at(self) -> float | None:
        """Time on the loop's clock at which to look again; None: when calls are under way."""
        return None if self._next_at == float("inf") else self._next_at

    def look(self, *, at_work: bool) -> None:
        """Renew what is in the inbox if that is due; ``at_work`` says that calls are under way.

        Look before and after calls begin: what has just begun is to be renewed while the task waits
        for it, until ``next_at``. Raises StaleAttemptError.
        """
        ledger = self._around.ledger
        if self._renew_s is None or ledger is None:
            return
        now = self._around.loop.time()
        if not at_work:
            self._next_at = float("inf")
        elif self._next_at == float("inf"):
            self._next_at = now + self._renew_s
        elif now >= self._next_at:
            self._next_at = now + self._renew_s
            try:
                around = self._around
                roots = waiting_roots(around.inboxes, around.run, around.topology, self._task)
                ledger.reset_timeout(sorted(roots))
            except RedisUnavailableError as error:
                log.debug("timeouts were not renewed: %s", error, extra={"event": "redis_away"})
