"""The processes of a topology: what each runs, where, and since when. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from tiercel.spark_jobs.whereabouts import Whereabouts, unpacked
from tiercel.workers.control.graph import Component
from tiercel.workers.monitoring.bolts import attended
from tiercel.workers.monitoring.raw import Raw

DRIVER = "the driver"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessRow:
    """One process that is there now."""

    # None: it does not say, an older version.
    place: Whereabouts | None
    # The driver, or tasks by component: ``split[3, 4]``.
    runs: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SpoutTaskRow:
    """One spout task now."""

    component: str
    task: int
    # A worker runs it.
    running: bool
    # It may emit.
    active: bool = False
    pending: int = 0
    oldest_s: float = 0.0
    place: Whereabouts | None = None


def spout_tasks(raw: Raw) -> tuple[SpoutTaskRow, ...]:
    """The tasks of all spouts, in their order."""
    return tuple(
        _spout_task(spout.name, task, raw) for spout in raw.graph.spouts for task in spout.tasks
    )


def processes(raw: Raw) -> tuple[ProcessRow, ...]:
    """The processes: the driver, those of spouts, those of bolts."""
    running: dict[Whereabouts | None, dict[str, list[int]]] = defaultdict(dict)
    if raw.driver:
        running[raw.driver_at][DRIVER] = []
    for component in raw.graph.spouts:
        for task in component.tasks:
            if task in raw.present:
                _note(running[raw.present[task].whereabouts], component, task)
    for component in raw.graph.bolts:
        for task in component.tasks:
            inbox = raw.inboxes.get(task)
            if inbox is not None and attended(inbox):
                _note(running[unpacked(inbox.place)], component, task)
    return tuple(ProcessRow(place=place, runs=_runs(tasks)) for place, tasks in running.items())


def _note(tasks: dict[str, list[int]], component: Component, task: int) -> None:
    tasks.setdefault(component.name, []).append(task)


def _runs(tasks: dict[str, list[int]]) -> str:
    return ", ".join(
        f"{name}[{', '.join(map(str, numbers))}]" if numbers else name
        for name, numbers in tasks.items()
    )


def _spout_task(component: str, task: int, raw: Raw) -> SpoutTaskRow:
    presence = raw.present.get(task)
    if presence is None:
        return SpoutTaskRow(component=component, task=task, running=False)
    return SpoutTaskRow(
        component=component,
        task=task,
        running=True,
        active=presence.active,
        pending=presence.pending,
        oldest_s=presence.oldest_s,
        place=presence.whereabouts,
    )
