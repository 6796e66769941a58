"""Runs a topology in plain Python: spout emitter, every level's runner, memory ledger. What Spark does, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from acker import LedgerSpec, MemoryLedger, MemoryMetrics, Outcomes, RootIds, Token
from queues.spout import Spout
from spark_jobs.emission import SpoutEmitter
from spark_jobs.levels import plan_topology, share_number
from spark_jobs.runner import LevelRunner
from spark_jobs.snapshots.memory import MemorySnapshots
from spark_jobs.state import MemoryStateStore, StateStore
from spark_jobs.suspects.memory import MemoryCaseBook
from spark_jobs.suspects.watchdog import Watchdog
from spark_jobs.topology import Topology

Row = tuple[int, bytes]


class Source(Spout):
    """A spout of which only the fields matter."""

    def __init__(self, fields: str = "word string") -> None:
        self.output_fields = fields


class Pump:
    """``feed`` tuples, ``run`` micro-batches until nothing moves, look at ``outcomes``."""

    def __init__(
        self,
        topology: Topology,
        *,
        max_lanes: int = 2,
        ledger: bool = True,
        spout: str | None = None,
        state: StateStore | None = None,
    ) -> None:
        self.topology = topology
        self.plan = plan_topology(topology, max_lanes)
        spec = LedgerSpec(
            topology=topology.name, urls=(), shards=1, owners=topology.spout_tasks, message_timeout=timedelta(seconds=30)
        )
        self.ledger = MemoryLedger(spec)
        self.metrics = MemoryMetrics()
        self.snapshots = MemorySnapshots()
        self.state = state or MemoryStateStore()
        self.book = MemoryCaseBook()
        self.feeds = [self.ledger.feed(owner) for owner in range(1, topology.spout_tasks + 1)]
        self.acked: list[int] = []
        self.failed: dict[int, str] = {}
        self.reset: list[int] = []
        self._roots = RootIds(timedelta(seconds=60))
        self._ledger = self.ledger if ledger else None
        self.emitters = {
            component: [SpoutEmitter(self.plan, component, task) for task in topology.task_ids(component)]
            for component in topology.spouts
        }
        self.spout = spout or next(iter(topology.spouts))
        self.runners = [self.runner(level) for level in range(1, self.plan.levels + 1)]
        self.batch = 0

    def runner(self, level: int, watchdog: Watchdog | None = None) -> LevelRunner:
        """As a process that has not run anything yet has one."""
        return LevelRunner(
            plan=self.plan,
            level=level,
            ledger=self._ledger,
            metrics=self.metrics,
            config={"redis_url": "none"},
            snapshots=self.snapshots,
            key=b"key",
            state=self.state,
            book=self.book,
            watchdog=watchdog,
        )

    def feed(self, *rows: Sequence[Any], spout: str | None = None, tracked: bool = True, stream: str = "default") -> list[int]:
        """Emit and register these tuples; returns their roots."""
        roots = self._roots.draw(len(rows))
        emitter = self.emitters[spout or self.spout][0]
        for root, values in zip(roots, rows, strict=True):
            emitter.emit(values, root if tracked else None, stream)
        return roots

    def take(self) -> list[Row]:
        """Register what was emitted, and return its chunks with the lanes of level 1."""
        rows: list[Row] = []
        for emitters in self.emitters.values():
            for emitter in emitters:
                emission = emitter.take()
                assert self.ledger.register(emitter.task_id, emission.roots, emission.ack_vals) == []
                rows += [(entry.lane % self.plan.lanes(1), entry.payload) for entry in emission.entries]
        return rows

    def token(self, level: int, lane: int) -> Token:
        return Token(run="run", task=share_number(level, lane), step=self.batch)

    def level(self, level: int, rows: list[Row], shuffled: Callable[[list[bytes]], list[bytes]] = list) -> list[Row]:
        """One stage of a micro-batch: each lane a task."""
        out: list[Row] = []
        for lane in range(self.plan.lanes(level)):
            payloads = [payload for at, payload in rows if at == lane]
            if payloads:
                out += self.runners[level - 1].run(self.token(level, lane), shuffled(payloads))
        return out

    def run(self) -> None:
        """One micro-batch with everything that was fed, through all levels."""
        rows = self.take()
        for level in range(1, self.plan.levels + 1):
            rows = self.level(level, rows)
        assert rows == []
        self.batch += 1
        self.read()

    def read(self) -> None:
        """Read the outcomes that there are; each root has one."""
        for feed in self.feeds:
            outcomes: Outcomes = feed.read(timedelta(0))
            self.acked += outcomes.acked
            self.failed |= {failure.root: f"{failure.component}: {failure.reason}" for failure in outcomes.failed}
            self.reset += outcomes.reset
        assert len(set(self.acked)) == len(self.acked)
        assert not set(self.acked) & self.failed.keys()
