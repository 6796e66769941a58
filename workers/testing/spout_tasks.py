"""All spout tasks of a cluster."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from tiercel.spark_jobs.topology.graph import Topology
from tiercel.workers.testing.errors import LocalClusterError
from tiercel.workers.testing.spouts import KitSpoutTask, SpoutOutcome, Surroundings


class SpoutTasks:
    """The spout tasks of a topology, in its order, and what their spouts were told."""

    def __init__(self, topology: Topology) -> None:
        self._outcomes: dict[str, list[SpoutOutcome]] = {
            component: [] for component in topology.spouts
        }
        self._tasks: dict[str, list[KitSpoutTask]] = {}

    def open(self, shared: Surroundings, running: ExitStack) -> None:
        """Make the tasks of copies of the spouts, and open them; ``running`` closes them."""
        for component, spec in shared.topology.spouts.items():
            self._tasks[component] = [
                KitSpoutTask(
                    shared, component, index, copy.deepcopy(spec.spout), self._outcomes[component]
                )
                for index in range(spec.parallelism)
            ]
        # In the order of their start: the first one that was opened is the first one that is
        # closed.
        closing: list[KitSpoutTask] = []
        running.callback(_close_all, closing)
        for task in self:
            task.open()
            closing.append(task)

    def __iter__(self) -> Iterator[KitSpoutTask]:
        return (task for tasks in self._tasks.values() for task in tasks)

    def of(self, component: str) -> Sequence[KitSpoutTask]:
        """Return the tasks of one spout; none before ``open``. Raises as ``outcomes_of`` does."""
        self.outcomes_of(component)
        return self._tasks.get(component, ())

    def outcomes_of(self, component: str) -> Sequence[SpoutOutcome]:
        """Return what this spout was told, in order.

        Raises LocalClusterError if there is no such spout.
        """
        if component not in self._outcomes:
            raise LocalClusterError(
                f"there is no spout {component!r}; the spouts are {', '.join(self._outcomes)}"
            )
        return self._outcomes[component]


def _close_all(tasks: Sequence[KitSpoutTask]) -> None:
    """Close every spout that was opened, and then raise what the first one raised."""
    errors = []
    for task in tasks:
        try:
            task.close()
        except Exception as error:  # noqa: BLE001 - the others must be closed too
            errors.append(error)
    if errors:
        raise errors[0]
