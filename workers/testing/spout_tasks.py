"""All spout tasks of a cluster."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import ExitStack

from tiercel.queues.spout import Spout
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.workers.spout.task import SpoutTask
from tiercel.workers.testing.errors import absent
from tiercel.workers.testing.feeder import FeederSpout
from tiercel.workers.testing.spouts import SpoutOutcome, Surroundings, spout_task


class SpoutTasks:
    """The spout tasks of a topology, in its order, and what their spouts were told."""

    def __init__(self, topology: Topology) -> None:
        self._told: dict[str, list[SpoutOutcome]] = {component: [] for component in topology.spouts}
        self._spouts: dict[str, list[Spout]] = {component: [] for component in topology.spouts}
        self._tasks: dict[str, list[SpoutTask]] = {component: [] for component in topology.spouts}
        # In the order of their start: the first one that was opened is the first one that
        # is closed.
        self._opened: list[SpoutTask] = []

    def open(self, shared: Surroundings, running: ExitStack) -> None:
        """Open tasks with copies of the spouts; ``running`` closes them."""
        running.callback(_close_all, self._opened)
        for component, spec in shared.topology.spouts.items():
            for task_id in shared.topology.task_ids(component):
                spout = copy.deepcopy(spec.spout)
                if isinstance(spout, FeederSpout):
                    spout.attach(shared.clock)
                task = spout_task(shared, component, task_id, spout, self._told[component])
                self._spouts[component].append(spout)
                self._tasks[component].append(task)
                self._opened.append(task)
        self.obey()

    def turn(self) -> tuple[bool, bool]:
        """One turn of each; returns whether anything moved, and whether anything was sent."""
        turns = [task.turn() for task in self._opened]
        return any(turn.worked or turn.sent for turn in turns), any(turn.sent for turn in turns)

    def obey(self) -> None:
        """Let them do what was ordered."""
        for task in self._opened:
            task.obey()

    @property
    def next_at(self) -> float | None:
        """Time at which the next tuple times out or comes again; None if none will."""
        moments = [task.next_timeout for task in self._opened]
        for spouts in self._spouts.values():
            moments += [each.next_at for each in spouts if isinstance(each, FeederSpout)]
        return min((each for each in moments if each is not None), default=None)

    def in_flight(self, component: str) -> int:
        """Trees of one spout's tuples in flight. Raises as ``told`` does."""
        self.told(component)
        return sum(task.in_flight for task in self._tasks[component])

    def spouts_of(self, component: str) -> Sequence[Spout]:
        """Return the copies of one spout; none before ``open``. Raises as ``told`` does."""
        self.told(component)
        return self._spouts[component]

    def told(self, component: str) -> Sequence[SpoutOutcome]:
        """Return what this spout was told, in order.

        Raises LocalClusterError if there is no such spout.
        """
        if component not in self._told:
            raise absent("spout", component, self._told)
        return self._told[component]


def _close_all(tasks: Sequence[SpoutTask]) -> None:
    """Close every spout that was opened, and then raise what the first one raised."""
    errors = []
    for task in tasks:
        try:
            task.close()
        except Exception as error:  # noqa: BLE001 - the others must be closed too
            errors.append(error)
    if errors:
        raise errors[0]
