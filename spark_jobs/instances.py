"""The bolts' working copies in this process."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from typing import Any

from spark_jobs.bolt import BasicBolt, Bolt
from spark_jobs.levels import Plan
from spark_jobs.reasons import RAISED, reason_of

log = logging.getLogger(__name__)


class Instances:
    """One prepared copy a bolt task, made when it is first needed."""

    def __init__(self, plan: Plan, config: Mapping[str, Any]) -> None:
        """``config`` stands beneath each component's own settings: addresses and the like."""
        self._plan, self._config = plan, config
        self._ready: dict[int, Bolt | BasicBolt] = {}

    def get(self, task_id: int) -> Bolt | BasicBolt:
        """The copy of this task; raises what ``prepare`` raises."""
        bolt = self._ready.get(task_id)
        if bolt is None:
            component = self._plan.places[task_id].component
            topology = self._plan.topology
            bolt = copy.deepcopy(topology.bolts[component].bolt)
            bolt.prepare({**self._config, **topology.config_of(component).as_mapping()}, topology.context_of(task_id))
            self._ready[task_id] = bolt
        return bolt

    def drop(self, task_id: int) -> None:
        """Throw a copy away whose state cannot be trusted; the next use prepares a fresh one."""
        bolt = self._ready.pop(task_id, None)
        if bolt is not None:
            try:
                bolt.cleanup()
            except RAISED as error:  # the copy is gone anyway
                log.warning("cleanup of task %d: %s", task_id, reason_of(error), extra={"event": "bolt_cleanup_failed"})

    def drop_all(self) -> None:
        for task_id in list(self._ready):
            self.drop(task_id)
