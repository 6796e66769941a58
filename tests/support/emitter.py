"""A spout's collector with given roots, for tests that register and append emissions themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tiercel.acker.metrics.contract import Tally
from tiercel.acker.metrics.memory import MemoryMetrics
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.workers.spout.collector import TaskCollector


class SpoutEmitter(TaskCollector):
    """A collector that uses a tuple's message id as its root; None means untracked."""

    def __init__(self, topology: Topology, component: str, task_id: int) -> None:
        tally = Tally(MemoryMetrics(), component, task_id)
        super().__init__(topology, component, task_id, tally, None)

    def _root(self, msg_id: Any) -> int | None:
        return msg_id

    def _roots(self, msg_ids: Sequence[Any]) -> list[int] | None:
        return list(msg_ids) if any(root is not None for root in msg_ids) else None
