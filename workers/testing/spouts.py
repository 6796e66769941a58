"""One spout task on simulated time: what a spout worker does, without its threads
and its patience.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import repeat
from typing import Any

from tiercel.acker.ledger import Ledger, Outcomes
from tiercel.acker.metrics.contract import ErrorReport, Metrics
from tiercel.queues.inbox.records import Parcel
from tiercel.queues.spout import MsgId, Spout, takes_reason
from tiercel.spark_jobs.emitting.emission import SpoutEmitter
from tiercel.spark_jobs.reasons import reason_of
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.workers.testing.capture import CAPTURE
from tiercel.workers.testing.clock import SimulatedClock, simulated_datetime, to_ns

# At most so many from one spout task in one round.
_BATCH_TUPLES = 1_000
_NOW = timedelta(0)


@dataclass(frozen=True, kw_only=True, slots=True)
class SpoutOutcome:
    """Outcome of one tracked tuple."""

    msg_id: MsgId
    # None: acked.
    reason: str | None


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Everything that the spout tasks of a cluster share."""

    topology: Topology
    ledger: Ledger
    metrics: Metrics
    clock: SimulatedClock
    # Ascending, and never 0, which stands for no root.
    roots: Iterator[int]


class KitSpoutTask:
    """Emits, tracks, and tells its spout; also the collector that the spout emits with.

    One thread only.
    """

    def __init__(
        self,
        shared: Surroundings,
        component: str,
        task_index: int,
        spout: Spout,
        outcomes: list[SpoutOutcome],
    ) -> None:
        """``outcomes`` is appended to in the order in which spouts are told."""
        topology = shared.topology
        config = topology.config_of(component)
        self.component = component
        self.spout = spout
        self._outcomes = outcomes
        self._shared = shared
        self._task_id = topology.task_ids(component)[task_index]
        self._tracked = config.ackers > 0
        self._bound = config.max_spout_pending
        timed = topology.config.enable_message_timeouts
        self._timeout_ns = to_ns(topology.config.message_timeout_secs) if timed else None
        self._emitter = SpoutEmitter(shared.topology, component, self._task_id)
        self._capture = topology.task_ids(CAPTURE)[0]
        self._feed = shared.ledger.feed(self._task_id)
        self._emitted: list[tuple[int | None, MsgId | None]] = []
        # Root to message id and deadline; in the order of the deadlines, because the timeout is
        # the same for all.
        self._pending: dict[int, tuple[MsgId, int]] = {}
        self._takes_reason = takes_reason(spout)
        self._active = False

    def open(self) -> None:
        """``open`` and ``activate`` of the spout."""
        topology = self._shared.topology
        context = topology.spout_context_of(
            self._task_id,
            wake=lambda: None,
            count=lambda name, count: self._shared.metrics.add(
                self.component, self._task_id, {name: count}
            ),
        )
        self.spout.open(topology.config_of(self.component).as_mapping(), context)
        self.activate()

    def activate(self) -> None:
        """Ask the spout for tuples from now on. Idempotent."""
        if not self._active:
            self._active = True
            self.spout.activate()

    def deactivate(self) -> None:
        """Do not ask it any more; it still hears of its tuples. Idempotent."""
        if self._active:
            self._active = False
            self.spout.deactivate()

    def close(self) -> None:
        """``deactivate``, ``release`` of what is in flight, ``close`` with a grace of 0."""
        self.deactivate()
        self._feed.close()
        in_flight = [msg_id for msg_id, _ in self._pending.values()]
        self._shared.ledger.forget(list(self._pending))
        self._pending.clear()
        for msg_id in in_flight:
            self.spout.release(msg_id)
        self.spout.close(_NOW)

    @property
    def task_id(self) -> int:
        """Its id in the topology."""
        return self._task_id

    @property
    def pending(self) -> int:
        """Trees in flight."""
        return len(self._pending)

    @property
    def deadline_ns(self) -> int | None:
        """Time at which the next tuple times out; None if none will."""
        return (
            next((deadline for _, deadline in self._pending.values()), None)
            if self._timeout_ns is not None
            else None
        )

    # -- what the spout emits with -----------------------------------------------------------------

    def emit(
        self, values: Sequence[Any], msg_id: MsgId | None = None, stream: str = "default"
    ) -> list[int]:
        """``SpoutCollector.emit``."""
        root = self._root(msg_id)
        tasks = self._emitter.emit(values, root, stream)
        self._emitted.append((root, msg_id))
        return [task for task in tasks if task != self._capture]

    def emit_all(
        self, rows: Sequence[Sequence[Any]], msg_ids: Sequence[MsgId], stream: str = "default"
    ) -> None:
        """``SpoutCollector.emit_all``."""
        roots = [next(self._shared.roots) for _ in rows] if self._tracked else None
        self._emitter.emit_all(rows, roots, stream)
        self._emitted += zip(roots or repeat(None), msg_ids, strict=False)

    def emit_direct(
        self, task: int, values: Sequence[Any], msg_id: MsgId | None = None, stream: str = "default"
    ) -> None:
        """``SpoutCollector.emit_direct``."""
        root = self._root(msg_id)
        self._emitter.emit_direct(task, values, root, stream)
        self._emitted.append((root, msg_id))

    def report_error(self, error: BaseException | str) -> None:
        """``SpoutCollector.report_error``."""
        message = reason_of(error)
        now = simulated_datetime(self._shared.clock.now_ns)
        self._shared.metrics.report(
            [ErrorReport(at=now, component=self.component, task=self._task_id, message=message)]
        )

    def _root(self, msg_id: MsgId | None) -> int | None:
        return next(self._shared.roots) if msg_id is not None and self._tracked else None

    # -- one round ---------------------------------------------------------------------------------

    def hear(self) -> bool:
        """Tell the spout what was decided and what timed out.

        Returns whether there was anything.
        """
        outcomes = self._feed.read(_NOW)
        self._take_outcomes(outcomes)
        return self._expire() or bool(outcomes)

    def fill(self) -> bool:
        """Ask the spout for tuples until it has none or its bound is reached; returns
        whether it emitted.
        """
        while (
            self._active
            and len(self._emitted) < _BATCH_TUPLES
            and (self._bound is None or self._in_flight() < self._bound)
        ):
            before = len(self._emitted)
            self.spout.next_tuple(self)
            if len(self._emitted) == before:
                break
        return bool(self._emitted)

    def send(self) -> list[Parcel]:
        """Register the roots of what was emitted; returns its parcels. The timeouts begin now."""
        emission = self._emitter.take()
        emitted = self._emitted
        self._emitted = []
        self._shared.ledger.register(self._task_id, emission.roots, emission.ack_vals)
        for root, msg_id in emitted:
            if root is not None:
                self._pending[root] = (msg_id, self._shared.clock.now_ns + (self._timeout_ns or 0))
            elif msg_id is not None:
                self._tell(msg_id, None)
        return emission.parcels

    def _in_flight(self) -> int:
        return len(self._pending) + sum(root is not None for root, _ in self._emitted)

    def _take_outcomes(self, outcomes: Outcomes) -> None:
        for root in outcomes.reset:
            if root in self._pending:
                msg_id, _ = self._pending.pop(root)
                self._pending[root] = (msg_id, self._shared.clock.now_ns + (self._timeout_ns or 0))
        # By root, which is the order of emission; the ledger's own order depends on its shards.
        for root in sorted(outcomes.acked):
            self._finish(root, None)
        for failure in sorted(outcomes.failed, key=lambda failure: failure.root):
            self._finish(failure.root, f"{failure.component}[{failure.task}]: {failure.reason}")

    def _expire(self) -> bool:
        if self._timeout_ns is None:
            return False
        now = self._shared.clock.now_ns
        expired = [root for root, (_, deadline) in self._pending.items() if deadline <= now]
        self._shared.ledger.forget(expired)
        for root in expired:
            self._finish(root, "timeout")
        return bool(expired)

    def _finish(self, root: int, reason: str | None) -> None:
        found = self._pending.pop(root, None)
        if found is not None:
            self._tell(found[0], reason)

    def _tell(self, msg_id: MsgId, reason: str | None) -> None:
        self._outcomes.append(SpoutOutcome(msg_id=msg_id, reason=reason))
        if reason is None:
            self.spout.ack(msg_id)
        elif self._takes_reason:
            self.spout.fail(msg_id, reason)
        else:
            self.spout.fail(msg_id)
