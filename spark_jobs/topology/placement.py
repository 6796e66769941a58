"""Placement: which bolt tasks share a Spark task, and what lies downstream of what. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tiercel.acker.inbox.chunk import line_of, task_of
from tiercel.spark_jobs.errors import TopologyError
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.spark_jobs.topology.grouping import Shuffle


def check_has_bolts(topology: Topology) -> None:
    """Raise TopologyError for a topology without a bolt."""
    if not topology.bolts:
        raise TopologyError(f"topology {topology.name!r} has no bolt: add one with set_bolt")


def bolt_tasks(topology: Topology) -> list[int]:
    """The ids of all bolt tasks."""
    return [task for bolt in topology.bolts for task in topology.task_ids(bolt)]


def spread(tasks: Sequence[int], slots: int) -> tuple[tuple[int, ...], ...]:
    """Spread bolt tasks evenly over at most ``slots`` Spark tasks.

    Each component's over as many as it can.
    """
    count = max(1, min(slots, len(tasks)))
    return tuple(tuple(tasks[host::count]) for host in range(count))


def line_at(topology: Topology, task: int) -> int | None:
    """Return the line that a bolt task claims tuples from; None: nothing is shuffled to its bolt,
    or it is the only task.
    """
    component = topology.component_of(task)
    tasks = topology.task_ids(component)
    shuffled = any(
        isinstance(one.grouping, Shuffle) for one in topology.bolts[component].subscriptions
    )
    return line_of(tasks) if shuffled and len(tasks) > 1 else None


def inboxes_of(topology: Topology) -> list[int]:
    """The ids of all inboxes: of the bolt tasks, and then of the lines."""
    tasks = bolt_tasks(topology)
    lines = dict.fromkeys(line_at(topology, task) for task in tasks)
    return [*tasks, *(line for line in lines if line is not None)]


def behind(topology: Topology, task: int) -> frozenset[int]:
    """The tasks and lines that may receive anything from this task."""
    component = topology.component_of(task)
    return frozenset(
        target
        for stream in topology.spec(component).streams
        for bolt, subscription in topology.subscribers(component, stream)
        for target in subscription.grouping.receivers(topology.task_ids(bolt))
    )


def cycle_of(topology: Topology, task: int) -> frozenset[int]:
    """The tasks and lines that this task sends to and that lie on a cycle with it.

    Waiting for room at one of them could be waiting for oneself. What goes round is bounded by what
    the spouts have in flight.
    """
    component = topology.component_of(task)
    return frozenset(
        target
        for target in behind(topology, task)
        if component in _reach(topology, topology.component_of(task_of(target)))
    )


def has_cycle(topology: Topology) -> bool:
    """Return True where a tuple can lead to another one for the same bolt."""
    return any(cycle_of(topology, topology.task_ids(bolt)[0]) for bolt in topology.bolts)


def _reach(topology: Topology, component: str) -> frozenset[str]:
    """Every component that tuples of this one can come to, and itself."""
    found = {component}
    left: Sequence[str] = [component]
    while left:
        further = {
            bolt
            for one in left
            for stream in topology.spec(one).streams
            for bolt, _ in topology.subscribers(one, stream)
        }
        left = sorted(further - found)
        found |= further
    return frozenset(found)
