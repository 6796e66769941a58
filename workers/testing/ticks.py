"""The ticks of a simulated cluster: in a real one each task has a clock of its own."""

from __future__ import annotations

from dataclasses import dataclass, field

from tiercel.acker.effects import perform_all
from tiercel.acker.inbox.chunk import encode
from tiercel.acker.inbox.records import Parcel, Sender
from tiercel.spark_jobs.bolts.streams import SYSTEM_TASK, is_system
from tiercel.spark_jobs.running.ticks import tick_for
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.workers.testing.engine import Engine

_NS = 1_000_000_000


@dataclass(kw_only=True, slots=True)
class _Beat:
    """The tasks with one period."""

    period_ns: int
    next_ns: int
    parcels: list[Parcel] = field(default_factory=list)


class Ticks:
    """The ticks of a topology: every ``tick_tuple_freq_secs`` of a bolt, to each of its tasks.

    The caller has the clock. All times are seconds on that one clock, kept
    as whole nanoseconds, so that ``due(next_at)`` always gives what ``next_at`` announced.
    """

    def __init__(self, topology: Topology, start_s: float = 0.0) -> None:
        """The first ticks are due one period after ``start_s``. Bolts of the system have none."""
        beats: dict[int, _Beat] = {}
        start_ns = round(start_s * _NS)
        for component in topology.bolts:
            freq_s = topology.config_of(component).tick_tuple_freq_secs
            if freq_s is None or is_system(component):
                continue
            period_ns = max(1, round(freq_s * _NS))
            beat = beats.setdefault(
                period_ns, _Beat(period_ns=period_ns, next_ns=start_ns + period_ns)
            )
            beat.parcels += [
                Parcel(target=task, chunks=[encode(tick_for(task, freq_s))], tuples=[1])
                for task in topology.task_ids(component)
            ]
        self._beats = list(beats.values())
        # Appends so far.
        self._sent = 0

    @property
    def next_at(self) -> float | None:
        """Time at which ``due`` will return something; None if no bolt wants ticks."""
        return min((beat.next_ns for beat in self._beats), default=0) / _NS if self._beats else None

    def send(self, engine: Engine, now_s: float) -> bool:
        """Append the ticks that are due; returns whether there were any."""
        parcels = self.due(now_s)
        if not parcels:
            return False
        self._sent += 1
        sender = Sender(task=SYSTEM_TASK, attempt=1)
        perform_all(engine.inboxes.append(engine.run_id, sender, self._sent, parcels))
        return True

    def due(self, now_s: float) -> list[Parcel]:
        """The ticks to append now.

        A late call gives one per task, not one for each period that went by.
        """
        now_ns = round(now_s * _NS)
        parcels: list[Parcel] = []
        for beat in self._beats:
            if beat.next_ns <= now_ns:
                parcels += beat.parcels
                beat.next_ns += ((now_ns - beat.next_ns) // beat.period_ns + 1) * beat.period_ns
        return parcels
