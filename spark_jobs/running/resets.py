"""Timeouts that a bolt has begun anew, told to the ledger."""

from __future__ import annotations

from collections.abc import Sequence

from tiercel.acker.errors import RedisUnavailableError
from tiercel.acker.ledger import Ledger
from tiercel.spark_jobs.running.step import Done, Step


class TimeoutResets:
    """Of one bolt task."""

    def __init__(self, ledger: Ledger | None) -> None:
        self._ledger = ledger

    def after(self, done: Done) -> None:
        """Tell of the tuples of a step that is about to leave."""
        if self._ledger is not None:
            rows = done.record.resets
            self._ledger.reset_timeout([root for row in rows for root in done.roots(row)])

    def meanwhile(self, step: Step, rows: Sequence[int]) -> bool:
        """Tell of these tuples while the bolt works; False: tell it when the step ends."""
        if self._ledger is not None:
            try:
                self._ledger.reset_timeout([root for row in rows for root in step.roots(row)])
            except RedisUnavailableError:
                return False
        return True
