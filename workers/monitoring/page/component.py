"""One component, opened by a click: what it does now, its tasks, its errors."""

from __future__ import annotations

from nicegui import ui

from tiercel.queues.nouns import counted
from tiercel.spark_jobs.logs.printable import printable
from tiercel.workers.monitoring.bolts import BoltRow
from tiercel.workers.monitoring.health import busiest
from tiercel.workers.monitoring.overview import Overview, SpoutRow
from tiercel.workers.monitoring.page.letters import table_of
from tiercel.workers.monitoring.page.tables import rows_of
from tiercel.workers.monitoring.page.tracebacks import TracebackDialog
from tiercel.workers.monitoring.tables import FAULTS, SPOUT_TASKS, TASKS, TableKind
from tiercel.workers.monitoring.wording import (
    count,
    duration,
    milliseconds,
    per_second,
    seconds,
    tasks_named,
)

_BOLT_TASKS = TableKind("Its tasks", TASKS.without("bolt").columns)
_SPOUT_TASKS = TableKind("Its spout tasks", SPOUT_TASKS.without("spout").columns)
_FAULTS = TableKind("Its errors", FAULTS.without("component").columns)
_TASKS_SHOWN = 100


class ComponentSide:
    """Lies beside the page, or over it on a phone, and is as live as the page."""

    def __init__(self, tracebacks: TracebackDialog) -> None:
        self._name: str | None = None
        self._seen: Overview | None = None
        with (
            ui.dialog().props("position=right full-height") as self._dialog,
            ui.card().classes("tiercel-side").props('data-testid="component"'),
        ):
            with ui.row().classes("items-center justify-between no-wrap w-full"):
                self._heading = ui.label().classes("text-lg font-bold")
                self._heading.style("overflow-wrap: anywhere")
                ui.button("close", on_click=self._dialog.close).props("dense no-caps flat")
            self._doing = ui.label().props('data-testid="doing"').style("white-space: pre-line")
            self._ways = ui.label().classes("tiercel-faint")
            ui.html("<h2>Tasks</h2>", sanitize=False)
            self._bolt_tasks = table_of(_BOLT_TASKS)
            self._spout_tasks = table_of(_SPOUT_TASKS)
            ui.html("<h2>Errors: press one for its traceback</h2>", sanitize=False)
            self._faults = table_of(_FAULTS)
            tracebacks.open_from(self._faults)
        self._dialog.on("hide", self._forget)

    def open(self, name: str) -> None:
        """Open it for a component of the topology that was shown last."""
        self._name = name
        if self._seen is not None:
            self.show(self._seen)
            self._dialog.open()

    def show(self, seen: Overview) -> None:
        """Show what is new of the component, if one is open."""
        self._seen = seen
        if self._name is None:
            return
        bolt = next((row for row in seen.bolts if row.name == self._name), None)
        spout = next((row for row in seen.spouts if row.name == self._name), None)
        self._bolt_tasks.set_visibility(bolt is not None)
        self._spout_tasks.set_visibility(spout is not None)
        if bolt is not None:
            self._heading.set_text(printable(f"bolt {bolt.name}"))
            self._doing.set_text(printable(_bolt_doing(bolt, seen), kept="\n"))
            tasks = [row for row in seen.tasks if row.component == self._name]
            self._bolt_tasks.rows = rows_of(_BOLT_TASKS, tasks[:_TASKS_SHOWN])
        elif spout is not None:
            self._heading.set_text(printable(f"spout {spout.name}"))
            self._doing.set_text(printable(_spout_doing(spout, seen), kept="\n"))
            places = [row for row in seen.spout_tasks if row.component == self._name]
            self._spout_tasks.rows = rows_of(_SPOUT_TASKS, places[:_TASKS_SHOWN])
        self._ways.set_text(printable(_ways(self._name, seen)))
        faults = [fault for fault in seen.faults if fault.component == self._name]
        # The dialog of tracebacks asks the row for its component.
        rows = rows_of(_FAULTS, faults)
        self._faults.rows = [row | {"component": self._name} for row in rows]

    def _forget(self) -> None:
        self._name = None


def _bolt_doing(row: BoltRow, seen: Overview) -> str:
    """Return what a bolt is doing now, in lines."""
    speed = seen.flow.of(row.name)
    lines = [
        f"executes {per_second(speed.a_second)} tuples per second"
        + (f", {duration(speed.latency_ms)} each" if speed.latency_ms is not None else "")
        + f"; {busiest(row)} works {row.busy:.0%} of the time",
        f"{count(row.waiting)} tuples wait in its inboxes, the oldest for {seconds(row.oldest_s)}"
        if row.waiting
        else "nothing waits in its inboxes",
    ]
    if speed.failed_a_second:
        lines.append(f"fails {per_second(speed.failed_a_second)} per second")
    if row.unattended:
        lines.append(f"no process runs task {tasks_named(row.unattended)}")
    lines += [
        f"task {task.task} has been in one call for {seconds(task.doing_s)}"
        for task in seen.tasks
        if task.component == row.name and task.doing_s is not None
    ][:5]
    return "\n".join(lines)


def _spout_doing(row: SpoutRow, seen: Overview) -> str:
    """Return what a spout is doing now, in lines."""
    speed = seen.flow.of(row.name)
    lines = [
        f"{per_second(speed.a_second)} messages complete per second"
        + (f", half of them within {duration(speed.latency_ms)}" if speed.latency_ms else ""),
        f"{count(row.pending)} in flight, the oldest for {seconds(row.oldest_s)}",
        (
            f"in the window: mean {milliseconds(row.complete_ms) or '?'} ms, p99 about "
            f"{milliseconds(row.complete_p99_ms) or '?'} ms"
        ),
    ]
    if row.in_back_off:
        lines.append(f"{counted(row.in_back_off, 'failed message')} held for their back-off")
    if row.running < row.tasks:
        lines.append(f"{count(row.tasks - row.running)} of {count(row.tasks)} tasks have no worker")
    return "\n".join(lines)


def _ways(name: str, seen: Overview) -> str:
    """Return where its tuples come from and go to."""
    sources = [
        f"{row.edge.source} ({row.edge.stream}, {row.edge.grouping})"
        for row in seen.edges
        if row.edge.target == name
    ]
    targets = dict.fromkeys(row.edge.target for row in seen.edges if row.edge.source == name)
    parts = [("from", sources), ("to", list(targets))]
    return " · ".join(f"{word} {', '.join(found)}" for word, found in parts if found)
