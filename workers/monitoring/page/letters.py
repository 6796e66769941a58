"""The dead letters of the page: looked at, read whole, put back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from nicegui import ui

from tiercel.queues.publishing.dead_letters import DeadLetter
from tiercel.spark_jobs.logs.printable import printable
from tiercel.workers.monitoring.page.actions import Actions
from tiercel.workers.monitoring.page.tables import DEAD, definitions, rows_of
from tiercel.workers.monitoring.tables import TableKind
from tiercel.workers.monitoring.wording import body_text, size

# Of the oldest, at most. A page holds their bodies, 64 KiB each at most.
SHOWN = 50
# Vue shows the value as text, whatever is in it.
_BODY_CELL = """
<q-td :props="props">
  <div>{{ props.value }}</div>
  <q-btn dense outline no-caps size="sm" label="whole body"
         @click="() => $parent.$emit('read', props.row.key)" />
</q-td>
"""


def table_of(kind: TableKind[Any], selection: Literal["multiple"] | None = None) -> ui.table:
    """A table of the page, without rows yet."""
    table = ui.table(
        columns=definitions(kind), rows=[], row_key="key", selection=selection
    ).classes("w-full")
    table.props(
        'dense flat bordered hide-pagination :rows-per-page-options="[0]" no-data-label="none"'
    )
    return table.props(f'data-testid="{kind.title}"')


class Letters:
    """The section about the dead letters of one queue at a time.

    Its content was there when the operator pressed "look".
    """

    def __init__(self, actions: Actions) -> None:
        self._actions = actions
        self._letters: Sequence[DeadLetter] = ()
        with ui.row().classes("items-center gap-2"):
            self._queue = (
                ui.select([], label="queue", on_change=self.clear)
                .props("dense outlined")
                .classes("min-w-40")
            )
            self._queue.props('data-testid="dead queue"')
            ui.button("look", on_click=self._look).props("dense no-caps").props(
                'data-testid="look"'
            )
            for text, action in (
                ("requeue chosen", self._requeue_chosen),
                ("requeue all", self._requeue_all),
            ):
                ui.button(text, on_click=action).props("dense no-caps").props(
                    f'data-testid="{text}"'
                )
        self._table = table_of(DEAD, selection="multiple")
        self._table.add_slot("body-cell-body", _BODY_CELL)
        self._table.on("read", lambda event: self._read(int(event.args)))
        with ui.dialog() as self._dialog, ui.card().classes("w-full").style("max-width: 900px"):
            self._heading = ui.label().classes("text-sm").style("overflow-wrap: anywhere")
            self._body = ui.label().classes("tiercel-body w-full").props('data-testid="whole body"')
            ui.button("close", on_click=self._dialog.close).props("dense no-caps")

    def offer(self, queues: Sequence[str]) -> None:
        """Offer these queues for a choice."""
        if list(self._queue.options) != list(queues):
            self._queue.set_options(list(queues), value=queues[0] if queues else None)

    def clear(self) -> None:
        """Nothing was looked at."""
        self._show(())

    def _show(self, letters: Sequence[DeadLetter]) -> None:
        self._letters = letters
        self._table.selected = []
        self._table.rows = rows_of(DEAD, letters)

    async def _look(self) -> None:
        if self._queue.value:
            await self._actions.look(self._queue.value, SHOWN, self._show)

    def _read(self, number: int) -> None:
        if number >= len(self._letters):  # of a look before the last one
            return
        letter = self._letters[number]
        kind, text = body_text(letter.body, letter.size)
        self._heading.set_text(
            printable(f"{kind}, {size(letter.size)}, from {letter.queue}: {letter.reason}")
        )
        self._body.set_text(text)
        self._dialog.open()

    async def _requeue_chosen(self) -> None:
        # The keys of rows are the numbers of the letters.
        chosen = [self._letters[int(row["key"])].id for row in self._table.selected]
        if chosen:
            await self._requeue(chosen)
        else:
            ui.notify("look, and choose letters by the boxes before them", type="warning")

    async def _requeue_all(self) -> None:
        await self._requeue(None)

    async def _requeue(self, chosen: Sequence[str] | None) -> None:
        if self._queue.value:
            await self._actions.requeue(self._queue.value, chosen, self._look)
