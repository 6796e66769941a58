"""The spout tasks of a cluster: the loop of spout workers, turn by turn, on simulated time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from threading import Event
from typing import Any

from tiercel.acker.ledger import Ledger, OutcomeFeed, Outcomes
from tiercel.acker.metrics.contract import Tally
from tiercel.queues.message.identity import Identified
from tiercel.queues.spout import MsgId, Spout
from tiercel.spark_jobs.topology.graph import Topology, ledger_spec_of
from tiercel.spark_jobs.tracing.process import of_this_process
from tiercel.workers.control.contract import Control
from tiercel.workers.control.presence import Lease
from tiercel.workers.spout.admission import LARGEST_BOUND, Admission
from tiercel.workers.spout.collector import TaskCollector
from tiercel.workers.spout.loop import Orders, Pace, SpoutParts, SpoutSettings, SpoutTask
from tiercel.workers.spout.outbox import Outbox
from tiercel.workers.spout.spans import SpoutSpans
from tiercel.workers.spout.trees import OutcomeTeller
from tiercel.workers.testing.engine import CAPTURE, Engine, SimulatedClock, absent
from tiercel.workers.testing.stand_ins import FeederSpout

_AT_ONCE = timedelta(0)


@dataclass(frozen=True, kw_only=True, slots=True)
class SpoutOutcome:
    """An outcome that a spout was told."""

    msg_id: MsgId
    # None: acked.
    reason: str | None
    # True: a bolt said that the message can never be processed.
    rejected: bool = False
    # Seconds for which a bolt postponed the message; None: it was not postponed.
    later_s: float | None = None
    # False: the failure does not count.
    blame: bool = True

    @property
    def is_failure(self) -> bool:
        return self.reason is not None and self.blame


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The objects that the spout tasks of a cluster share."""

    topology: Topology
    engine: Engine
    clock: SimulatedClock
    # Ascending, and never 0, which stands for no root.
    roots: Iterator[int]
    control: Control
    # Held by a driver with the engine's run.
    lease: Lease


class SpoutTasks:
    """The spout tasks of a topology, in its order, and the outcomes that their spouts were told."""

    def __init__(self, topology: Topology) -> None:
        self._told: dict[str, list[SpoutOutcome]] = {component: [] for component in topology.spouts}
        self._spouts: dict[str, list[Spout]] = {component: [] for component in topology.spouts}
        self._tasks: dict[str, list[SpoutTask]] = {component: [] for component in topology.spouts}
        # In the order in which they are started and closed.
        self._opened: list[SpoutTask] = []

    def open(self, shared: Surroundings, running: ExitStack) -> None:
        """Open the tasks with copies of the spouts; ``running`` closes them."""
        running.callback(_close_all, self._opened)
        for component, spec in shared.topology.spouts.items():
            for task_id in shared.topology.task_ids(component):
                spout = copy.deepcopy(spec.spout)
                if isinstance(spout, FeederSpout):
                    spout.attach(shared.clock)
                task = spout_task(shared, component, task_id, spout, self._told[component])
                self._spouts[component].append(spout)
                self._tasks[component].append(task)
                self._opened.append(task)
        self.obey()

    def turn(self) -> tuple[bool, bool]:
        """Give each task a turn; return whether anything moved and whether anything was sent."""
        turns = [task.turn() for task in self._opened]
        return any(turn.worked or turn.sent for turn in turns), any(turn.sent for turn in turns)

    def obey(self) -> None:
        """Have the tasks obey the orders."""
        for task in self._opened:
            task.obey()

    @property
    def next_at(self) -> float | None:
        """Time of the next timeout or repeated emission; None if there is none."""
        moments = [task.next_timeout for task in self._opened]
        for spouts in self._spouts.values():
            moments += [each.next_at for each in spouts if isinstance(each, FeederSpout)]
        return min((each for each in moments if each is not None), default=None)

    @property
    def left(self) -> int:
        """Number of fed tuples that were not emitted yet."""
        spouts = [each for copies in self._spouts.values() for each in copies]
        return sum(each.left for each in spouts if isinstance(each, FeederSpout))

    @property
    def outcomes(self) -> int:
        """Number of outcomes that ended a message."""
        return sum(one.later_s is None for told in self._told.values() for one in told)

    def in_flight(self, component: str) -> int:
        """Return the number of one spout's trees in flight. Raises as ``told`` does."""
        self.told(component)
        return sum(task.in_flight for task in self._tasks[component])

    def spouts_of(self, component: str) -> Sequence[Spout]:
        """Return the copies of a spout; none before ``open``. Raises as ``told`` does."""
        self.told(component)
        return self._spouts[component]

    def told(self, component: str) -> Sequence[SpoutOutcome]:
        """Return the outcomes that a spout was told, in order.

        Raises LocalClusterError if there is no such spout.
        """
        if component not in self._told:
            raise absent("spout", component, self._told)
        return self._told[component]


def _close_all(tasks: Sequence[SpoutTask]) -> None:
    """Close every opened spout, then raise the first error."""
    errors = []
    for task in tasks:
        try:
            task.close()
        except Exception as error:  # noqa: BLE001 - the others must be closed too
            errors.append(error)
    if errors:
        raise errors[0]


def spout_task(
    shared: Surroundings, component: str, task_id: int, spout: Spout, told: list[SpoutOutcome]
) -> SpoutTask:
    """Make and open one spout task, which appends each outcome of its spout to ``told``."""
    topology = shared.topology
    config = topology.config_of(component)
    parts = _parts(shared, component, task_id, _Witness(spout, told))
    settings = SpoutSettings(
        message_timeout=ledger_spec_of(topology, ()).message_timeout,
        # Fixed: an adaptive bound follows the duration of work, which is 0 here.
        admission=Admission(bound=config.max_spout_pending or LARGEST_BOUND, fixed=True),
        grace=_AT_ONCE,
    )
    task = SpoutTask(parts, settings)
    context = topology.spout_context_of(task_id, wake=task.wake, count=parts.tally.add)
    task.open(config.as_mapping(), context)
    return task


def _parts(shared: Surroundings, component: str, task_id: int, teller: OutcomeTeller) -> SpoutParts:
    topology = shared.topology
    engine = shared.engine
    tally = Tally(engine.metrics, component, task_id, shared.clock)
    roots = _Ascending(shared.roots) if topology.config_of(component).ackers else None
    collector = _WatchedCollector(topology, component, task_id, tally, roots, drawn_at_once=1)
    if (tracing := of_this_process()) is not None:
        teller = spans = SpoutSpans(tracing, teller, component, task_id)
        collector.begin_spans = spans.begin
    return SpoutParts(
        teller=teller,
        collector=collector,
        ledger=engine.ledger,
        outbox=Outbox(
            ledger=engine.ledger,
            inboxes=engine.inboxes,
            lease=shared.lease,
            owner=task_id,
            topology=topology,
        ),
        outcomes=OutcomesInOrder(engine.ledger, task_id),
        orders=Orders(shared.control),
        tally=tally,
        # Time stands still, so a batch that waits for more tuples would never leave.
        pace=Pace(after_refused_s=0.0),
        clock=shared.clock,
    )


class _Witness(OutcomeTeller):
    """Records the outcomes that the spout is told."""

    def __init__(self, spout: Spout, told: list[SpoutOutcome]) -> None:
        super().__init__(spout)
        self._told = told

    def ack(self, msg_ids: Sequence[MsgId]) -> None:
        self._told += [SpoutOutcome(msg_id=msg_id, reason=None) for msg_id in msg_ids]
        super().ack(msg_ids)

    def fail(self, msg_id: MsgId, reason: str) -> None:
        self._told.append(SpoutOutcome(msg_id=msg_id, reason=reason))
        super().fail(msg_id, reason)

    def reject(self, msg_id: MsgId, reason: str) -> None:
        self._told.append(SpoutOutcome(msg_id=msg_id, reason=reason, rejected=True))
        super().reject(msg_id, reason)

    def retry_later(self, msg_id: MsgId, seconds: float, reason: str, *, blame: bool) -> None:
        told = SpoutOutcome(msg_id=msg_id, reason=reason, later_s=seconds, blame=blame)
        self._told.append(told)
        super().retry_later(msg_id, seconds, reason, blame=blame)


class _WatchedCollector(TaskCollector):
    """Hides the capturing bolt from the spout."""

    def __init__(self, topology: Topology, component: str, *args: Any, **settings: Any) -> None:
        super().__init__(topology, component, *args, **settings)
        self._capture = topology.task_ids(CAPTURE)

    def emit(
        self,
        values: Sequence[Any],
        msg_id: MsgId | None = None,
        stream: str = "default",
        identity: Identified | None = None,
    ) -> list[int]:
        tasks = super().emit(values, msg_id, stream, identity)
        return [task for task in tasks if task not in self._capture]


class _Ascending:
    """``RootSource`` with roots in the order of the tuples."""

    def __init__(self, roots: Iterator[int]) -> None:
        self._roots = roots

    def draw(self, count: int) -> list[int]:
        return [next(self._roots) for _ in range(count)]


class OutcomesInOrder:
    """``OutcomeSource`` without a thread: outcomes in the order of emission."""

    def __init__(self, ledger: Ledger, owner: int) -> None:
        self._ledger = ledger
        self._owner = owner
        self._feed: OutcomeFeed | None = None

    def open(self, stopped: Event, wake: Callable[[], None]) -> bool:  # noqa: ARG002 - for sources that wait
        self._feed = self._ledger.feed(self._owner)
        return True

    def take(self) -> list[Outcomes]:
        outcomes = self._feed.read(_AT_ONCE) if self._feed is not None else None
        if not outcomes:
            return []
        # By root: the ledger's own order depends on its shards.
        acked = sorted(outcomes.acked)
        failed = sorted(outcomes.failed, key=lambda failure: failure.root)
        return [replace(outcomes, acked=acked, failed=failed)]

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()
