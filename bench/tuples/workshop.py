"""The bolt tasks of a topology, run in one thread without Spark and Redis."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import cast

from tiercel.acker.effects import Effect, LocalEffect, perform_all
from tiercel.acker.ids import RootIds
from tiercel.acker.inbox.contract import Bounds, Sender
from tiercel.acker.inbox.memory import MemoryInboxes
from tiercel.acker.ledger import Applied, Failure, Ledger, Reply, Token, Updates
from tiercel.acker.metrics.contract import Tally
from tiercel.acker.metrics.memory import MemoryMetrics
from tiercel.spark_jobs.kinds.choice import attempt_at
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.counting import Counting
from tiercel.spark_jobs.running.suspicion import Suspicion
from tiercel.spark_jobs.topology.graph import Topology, inboxes_of
from tiercel.workers.spout.collector import TaskCollector

# Number of sentences that a spout worker emits at once if enough are waiting.
_EMITTED = 1_000
_RUN = "run"
_UNBOUNDED = Bounds(tuples=10**9, bytes=10**12)


class Nothing:
    """A ledger that takes no time."""

    def fence(self, run: str, task: int, attempt: int) -> bool:  # noqa: ARG002
        return True

    def applying(
        self,
        token: Token,  # noqa: ARG002
        updates: Updates,  # noqa: ARG002
        failures: Sequence[Failure] = (),  # noqa: ARG002
    ) -> list[Effect[Reply]]:
        return [LocalEffect(lambda: Reply(applied=Applied.FRESH))]


class Workshop:
    """The bolt tasks of one topology on inboxes in memory, in this thread."""

    def __init__(self, topology: Topology) -> None:
        self._inboxes = MemoryInboxes(_UNBOUNDED)
        self._inboxes.adopt(_RUN, inboxes_of(topology))
        around = Around(
            run=_RUN,
            topology=topology,
            inboxes=self._inboxes,
            ledger=cast("Ledger", Nothing()),
            state=None,
            counting=Counting(MemoryMetrics()),
            config={},
            key=b"key",
            suspicion=Suspicion(_RUN, None, None),
        )
        self._attempts = {
            bolt: [attempt_at(around, task, threading.Event()) for task in topology.task_ids(bolt)]
            for bolt in topology.bolts
        }
        tally = Tally(MemoryMetrics(), "sentences", 1)
        roots = RootIds(timedelta(hours=1))
        self._collector = TaskCollector(topology, "sentences", 1, tally, roots)
        self._number = 0

    def emit(self, lines: Sequence[str]) -> float:
        """Emit sentences and append them to inboxes; return the CPU seconds without the appends."""
        spent = 0.0
        for start in range(0, len(lines), _EMITTED):
            part = lines[start : start + _EMITTED]
            began = time.process_time()
            self._collector.emit_all([[line] for line in part], range(len(part)))
            emission = self._collector.take()
            spent += time.process_time() - began
            self._number += 1
            sender = Sender(task=1, attempt=1)
            perform_all(self._inboxes.append(_RUN, sender, self._number, emission.parcels))
        return spent

    def work(self, bolt: str) -> float:
        """Let the tasks of one bolt empty their inboxes; return the CPU seconds."""
        began = time.process_time()
        for attempt in self._attempts[bolt]:
            while attempt.turn():
                continue
        return time.process_time() - began

    def close(self) -> None:
        """Clean the bolts up."""
        for attempts in self._attempts.values():
            for attempt in attempts:
                attempt.close()
