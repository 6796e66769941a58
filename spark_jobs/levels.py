"""The topology cut into levels: one Spark stage each, by longest path from a spout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_jobs.errors import TopologyError
from spark_jobs.topology import Topology, bolt_levels

_LANES = 1 << 16


def share_number(level: int, lane: int) -> int:
    """The number by which the ledger knows a lane of a level: to it, that is one task."""
    return level * _LANES + lane


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a bolt task runs."""

    component: str
    task_id: int
    level: int
    position: int
    """Its number among the tasks of its level."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A topology with its bolt tasks placed; immutable, travels to the workers.

    Each level has ``lanes`` Spark partitions; the task at position p of a level runs in lane p modulo lanes. The relay has one
    lane a task of the first level, whatever the number of Spark's: spout workers need not know how many cores there are.
    """

    topology: Topology
    places: Mapping[int, Place]
    level_tasks: tuple[int, ...]
    """Number of tasks at levels 1, 2, …"""
    max_lanes: int

    @property
    def levels(self) -> int:
        return len(self.level_tasks)

    @property
    def relay_lanes(self) -> int:
        return self.level_tasks[0]

    def lanes(self, level: int) -> int:
        """Spark partitions of a level."""
        return min(self.level_tasks[level - 1], self.max_lanes)

    def relay_lane(self, task_id: int) -> int:
        """The relay lane for a chunk from a spout to a task; one for a later level passes through the first."""
        place = self.places[task_id]
        return place.position if place.level == 1 else task_id % self.relay_lanes

    def lane_after(self, level: int, task_id: int) -> int:
        """The lane of level + 1 for a chunk that leaves ``level`` for a task there or further down."""
        place = self.places[task_id]
        lanes = self.lanes(level + 1)
        return place.position % lanes if place.level == level + 1 else task_id % lanes


def plan_topology(topology: Topology, max_lanes: int) -> Plan:
    """Place the bolt tasks; ``max_lanes`` is the number of cores. Raises TopologyError for a topology without a bolt."""
    levels = bolt_levels(topology.bolts)
    if not levels:
        raise TopologyError(f"topology {topology.name!r} has no bolt: add one with set_bolt")
    counts = [0] * max(levels.values())
    places = {}
    for component in topology.bolts:
        level = levels[component]
        for task_id in topology.task_ids(component):
            places[task_id] = Place(component=component, task_id=task_id, level=level, position=counts[level - 1])
            counts[level - 1] += 1
    return Plan(topology=topology, places=places, level_tasks=tuple(counts), max_lanes=max_lanes)
