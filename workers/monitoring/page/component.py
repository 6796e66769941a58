"""The panel of one component, opened by a click, and the dialog that shows a traceback."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from nicegui import ui

from tiercel.acker.metrics.contract import KnownError
from tiercel.queues.nouns import counted
from tiercel.spark_jobs.logs.printable import printable
from tiercel.spark_jobs.logs.redaction import redact
from tiercel.workers.monitoring.faults import heading_of, known_for
from tiercel.workers.monitoring.health import busiest
from tiercel.workers.monitoring.overview import Overview, SpoutRow
from tiercel.workers.monitoring.page.actions import Actions
from tiercel.workers.monitoring.page.letters import table_of
from tiercel.workers.monitoring.page.tables import rows_of
from tiercel.workers.monitoring.rows import BoltRow
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
    """The panel beside the page, or over it on a phone, as live as the page: what a component does
    now, its tasks, its errors.
    """

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
        """Open the panel for a component of the topology that was shown last."""
        self._name = name
        if self._seen is not None:
            self.show(self._seen)
            self._dialog.open()

    def show(self, seen: Overview) -> None:
        """Update the component, if the panel is open."""
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
    """Describe in lines what a bolt is doing now."""
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
    """Describe in lines what a spout is doing now."""
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
    """Name the components that its tuples come from and go to."""
    sources = [
        f"{row.edge.source} ({row.edge.stream}, {row.edge.grouping})"
        for row in seen.edges
        if row.edge.target == name
    ]
    targets = dict.fromkeys(row.edge.target for row in seen.edges if row.edge.source == name)
    parts = [("from", sources), ("to", list(targets))]
    return " · ".join(f"{word} {', '.join(found)}" for word, found in parts if found)


class TracebackDialog:
    """Opens when a row in a table of errors is clicked. Needs the token, because it shows code."""

    def __init__(self, actions: Actions, topology: Callable[[], str | None]) -> None:
        """``topology`` returns the name of the topology that the page shows."""
        self._actions = actions
        self._topology = topology
        with ui.dialog() as self._dialog, ui.card().classes("w-full").style("max-width: 900px"):
            self._heading = ui.label().classes("text-sm").style("overflow-wrap: anywhere")
            self._text = ui.label().classes("tiercel-body w-full").props('data-testid="traceback"')
            ui.button("close", on_click=self._dialog.close).props("dense no-caps")

    def open_from(self, errors: ui.table) -> None:
        """Open the dialog when a row of this table is clicked."""
        errors.classes("tiercel-pressed")
        errors.on("rowClick", lambda event: self._open(event.args))

    async def _open(self, arguments: Any) -> None:
        """Open the dialog for a row; the browser sends (event, row, number)."""
        topology = self._topology()
        row = arguments[1] if isinstance(arguments, list) and len(arguments) > 1 else None
        if topology is None or not isinstance(row, dict):
            return
        component = str(row.get("component", ""))
        reason = str(row.get("reason", ""))
        await self._actions.tracebacks(topology, partial(self._show, component, reason))

    def _show(self, component: str, reason: str, known: Sequence[KnownError]) -> None:
        found = known_for(known, component, reason)
        if found is None:
            ui.notify("no traceback is kept of this error", type="warning")
            return
        self._heading.set_text(printable(redact(heading_of(found))))
        self._text.set_text(printable(redact(found.first.text), kept="\n\t"))
        self._dialog.open()
