"""Things that the steps of one bolt task share."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from tiercel.spark_jobs.bolts.arrow_bolt import ArrowBolt
from tiercel.spark_jobs.bolts.async_bolt import AsyncBolt
from tiercel.spark_jobs.bolts.batch_bolt import BatchBolt
from tiercel.spark_jobs.bolts.bolt import BasicBolt
from tiercel.spark_jobs.bolts.stateful_bolt import StatefulBolt
from tiercel.spark_jobs.emitting.outputs import Outputs
from tiercel.spark_jobs.running.copy import WorkingCopy
from tiercel.spark_jobs.topology.graph import Topology


class StepSetup:
    """Everything that the steps of one bolt task share: its outputs, its copy, the
    places of the targets.
    """

    def __init__(
        self,
        topology: Topology,
        task: int,
        copy: WorkingCopy,
        unbounded: AbstractSet[int],
        local: AbstractSet[int],
    ) -> None:
        """``unbounded`` are the tasks that this one must never wait for: they lie on
        a cycle with it.

        ``local`` are those in its process.
        """
        self.topology = topology
        self.task = task
        self.component = topology.component_of(task)
        self.copy = copy
        self.outputs = Outputs(topology, task, local)
        self.unbounded = unbounded
        bolt = topology.bolts[self.component].bolt
        self.basic = isinstance(bolt, BasicBolt | AsyncBolt)
        self.batch = isinstance(bolt, BatchBolt)
        self.arrow = isinstance(bolt, ArrowBolt)
        self.stateful = isinstance(bolt, StatefulBolt)
