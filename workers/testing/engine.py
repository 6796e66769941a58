"""The contract of an engine, which runs the bolts of a ``LocalCluster``; simulated time, and the
ticks in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tiercel.acker.effects import perform_all
from tiercel.acker.inbox.chunk import Parcel, encode
from tiercel.acker.inbox.contract import Inboxes, Sender
from tiercel.acker.ledger import Ledger
from tiercel.acker.metrics.contract import KnownError, Metrics
from tiercel.spark_jobs.bolts.streams import SYSTEM_TASK, is_system
from tiercel.spark_jobs.errors import SparkJobsError
from tiercel.spark_jobs.running.ticks import tick_for
from tiercel.spark_jobs.state.store import StateStore
from tiercel.spark_jobs.topology.graph import Topology

_NS = 1_000_000_000


class Engine(Protocol):
    """Runs the bolts of one topology; used by one thread, between ``start`` and ``close``.

    It has neither spouts nor time: only a spout decides on timeouts, so both run in the test's
    process.
    """

    @property
    def ledger(self) -> Ledger:
        """Ledger in which the spouts register their tuples. Nothing in it expires by real time."""
        ...

    @property
    def inboxes(self) -> Inboxes:
        """Inboxes of the bolts, in which there is always room."""
        ...

    @property
    def run_id(self) -> str:
        """The run to which the inboxes belong."""
        ...

    @property
    def metrics(self) -> Metrics:
        """Metrics of the spouts."""
        ...

    @property
    def state(self) -> StateStore:
        """Store of the stateful bolts."""
        ...

    @property
    def next_at(self) -> float | None:
        """Simulated time at which bolts go on by themselves, and ``work`` must be called; None:
        never.
        """
        ...

    def start(self) -> None:
        """Become ready. Raises SparkJobsError or AckerError, one line that says what to do."""
        ...

    def work(self) -> None:
        """Run the bolts until every inbox is empty, and the ledger has the outcome of all trees.

        Raises LocalClusterError if the bolts cannot be run.
        """
        ...

    def tracebacks(self) -> Sequence[KnownError]:
        """Return the errors that bolts have raised so far, the newest first."""
        ...

    def close(self) -> None:
        """Clean up the bolts and remove all data. Idempotent, also after ``start`` has failed."""
        ...


class SimulatedClock:
    """Simulated time, which starts at 0 and stands still until it is moved. For one thread."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        """Seconds since the start."""
        return self._now

    def after(self, seconds: float) -> float:
        """Return the time after this number of seconds, rounded to the nanosecond, so that 300
        times 0.1 s are exactly 30 s.
        """
        return round(self._now + seconds, 9)

    def move_to(self, moment: float) -> None:
        """Move the time forward to this moment; never back."""
        self._now = max(self._now, moment)


class Ticks:
    """The ticks of a topology: every ``tick_tuple_freq_secs`` of a bolt, to each of its tasks. In a
    real cluster each task has its own clock.

    All times are seconds on the caller's clock, kept as whole nanoseconds, so that
    ``due(next_at)`` always returns the ticks that ``next_at`` announced.
    """

    def __init__(self, topology: Topology, start_s: float = 0.0) -> None:
        """The first ticks are due one period after ``start_s``. System bolts have none."""
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
        """Time of the next ticks; None if no bolt wants any."""
        return min((beat.next_ns for beat in self._beats), default=0) / _NS if self._beats else None

    def send(self, engine: Engine, now_s: float) -> bool:
        """Append the ticks that are due; return True if there were any."""
        parcels = self.due(now_s)
        if not parcels:
            return False
        self._sent += 1
        sender = Sender(task=SYSTEM_TASK, attempt=1)
        perform_all(engine.inboxes.append(engine.run_id, sender, self._sent, parcels))
        return True

    def due(self, now_s: float) -> list[Parcel]:
        """Return the ticks that are due.

        A late call returns one per task, not one for each period that went by.
        """
        now_ns = round(now_s * _NS)
        parcels: list[Parcel] = []
        for beat in self._beats:
            if beat.next_ns <= now_ns:
                parcels += beat.parcels
                beat.next_ns += ((now_ns - beat.next_ns) // beat.period_ns + 1) * beat.period_ns
        return parcels


@dataclass(kw_only=True, slots=True)
class _Beat:
    """The tasks with one period."""

    period_ns: int
    next_ns: int
    parcels: list[Parcel] = field(default_factory=list)


class LocalClusterError(SparkJobsError):
    """The message says what there is, or what still moves, and what to change in the test."""


def absent(kind: str, name: str, there: Iterable[str]) -> LocalClusterError:
    """Return the error for a spout or a bolt that is not ``there``."""
    return LocalClusterError(f"there is no {kind} {name!r}; the {kind}s are {', '.join(there)}")
