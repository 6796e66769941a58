"""The engine in this process: a runner a lane, on the ledger in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from acker import MemoryLedger, MemoryMetrics, Token
from queues import Entry
from spark_jobs.job import ledger_spec_of
from spark_jobs.levels import Plan, share_number
from spark_jobs.runner import LevelRunner
from spark_jobs.state import MemoryStateStore
from spark_jobs.testing.capture import is_watched

_RUN = "local-cluster"


class MemoryEngine:
    """``Engine`` without services. The same chunks give the same run."""

    def __init__(self, plan: Plan, clock: Callable[[], float]) -> None:
        self._plan = plan
        self.ledger = MemoryLedger(ledger_spec_of(plan, ()), clock)
        self.metrics = MemoryMetrics()
        self.state = MemoryStateStore()
        self._batch = 0
        self._runners: dict[tuple[int, int], LevelRunner] = {}

    def start(self) -> None:
        """A runner a lane: two lanes of a level may run in two processes."""
        settings = self._plan.topology.config.as_mapping()
        for level in range(1, self._plan.levels + 1):
            for lane in range(self._plan.lanes(level)):
                self._runners[level, lane] = LevelRunner(
                    plan=self._plan,
                    level=level,
                    ledger=self.ledger,
                    metrics=self.metrics,
                    config=settings,
                    state=self.state,
                )

    def run(self, entries: Sequence[Entry]) -> list[bytes]:
        """Level by level, lane by lane."""
        lanes: dict[int, list[bytes]] = {}
        for entry in entries:
            lanes.setdefault(entry.lane % self._plan.lanes(1), []).append(entry.payload)
        seen: list[bytes] = []
        for level in range(1, self._plan.levels + 1):
            following: dict[int, list[bytes]] = {}
            for lane, payloads in sorted(lanes.items()):
                seen += (payload for payload in payloads if is_watched(self._plan, level, payload))
                token = Token(run=_RUN, task=share_number(level, lane), step=self._batch)
                for target, payload in self._runners[level, lane].run(token, payloads):
                    following.setdefault(target, []).append(payload)
            lanes = following
        self._batch += 1
        return seen

    def close(self) -> None:
        while self._runners:
            _, runner = self._runners.popitem()
            runner.close()
