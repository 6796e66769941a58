"""The page's section of dead letters: lists them, shows whole bodies, puts them back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

from nicegui import run, ui

from tiercel.queues.broker.depths import QueueDepth
from tiercel.queues.publishing.dead_letters import DeadLetter
from tiercel.spark_jobs.logs.formatters import printable
from tiercel.workers.monitoring.dead_letter_cache import SHOWN, DeadLetterCache
from tiercel.workers.monitoring.page.actions import Actions
from tiercel.workers.monitoring.page.tables import DEAD, Cells, definitions, rows_of
from tiercel.workers.monitoring.tables import TableKind, reason_of
from tiercel.workers.monitoring.wording import body_text, count, size

# Vue shows any value as text.
_BODY_CELL = """
<q-td :props="props">
  <div>{{ props.value }}</div>
  <q-btn dense outline no-caps size="sm" label="whole body"
         @click="() => $parent.$emit('read', props.row.key)" />
</q-td>
"""


def table_of(kind: TableKind[Any], selection: Literal["multiple"] | None = None) -> ui.table:
    """Make a table of the page, without rows yet."""
    table = ui.table(
        columns=definitions(kind), rows=[], row_key="key", selection=selection
    ).classes("w-full")
    table.props('dense flat hide-pagination :rows-per-page-options="[0]" no-data-label="none"')
    return table.props(f'data-testid="{kind.title}"')


class LetterList:
    """The section about the dead letters of one queue at a time.

    Reasons are public; bodies are shown once the token was given, as they were at that time.
    """

    def __init__(self, actions: Actions, cache: DeadLetterCache) -> None:
        self._actions = actions
        self._cache = cache
        self._letters: dict[str, DeadLetter] = {}
        self._opened: set[str] = set()
        with ui.row().classes("items-center gap-2"):
            self._queue = ui.select([], label="queue", on_change=self.clear)
            self._queue.props('dense outlined data-testid="dead queue"').classes("min-w-40")
            self._look_button = self._button("look", "show bodies", self._look)
            self._chosen_button = self._button("requeue chosen", "", self._requeue_chosen)
            self._all_button = self._button("requeue all", "", self._requeue_all)
        self._note = ui.label().classes("tiercel-faint")
        self._table = table_of(DEAD, selection="multiple")
        self._table.add_slot("body-cell-body", _BODY_CELL)
        self._table.on("read", lambda event: self._read(str(event.args)))
        self._table.on_select(self._offer_buttons)
        with ui.dialog() as self._dialog, ui.card().classes("w-full").style("max-width: 900px"):
            self._heading = ui.label().classes("text-sm").style("overflow-wrap: anywhere")
            self._body = ui.label().classes("tiercel-body w-full").props('data-testid="whole body"')
            ui.button("close", on_click=self._dialog.close).props("dense no-caps")
        self.clear()

    async def refresh(self, queues: Sequence[QueueDepth]) -> None:
        """Show the letters of the chosen queue, by default the first queue that has any."""
        names = [queue.name for queue in queues]
        if list(self._queue.options) != names:
            full = [queue.name for queue in queues if queue.dead_lettered]
            self._queue.set_options(names, value=next(iter(full or names), None))
        self._queue.set_visibility(len(names) > 1)
        chosen = self._queue.value
        depth = next((each.dead_lettered for each in queues if each.name == chosen), None)
        if chosen is None:
            return
        listing = await run.io_bound(self._cache.listed, chosen, depth)
        # None: the server is ending. The operator may have chosen another queue meanwhile.
        if listing is not None and chosen == self._queue.value:
            self._show(listing.letters)
            more = f"{count(depth)}, of which the oldest {SHOWN} are shown" if depth else ""
            many = more if (depth or 0) > SHOWN else ""
            none = "" if listing.letters else "there are none"
            self._note.set_text(printable(listing.problem or many or none))

    def clear(self) -> None:
        """Show no letters."""
        self._opened.clear()
        self._note.set_text("")
        self._show(())

    def _button(self, key: str, text: str, action: Callable[[], Any]) -> ui.button:
        button = ui.button(text, on_click=action).props("dense no-caps outline")
        return button.classes("px-2").props(f'data-testid="{key}"')

    def _show(self, letters: Sequence[DeadLetter]) -> None:
        """Show letters, keeping the selection; equal letters are told apart by their number."""
        seen: Counter[str] = Counter()
        keyed: dict[str, DeadLetter] = {}
        rows: list[Cells] = []
        for letter, cells in zip(letters, rows_of(DEAD, letters), strict=True):
            key = f"{letter.id}-{seen[letter.id]}"
            seen[letter.id] += 1
            keyed[key] = letter
            body = cells["body"] if letter.id in self._opened else ""
            rows.append(cells | {"key": key, "body": body})
        self._letters = keyed
        self._table.set_visibility(bool(rows))
        if self._table.rows != rows:
            self._table.rows = rows
            self._table.selected = [row for row in self._table.selected if row["key"] in keyed]
        self._offer_buttons()

    def _offer_buttons(self) -> None:
        """Show the buttons that would have an effect, labelled with it."""
        chosen = len(self._chosen())
        hidden = any(letter.id not in self._opened for letter in self._letters.values())
        self._look_button.set_visibility(hidden)
        self._chosen_button.set_visibility(chosen > 0)
        self._chosen_button.set_text(f"put the {count(chosen)} chosen back into the queue")
        self._all_button.set_visibility(bool(self._letters))
        self._all_button.set_text("put all back into the queue")

    def _chosen(self) -> list[str]:
        keys = [str(row.get("key")) for row in self._table.selected]
        return [self._letters[key].id for key in keys if key in self._letters]

    async def _look(self) -> None:
        if self._queue.value:
            await self._actions.look(self._queue.value, self._open)

    def _open(self, letters: Sequence[DeadLetter]) -> None:
        self._opened = {letter.id for letter in letters}
        self._show(letters)

    async def _read(self, key: str) -> None:
        """Show a body, asking for the token first if it was not given."""
        if key in self._letters and self._letters[key].id not in self._opened:
            await self._look()
        letter = self._letters.get(key)
        if letter is None or letter.id not in self._opened:
            return
        kind, text = body_text(letter.body, letter.size)
        self._heading.set_text(
            printable(f"{kind}, {size(letter.size)}, from {letter.queue}: {reason_of(letter)}")
        )
        self._body.set_text(text)
        self._dialog.open()

    async def _requeue_chosen(self) -> None:
        chosen = self._chosen()
        if chosen:
            await self._requeue(chosen)

    async def _requeue_all(self) -> None:
        await self._requeue(None)

    async def _requeue(self, chosen: Sequence[str] | None) -> None:
        if self._queue.value:
            await self._actions.requeue(self._queue.value, chosen, self._look)
