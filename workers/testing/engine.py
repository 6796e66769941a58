"""The parts that both engines of a ``LocalCluster`` share: their contract, simulated time, ticks,
and the capture of emitted tuples.

As in Storm's own kit, an additional bolt captures tuples: it subscribes to every stream. It
receives only tuples that really left a task, and none that a ``BasicBolt`` emitted for a tuple that
failed. A direct stream names its receivers itself, so ``Copier`` adds an untracked copy of
its chunks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

import numpy as np

from tiercel.acker.effects import Effect, perform_all
from tiercel.acker.inbox.chunk import Appended, Chunk, Lineage, Parcel, decode, encode
from tiercel.acker.inbox.contract import Inboxes, Sender
from tiercel.acker.ledger import Ledger
from tiercel.acker.metrics.contract import KnownError, Metrics
from tiercel.spark_jobs.bolts.bolt import BasicBolt
from tiercel.spark_jobs.bolts.collecting import BasicCollector, TopologyContext
from tiercel.spark_jobs.bolts.streams import SYSTEM_TASK, is_system
from tiercel.spark_jobs.bolts.tuples import Tuple
from tiercel.spark_jobs.errors import SparkJobsError
from tiercel.spark_jobs.running.backlog import tick_for
from tiercel.spark_jobs.state.store import StateStore
from tiercel.spark_jobs.topology.graph import BoltSpec, Subscription, Topology
from tiercel.spark_jobs.topology.grouping import Global

CAPTURE = "__capture"
_NS = 1_000_000_000


class Engine(Protocol):
    """Runs the bolts of one topology; used by one thread, between ``start`` and ``close``.

    Spouts and time are not part of it: spouts alone decide on timeouts, so both are in the test's
    process.
    """

    @property
    def ledger(self) -> Ledger:
        """The ledger in which spouts register tuples. Nothing in it expires by real time."""

    @property
    def inboxes(self) -> Inboxes:
        """The inboxes of the bolts, which are never full."""

    @property
    def run_id(self) -> str:
        """The run that owns the inboxes."""

    @property
    def metrics(self) -> Metrics:
        """The metrics of the spouts."""

    @property
    def state(self) -> StateStore:
        """The store of the stateful bolts."""

    @property
    def next_at(self) -> float | None:
        """Simulated time at which ``work`` must be called, because bolts go on; None: never."""

    def start(self) -> None:
        """Start the engine. Raises SparkJobsError or AckerError, whose line says what to do."""

    def work(self) -> bool:
        """Run the bolts until every inbox is empty and the ledger has all outcomes; return True if
        they had anything to do.

        Raises LocalClusterError if the bolts cannot be run.
        """

    def tracebacks(self) -> Sequence[KnownError]:
        """Return the errors that bolts have raised so far, newest first."""

    def close(self) -> None:
        """Clean up the bolts and remove all data. Idempotent, also after a failed ``start``."""


class SimulatedClock:
    """Simulated time, which starts at 0 and stands still until it is moved. For one thread."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        """Seconds since the start."""
        return self._now

    def after(self, seconds: float) -> float:
        """Return the time in ``seconds``, rounded to the nanosecond: 300 times 0.1 s is 30 s."""
        return round(self._now + seconds, 9)

    def move_to(self, moment: float) -> None:
        """Move the time forward to ``moment``; never back."""
        self._now = max(self._now, moment)


@dataclass(frozen=True, slots=True)
class SimulatedDate:
    """Simulated time as a date and time."""

    clock: SimulatedClock
    start: datetime

    def __call__(self) -> datetime:
        return self.start + timedelta(seconds=self.clock())


class Ticks:
    """The ticks of a topology: to each task of a bolt every ``tick_tuple_freq_secs``.

    In a real cluster each task has its own clock. Times are seconds on the caller's clock, kept as
    whole nanoseconds, so that ``due(next_at)`` always returns the ticks announced by ``next_at``.
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
        # Number of appends so far.
        self._sent = 0

    @property
    def next_at(self) -> float | None:
        """Time of the next ticks; None if no bolt wants any."""
        return min((beat.next_ns for beat in self._beats), default=0) / _NS if self._beats else None

    def send(self, engine: Engine, now_s: float) -> bool:
        """Append the ticks that are due; return True if any were."""
        parcels = self.due(now_s)
        if not parcels:
            return False
        self._sent += 1
        sender = Sender(task=SYSTEM_TASK, attempt=1)
        perform_all(engine.inboxes.append(engine.run_id, sender, self._sent, parcels))
        return True

    def due(self, now_s: float) -> list[Parcel]:
        """Return the ticks that are due.

        A late call returns one tick per task, not one per elapsed period.
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
    """The ticks of all tasks with the same period."""

    period_ns: int
    next_ns: int
    parcels: list[Parcel] = field(default_factory=list)


class LocalClusterError(SparkJobsError):
    """The kit is misused, or the topology does not end; the message says what to change."""


def absent(kind: str, name: str, there: Iterable[str]) -> LocalClusterError:
    """Return the error for a spout or bolt that is not among ``there``."""
    return LocalClusterError(f"there is no {kind} {name!r}; the {kind}s are {', '.join(there)}")


class Seen:
    """The captured tuples of each stream."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], list[list[Any]]] = defaultdict(list)

    def add(self, tup: Tuple) -> None:
        """Add a tuple."""
        self._values[tup.source_component, tup.source_stream].append(list(tup.values))

    def of(self, component: str, stream: str) -> list[list[Any]]:
        """Return copies of a stream's tuples, which a test may change."""
        return [list(values) for values in self._values[component, stream]]


class _Capture(BasicBolt):
    """Runs in the test's process, and adds its tuples to ``Seen``."""

    transient = frozenset({"_seen"})

    def __init__(self, seen: Seen | None = None) -> None:
        self._seen = seen

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:  # noqa: ARG002 - it emits nothing
        if self._seen is not None:
            self._seen.add(tup)

    def __deepcopy__(self, memo: object) -> _Capture:
        return self

    def __reduce__(self) -> tuple[Callable[..., _Capture], tuple[()]]:
        # It is sent to Spark with the topology, but never runs there.
        return _Capture, ()


@dataclass(frozen=True, kw_only=True)
class _Watched(Topology):
    """The user's topology with the capturing bolt, which is hidden from components."""

    # The name that components see, even if an engine renames the topology.
    shown_name: str
    # The time that components see; None: real time.
    clock: Callable[[], datetime] | None = field(default=None, compare=False)

    def context_of(self, task_id: int) -> TopologyContext:
        context = super().context_of(task_id)
        targets = {
            stream: [bolt for bolt in bolts if bolt != CAPTURE]
            for stream, bolts in context.targets.items()
        }
        tasks = {bolt: ids for bolt, ids in context.tasks.items() if bolt != CAPTURE}
        hidden = replace(context, topology=self.shown_name, targets=targets, tasks=tasks)
        return hidden if self.clock is None else replace(hidden, _clock=self.clock)


def watched(
    topology: Topology, seen: Seen, clock: Callable[[], datetime] | None = None
) -> Topology:
    """Return the topology with the capturing bolt; task ids do not change.

    ``clock`` is the time that components see; None: real time.
    """
    subscriptions = tuple(
        Subscription(component=component, stream=stream, grouping=Global())
        for component in (*topology.spouts, *topology.bolts)
        for stream in topology.spec(component).streams
        if stream not in topology.spec(component).direct
    )
    capture = BoltSpec(
        bolt=_Capture(seen), parallelism=1, overrides={}, streams={}, subscriptions=subscriptions
    )
    return _Watched(
        name=topology.name,
        shown_name=topology.name,
        clock=clock,
        config=topology.config,
        spouts=topology.spouts,
        bolts={**topology.bolts, CAPTURE: capture},
    )


def _copier(sender: Sender, target: int) -> Sender:
    """Return the sender of copies for one target: a parcel that found no room is resent alone."""
    return replace(sender, task=sender.task << 32 | target)


@dataclass(frozen=True, slots=True)
class _WithCopy:
    """Appends a parcel after its copy."""

    copy: Effect[Appended]
    effect: Effect[Appended]

    def perform(self) -> Appended:
        self.copy.perform()
        return self.effect.perform()


Append = Callable[[str, Sender, int, Sequence[Parcel]], list[Effect[Appended]]]
Fence = Callable[[str, Sender, Sequence[int]], None]


class Copier:
    """Has inboxes append copies of direct streams' chunks for the capturing bolt."""

    def __init__(self, append: Append, fence: Fence, topology: Topology, *, bounded: bool) -> None:
        """``append`` and ``fence`` are the calls of the inboxes themselves.

        ``bounded`` is False for a thread that cannot wait for room because it makes the room.
        """
        self._append = append
        self._fence = fence
        self._topology = topology
        self._bounded = bounded
        self._capture = topology.task_ids(CAPTURE)[0]

    def append(
        self, run: str, sender: Sender, number: int, parcels: Sequence[Parcel]
    ) -> list[Effect[Appended]]:
        """Append as the inboxes do, each parcel after its copy."""
        if not self._bounded:
            parcels = [replace(parcel, bounded=False) for parcel in parcels]
        effects = self._append(run, sender, number, parcels)
        return [
            _WithCopy(self._copying(run, sender, number, copied), effect)
            if (copied := self._copied(parcel))
            else effect
            for parcel, effect in zip(parcels, effects, strict=True)
        ]

    def fence(self, run: str, sender: Sender, targets: Sequence[int]) -> None:
        """Fence the sender off, and the senders of its copies."""
        self._fence(run, sender, [*targets, self._capture])
        if self._topology.spec(self._topology.component_of(sender.task)).direct:
            for target in targets:
                self._fence(run, _copier(sender, target), [self._capture])

    def _copying(self, run: str, sender: Sender, number: int, copied: Parcel) -> Effect[Appended]:
        parcel = replace(copied, target=self._capture)
        [effect] = self._append(run, _copier(sender, copied.target), number, [parcel])
        return effect

    def _copied(self, parcel: Parcel) -> Parcel | None:
        copies = [copy for chunk in parcel.chunks for copy in self._copies(chunk)]
        if not copies:
            return None
        chunks = [chunk for chunk, _ in copies]
        counts = [count for _, count in copies]
        return Parcel(
            target=parcel.target, chunks=chunks, tuples=counts, bounded=False, part=parcel.part
        )

    def _copies(self, payload: bytes) -> list[tuple[bytes, int]]:
        chunk = decode(payload)
        route = chunk.route
        count = chunk.values.num_rows
        if (
            is_system(route.component)
            or route.stream not in self._topology.spec(route.component).direct
        ):
            return []
        none = np.empty(0, np.uint64)
        untracked = Lineage(offsets=np.zeros(count + 1, np.int32), roots=none, edges=none)
        route = replace(route, target_task=self._capture)
        return [(encode(Chunk(route=route, values=chunk.values, lineage=untracked)), count)]


class CopyingInboxes:
    """Goes before ``Inboxes`` among the bases of a class, which sets the copier."""

    copier: Copier

    def append(
        self, run: str, sender: Sender, number: int, parcels: Sequence[Parcel]
    ) -> list[Effect[Appended]]:
        return self.copier.append(run, sender, number, parcels)

    def fence(self, run: str, sender: Sender, targets: Sequence[int]) -> None:
        self.copier.fence(run, sender, targets)
