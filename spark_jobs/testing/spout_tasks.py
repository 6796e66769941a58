"""All spout tasks of a cluster."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from tiercel.spark_jobs.testing.errors import LocalClusterError
from tiercel.spark_jobs.testing.spouts import Settled, SpoutTask, Surroundings
from tiercel.spark_jobs.topology.graph import Topology


class SpoutTasks:
    """The spout tasks of a topology, in its order, and what their spouts were told."""

    def __init__(self, topology: Topology) -> None:
        self._settled: dict[str, list[Settled]] = {component: [] for component in topology.spouts}
        self._tasks: dict[str, list[SpoutTask]] = {}

    def open(self, shared: Surroundings, running: ExitStack) -> None:
        """Make the tasks of copies of the spouts, and open them; ``running`` closes them."""
        for component, spec in shared.topology.spouts.items():
            self._tasks[component] = [
                SpoutTask(
                    shared, component, index, copy.deepcopy(spec.spout), self._settled[component]
                )
                for index in range(spec.parallelism)
            ]
        # In the order of their start: the first one that was opened is the first one that is
        # closed.
        closing: list[SpoutTask] = []
        running.callback(_close_all, closing)
        for task in self:
            task.open()
            closing.append(task)

    def __iter__(self) -> Iterator[SpoutTask]:
        return (task for tasks in self._tasks.values() for task in tasks)

    def of(self, component: str) -> Sequence[SpoutTask]:
        """Return the tasks of one spout; none before ``open``. Raises as ``settled_of`` does."""
        self.settled_of(component)
        return self._tasks.get(component, ())

    def settled_of(self, component: str) -> Sequence[Settled]:
        """Return what this spout was told, in order.

        Raises LocalClusterError if there is no such spout.
        """
        if component not in self._settled:
            raise LocalClusterError(
                f"there is no spout {component!r}; the spouts are {', '.join(self._settled)}"
            )
        return self._settled[component]


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
