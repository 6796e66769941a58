"""Ticks of one bolt task: their times, and their form, a chunk of one untracked tuple."""

from __future__ import annotations

import numpy as np

from tiercel.acker.inbox.chunk import Chunk, Lineage, Route
from tiercel.spark_jobs.bolts.streams import SYSTEM, SYSTEM_STREAMS, SYSTEM_TASK, TICK


class TickClock:
    """The ticks of one bolt task: one every ``tick_tuple_freq_secs``.

    Times are seconds on the caller's clock.

    A task that was busy for several periods has one tick, not one for each.
    """

    def __init__(self, task: int, freq_s: float, start_s: float) -> None:
        """The first tick is due one period after ``start_s``."""
        self._period_s = freq_s
        self._task = task
        self.next_at = start_s + freq_s
        # Ticks that committed steps have executed.
        self.count = 0
        # True while a call executes a tick, which a step then commits.
        self.under_way = False

    def due(self, now: float) -> list[Chunk]:
        """The tick to execute now: none, or one."""
        return [self.tick()] if now >= self.next_at and not self.under_way else []

    def ticked(self, now: float) -> None:
        """The tick was executed, and the next one is due at the next multiple of the period."""
        self.count += 1
        self.next_at += (max(0.0, now - self.next_at) // self._period_s + 1) * self._period_s

    def tick(self) -> Chunk:
        """One tick."""
        return tick_for(self._task, self._period_s)


def tick_for(task: int, rate_secs: float) -> Chunk:
    """A tick for one bolt task."""
    none = np.empty(0, np.uint64)
    return Chunk(
        route=Route(component=SYSTEM, stream=TICK, source_task=SYSTEM_TASK, target_task=task),
        values=SYSTEM_STREAMS[TICK].batch([[float(rate_secs)]]),
        lineage=Lineage(offsets=np.zeros(2, np.int32), roots=none, edges=none),
    )
