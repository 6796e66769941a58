"""The traceback of an error of the page's list, in a dialog."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from nicegui import ui

from tiercel.acker.metrics.traces import KnownError
from tiercel.spark_jobs.logs.printable import printable
from tiercel.spark_jobs.logs.redaction import redact
from tiercel.workers.monitoring.page.actions import Actions
from tiercel.workers.monitoring.tracebacks import known_for, told


class TracebackDialog:
    """Opens when a row of a table of errors is pressed. It needs the token: it shows code."""

    def __init__(self, actions: Actions, topology: Callable[[], str | None]) -> None:
        """``topology`` is the one that the page shows."""
        self._actions = actions
        self._topology = topology
        with ui.dialog() as self._dialog, ui.card().classes("w-full").style("max-width: 900px"):
            self._heading = ui.label().classes("text-sm").style("overflow-wrap: anywhere")
            self._text = ui.label().classes("tiercel-body w-full").props('data-testid="traceback"')
            ui.button("close", on_click=self._dialog.close).props("dense no-caps")

    def open_from(self, errors: ui.table) -> None:
        """Open it when a row of this table is pressed."""
        errors.classes("tiercel-pressed")
        errors.on("rowClick", lambda event: self._open(event.args))

    async def _open(self, arguments: Any) -> None:
        """A browser says which row: (event, row, number)."""
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
        self._heading.set_text(printable(redact(told(found))))
        self._text.set_text(printable(redact(found.first.text), kept="\n\t"))
        self._dialog.open()
