"""When which bolt task has its tick, and what a tick is: a chunk of one untracked tuple that travels as a spout's do. Pure.

Because ticks lie in the relay like everything else, a task that Spark retries meets the same ones in the same place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from queues.chunk import Chunk, Route, encode
from queues.relay import Entry
from spark_jobs.levels import Plan
from spark_jobs.running.ticks import tick_for
from spark_jobs.system import SYSTEM, TICK, is_system

_NS = 1_000_000_000


@dataclass(kw_only=True, slots=True)
class _Beat:
    """The tasks with one period."""

    period_ns: int
    next_ns: int
    entries: list[Entry] = field(default_factory=list)


class Ticks:
    """The ticks of a planned topology: every ``tick_tuple_freq_secs`` of a bolt, to each of its tasks.

    The caller has the clock and appends the entries. All times are seconds on that one clock, kept as whole nanoseconds, so
    that ``due(next_at)`` always gives what ``next_at`` announced.
    """

    def __init__(self, plan: Plan, start_s: float = 0.0) -> None:
        """The first ticks are due one period after ``start_s``. Bolts of the system have none."""
        beats: dict[int, _Beat] = {}
        start_ns = round(start_s * _NS)
        for component in plan.topology.bolts:
            freq_s = plan.topology.config_of(component).tick_tuple_freq_secs
            if freq_s is None or is_system(component):
                continue
            period_ns = max(1, round(freq_s * _NS))
            beat = beats.setdefault(period_ns, _Beat(period_ns=period_ns, next_ns=start_ns + period_ns))
            beat.entries += [_tick(plan, task, freq_s) for task in plan.topology.task_ids(component)]
        self._beats = list(beats.values())

    @property
    def next_at(self) -> float | None:
        """When ``due`` will return something; None if no bolt wants ticks."""
        return min((beat.next_ns for beat in self._beats), default=0) / _NS if self._beats else None

    def due(self, now_s: float) -> list[Entry]:
        """The entries to append now. A late call gives one tick a task, not one for each period that went by."""
        now_ns = round(now_s * _NS)
        entries: list[Entry] = []
        for beat in self._beats:
            if beat.next_ns <= now_ns:
                entries += beat.entries
                beat.next_ns += ((now_ns - beat.next_ns) // beat.period_ns + 1) * beat.period_ns
        return entries


def without_old_ticks(chunks: Sequence[Chunk]) -> list[Chunk]:
    """The chunks of one micro-batch with the last tick of each task only: a bolt that was busy has missed the others."""
    last = {chunk.route.target_task: index for index, chunk in enumerate(chunks) if _is_tick(chunk.route)}
    return [
        chunk
        for index, chunk in enumerate(chunks)
        if not _is_tick(chunk.route) or last[chunk.route.target_task] == index
    ]  # fmt: skip


def _is_tick(route: Route) -> bool:
    return route.component == SYSTEM and route.stream == TICK


def _tick(plan: Plan, task: int, rate_secs: float) -> Entry:
    return Entry(lane=plan.relay_lane(task), payload=encode(tick_for(task, rate_secs)))
