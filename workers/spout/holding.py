"""Bounds the messages that a spout holds, as bound and driver come and go."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from tiercel.workers.spout.outbox import Attendance


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Time for which a spout holds messages that cannot be emitted."""

    without_driver: timedelta = timedelta(minutes=1)
    # Far below a broker's consumer timeout, half an hour, and above most outages.
    without_redis: timedelta = timedelta(minutes=5)


class Holding:
    """Decides what ``Spout.expect`` is told. One thread; times are seconds on one monotonic clock.

    The spout was told 0 when it was opened: it takes nothing before a driver is there, however long
    Spark takes to start, so that nothing has to be given back.
    """

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._told = 0
        self._idle_since: float | None = float("-inf")

    def look(self, now: float, *, bound: int, active: bool, attendance: Attendance) -> int | None:
        """Return what the spout should be told now; None if it knows.

        ``bound`` on the tuples in flight.
        """
        wanted = bound if active and self._is_worth_holding(attendance, now) else 0
        told = self._told
        # Each change may cost a round trip to the broker, so that small ones are left out.
        if (wanted == 0) == (told == 0) and told / 2 <= wanted <= told:
            return None
        self._told = wanted
        return wanted

    def _is_worth_holding(self, attendance: Attendance, now: float) -> bool:
        if attendance is Attendance.DRIVER:
            self._idle_since = None
            return True
        if self._idle_since is None:
            self._idle_since = now
        away = attendance is Attendance.REDIS_AWAY
        patience = self._patience.without_redis if away else self._patience.without_driver
        return now - self._idle_since < patience.total_seconds()
