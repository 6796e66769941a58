"""A whole topology in one thread, on simulated time."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, Self

from acker import MemoryLedger, MemoryMetrics, Token
from queues import Entry, MsgId, Spout
from spark_jobs.bolt import DEFAULT_STREAM
from spark_jobs.config import Config
from spark_jobs.job import ledger_spec_of
from spark_jobs.levels import plan_topology
from spark_jobs.runner import LevelRunner
from spark_jobs.state import MemoryStateStore
from spark_jobs.state.encoding import Key, decode_key, decode_value
from spark_jobs.stateful_bolt import StatefulBolt
from spark_jobs.testing.capture import Seen, watched
from spark_jobs.testing.clock import SimulatedClock, to_ns
from spark_jobs.testing.errors import LocalClusterError
from spark_jobs.testing.spouts import Settled, SpoutTask, Surroundings
from spark_jobs.topology import Topology

_ROUNDS = 1_000
_RUN = "local-cluster"


class LocalCluster:
    """Runs a topology on the ledger in memory, for tests: ``with LocalCluster(topology) as cluster: …``.

    Components, groupings, lanes, trees and timeouts are those of the real thing; there is no broker, no Redis and no JVM.
    Time stands still but in ``advance_time``, nothing sleeps, and the same test gives the same run. One thread only: a
    spout's own threads are not waited for. Entering opens the spouts; leaving closes them, even after an error.

    Order: outcomes of one micro-batch come in the order in which the tuples were emitted, and a stream's tuples in the order of
    its tasks. A real cluster promises neither.
    """

    def __init__(
        self, topology: Topology, config: Config | None = None, *, engine: Literal["memory"] = "memory", max_lanes: int = 2
    ) -> None:
        """``config`` takes the place of the topology's; ``max_lanes`` is the number of cores of the real cluster.

        Raises LocalClusterError for an engine that there is not, TopologyError for a topology without a bolt.
        """
        if engine != "memory":
            raise LocalClusterError(f'there is no engine {engine!r} yet: use engine="memory", the default')
        plan_topology(topology, max_lanes)
        self._topology = topology if config is None else replace(topology, config=config)
        self._plan = plan = plan_topology(watched(self._topology), max_lanes)
        self._clock = SimulatedClock()
        self._metrics = MemoryMetrics()
        self._ledger = MemoryLedger(ledger_spec_of(plan, ()), self._clock)
        self._seen = Seen(plan)
        self._state = MemoryStateStore()
        settings = plan.topology.config.as_mapping()
        self._runners = {
            # A runner a lane: two lanes of a level may run in two processes.
            (level, lane): LevelRunner(
                plan=plan, level=level, ledger=self._ledger, metrics=self._metrics, config=settings, state=self._state
            )
            for level in range(1, plan.levels + 1)
            for lane in range(plan.lanes(level))
        }
        self._batch = 0
        self._settled: dict[str, list[Settled]] = {component: [] for component in topology.spouts}
        shared = Surroundings(
            plan=plan, ledger=self._ledger, metrics=self._metrics, clock=self._clock, roots=itertools.count(1)
        )
        self._spouts = {
            component: [
                SpoutTask(shared, component, index, copy.deepcopy(spec.spout), self._settled[component])
                for index in range(spec.parallelism)
            ]
            for component, spec in topology.spouts.items()
        }
        self._open: list[SpoutTask] | None = None

    def __enter__(self) -> Self:
        if self._open is not None:
            raise LocalClusterError("this cluster was used before: make a new one for each test")
        self._open = []
        try:
            for task in self._tasks():
                task.open()
                self._open.append(task)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._close()

    # -- running -----------------------------------------------------------------------------------------------------------

    def settle(self, max_rounds: int = _ROUNDS) -> None:
        """Run micro-batches until nothing moves: no spout has anything to emit or hear, though trees may be pending.

        Raises LocalClusterError if something still moves after ``max_rounds``, and what a spout raises.
        """
        for _ in range(max_rounds):
            if not self.step():
                return
        raise LocalClusterError(
            f"the topology still moves after {max_rounds} micro-batches: a spout that never runs dry, or one that replays what"
            " always fails; use step() to run one micro-batch at a time"
        )

    def step(self) -> bool:
        """Run at most one micro-batch; returns whether anything moved. For spouts that never run dry."""
        self._require_open()
        heard = [task.hear() for task in self._tasks()]
        emitted = [task.fill() for task in self._tasks()]
        entries = [entry for task in self._tasks() for entry in task.send()]
        if entries:
            self._run(entries)
        return any(heard) or any(emitted)

    def advance_time(self, seconds: float) -> None:
        """Let time pass, as if the cluster ran all the while: each message timeout fires at its moment, and what a spout
        replays then begins a timeout of its own there.

        Settles first and last; raises as ``settle`` does, and ValueError for a time that is not a positive number or 0.
        """
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"time goes on by a number of seconds, not {seconds!r}")
        self.settle()
        end = self._clock.now_ns + to_ns(seconds)
        while (deadline := self._next_deadline()) is not None and deadline <= end:
            self._clock.now_ns = deadline
            self.settle()
        self._clock.now_ns = end
        self.settle()

    # -- looking -----------------------------------------------------------------------------------------------------------

    def acked(self, component: str) -> list[MsgId]:
        """The message ids that this spout was told are fully processed, in order."""
        return [one.msg_id for one in self._settled_of(component) if one.reason is None]

    def failed(self, component: str) -> list[MsgId]:
        """The message ids that this spout was told failed or timed out, in order; one that it replays may stand here often."""
        return [one.msg_id for one in self._settled_of(component) if one.reason is not None]

    def fail_reasons(self, component: str) -> list[str]:
        """Why, for each of ``failed``: ``bolt[task]: ValueError: …``, or ``timeout``."""
        return [one.reason for one in self._settled_of(component) if one.reason is not None]

    def pending(self, component: str) -> int:
        """Trees of this spout's tuples in flight."""
        self._settled_of(component)
        return sum(task.pending for task in self._spouts[component])

    def read_tuples(self, component: str, stream: str = DEFAULT_STREAM) -> list[list[Any]]:
        """What a component has emitted on a stream so far, each tuple once however many tasks received it.

        The values are those that a receiver sees, typed by the stream's fields. Raises LocalClusterError for a component or
        a stream that there is not.
        """
        components = (*self._topology.spouts, *self._topology.bolts)
        if component not in components:
            raise LocalClusterError(f"there is no component {component!r}; there are {', '.join(components)}")
        streams = self._topology.spec(component).streams
        if stream not in streams:
            known = ", ".join(streams) or "none"
            raise LocalClusterError(f"{component!r} has no stream {stream!r}; its streams are {known}")
        return self._seen.of(component, stream)

    def state(self, component: str) -> dict[Key, Any]:
        """The state of a ``StatefulBolt``: what its tasks have put there. Raises LocalClusterError if there is no such bolt."""
        spec = self._topology.bolts.get(component)
        if spec is None or not isinstance(spec.bolt, StatefulBolt):
            raise LocalClusterError(f"there is no stateful bolt {component!r}")
        return {decode_key(field): decode_value(raw) for field, raw in self._state.entries(component)}

    def spout(self, component: str, task_index: int = 0) -> Spout:
        """The spout object that runs: a copy of the one in the topology, but for a ``FeederSpout``."""
        self._settled_of(component)
        return self._spouts[component][task_index].spout

    # -- the inside --------------------------------------------------------------------------------------------------------

    def _run(self, entries: Sequence[Entry]) -> None:
        """One micro-batch, level by level, lane by lane."""
        plan = self._plan
        lanes: dict[int, list[bytes]] = {}
        for entry in entries:
            lanes.setdefault(entry.lane % plan.lanes(1), []).append(entry.payload)
        for level in range(1, plan.levels + 1):
            following: dict[int, list[bytes]] = {}
            for lane, payloads in sorted(lanes.items()):
                for payload in payloads:
                    self._seen.look(level, payload)
                token = Token(run=_RUN, batch=self._batch, level=level, partition=lane)
                rows = self._runners[level, lane].run(token, payloads)
                for target, payload in rows:
                    following.setdefault(target, []).append(payload)
            lanes = following
        self._batch += 1

    def _tasks(self) -> list[SpoutTask]:
        return [task for tasks in self._spouts.values() for task in tasks]

    def _next_deadline(self) -> int | None:
        return min((task.deadline_ns for task in self._tasks() if task.deadline_ns is not None), default=None)

    def _settled_of(self, component: str) -> list[Settled]:
        if component not in self._settled:
            raise LocalClusterError(f"there is no spout {component!r}; the spouts are {', '.join(self._settled)}")
        return self._settled[component]

    def _require_open(self) -> None:
        if not self._open:
            raise LocalClusterError("the cluster does not run: use it as `with LocalCluster(topology) as cluster:`")

    def _close(self) -> None:
        """Close every spout that was opened, and then raise what the first one raised."""
        opened, self._open = self._open or [], []
        errors = []
        for task in opened:
            try:
                task.close()
            except Exception as error:  # noqa: BLE001 - the others must be closed too
                errors.append(error)
        if errors:
            raise errors[0]
