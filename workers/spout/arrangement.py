"""The topology with the numbers of tasks that its driver says."""

from __future__ import annotations

from tiercel.spark_jobs.topology.graph import Topology
from tiercel.spark_jobs.topology.shape import shape_of
from tiercel.workers.control.lease import Holder


class Arrangement:
    """Arrangement that a spout worker emits by. One thread only.

    The lease says how many tasks each bolt has in the driver's run. With these numbers the worker's
    own topology must have the driver's shape; else the two are of different versions.
    """

    def __init__(self, topology: Topology) -> None:
        self._own = topology
        self._topology = topology
        self._shape = shape_of(topology)

    def understands(self, holder: Holder) -> bool:
        """Tell whether the driver's run reads what this worker would send it."""
        return self._is_same(holder) or shape_of(self._numbered(holder)) == holder.shape

    def follow(self, holder: Holder) -> Topology:
        """Take the numbers of a driver that this worker understands; returns the topology to
        emit by, the same object as long as the numbers are the same.
        """
        if not self._is_same(holder):
            self._topology = self._numbered(holder)
            self._shape = holder.shape
        return self._topology

    def _is_same(self, holder: Holder) -> bool:
        return holder.shape in ("", self._shape)

    def _numbered(self, holder: Holder) -> Topology:
        return self._own.with_parallelism(holder.parallelism)
