"""A topology's bolt tasks in threads of this process, on inboxes and a ledger in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from tests.support.case_book import MemoryCaseBook
from tests.support.emitter import SpoutEmitter
from tiercel.acker.ids import RootIds
from tiercel.acker.inbox.contract import Bounds, Sender
from tiercel.acker.inbox.memory import MemoryInboxes
from tiercel.acker.layout import LedgerSpec
from tiercel.acker.ledger import Outcomes
from tiercel.acker.limits import MemoryLimits
from tiercel.acker.memory import MemoryLedger
from tiercel.acker.metrics.memory import MemoryMetrics
from tiercel.spark_jobs.kinds.choice import attempt_at
from tiercel.spark_jobs.process.host import BoltTask
from tiercel.spark_jobs.running.around import Around, ticks_of
from tiercel.spark_jobs.running.attempt import Attempt
from tiercel.spark_jobs.running.counting import Counting
from tiercel.spark_jobs.running.suspicion import Suspicion
from tiercel.spark_jobs.state.memory import MemoryStateStore
from tiercel.spark_jobs.topology.bolt_settings import rates_of
from tiercel.spark_jobs.topology.graph import Topology, inboxes_of

RUN = "run"


class InboxCluster:
    """One spout task of this process feeds the first spout's stream.

    Each bolt task has its own thread.
    """

    def __init__(self, topology: Topology, bounds: Bounds | None = None) -> None:
        self.topology = topology
        spec = LedgerSpec(
            topology=topology.name,
            urls=(),
            shards=1,
            owners=1,
            message_timeout=timedelta(seconds=30),
        )
        self.ledger = MemoryLedger(spec)
        self.inboxes = MemoryInboxes(bounds)
        self.metrics = MemoryMetrics()
        self.feed = self.ledger.feed(1)
        self.bolt_tasks = [task for bolt in topology.bolts for task in topology.task_ids(bolt)]
        self.inboxes.adopt(RUN, inboxes_of(topology))
        self.ledger.begin(RUN)
        self.book = MemoryCaseBook()
        self._frozen: float | None = None
        self.around = Around(
            run=RUN,
            topology=topology,
            inboxes=self.inboxes,
            ledger=self.ledger,
            state=MemoryStateStore(),
            counting=Counting(self.metrics),
            config={},
            key=b"key",
            suspicion=Suspicion(RUN, self.book, self.ledger),
            ticks=ticks_of(topology),
            clock=lambda: self.now,
            limits={bolt: MemoryLimits(rate) for bolt, rate in rates_of(topology).items()},
        )
        self.threads: dict[int, tuple[BoltTask, threading.Thread]] = {}
        self._emitter = SpoutEmitter(topology, next(iter(topology.spouts)), 1)
        self._roots = RootIds(timedelta(seconds=30))
        self._number = 0

    @property
    def now(self) -> float:
        """Return the time in seconds, which is real until ``set_clock``."""
        return time.monotonic() if self._frozen is None else self._frozen

    def set_clock(self, now: float) -> None:
        """Stop the clock at ``now``."""
        self._frozen = now

    def start(self, *tasks: int) -> None:
        """Start bolt tasks, all of them by default."""
        for task in tasks or self.bolt_tasks:
            bolt_task = BoltTask(self.around, task)
            thread = threading.Thread(target=bolt_task.run, daemon=True)
            self.threads[task] = bolt_task, thread
            thread.start()

    def stop(self) -> None:
        for bolt_task, _ in self.threads.values():
            bolt_task.stop()
        for _, thread in self.threads.values():
            thread.join(10)

    def attempt(self, task: int) -> Attempt:
        """Return a new attempt at a task, in this thread; it has repeated the sealed step."""
        attempt = attempt_at(self.around, task, threading.Event())
        attempt.recover()
        return attempt

    def work(self, attempts: dict[int, Attempt]) -> None:
        """Let these attempts work, turn by turn, until none has anything left."""
        while any([attempt.turn() for attempt in attempts.values()]):  # noqa: C419 - all of them, each time
            continue

    def emit(self, rows: Sequence[Sequence[Any]], stream: str = "default") -> list[int]:
        """Emit tracked tuples; return their roots."""
        roots = self._roots.draw(len(rows))
        for values, root in zip(rows, roots, strict=True):
            self._emitter.emit(list(values), root, stream)
        emission = self._emitter.take()
        assert not self.ledger.register(1, emission.roots, emission.ack_vals)
        self._number += 1
        for effect in self.inboxes.append(
            RUN, Sender(task=1, attempt=1), self._number, emission.parcels
        ):
            assert effect.perform().value == "done"
        return roots

    def outcomes(self, seconds: float = 0.0) -> Outcomes:
        return self.feed.read(timedelta(seconds=seconds))


@contextmanager
def at_work(topology: Topology) -> Iterator[InboxCluster]:
    """Run all bolt tasks within the block."""
    cluster = InboxCluster(topology)
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()
