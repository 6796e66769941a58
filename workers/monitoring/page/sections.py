"""The parts of the page below its first screen: tables, in the form that NiceGUI takes; the section
of dead letters; the panel of one component; the dialog that shows a traceback.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Literal, TypeVar

from nicegui import run, ui

from tiercel.acker.metrics.contract import KnownError
from tiercel.queues.broker.depths import QueueDepth
from tiercel.queues.nouns import counted
from tiercel.queues.publishing.dead_letters import DeadLetter
from tiercel.spark_jobs.logs.formatters import printable, redact
from tiercel.workers.monitoring import tables
from tiercel.workers.monitoring.health import busiest
from tiercel.workers.monitoring.overview import Overview, SpoutRow, known_for
from tiercel.workers.monitoring.page.actions import Actions
from tiercel.workers.monitoring.rows import BoltRow, TaskRow
from tiercel.workers.monitoring.tables import (
    FAULTS,
    SPOUT_TASKS,
    TASKS,
    Kind,
    TableKind,
    body_text,
    count,
    duration,
    heading_of,
    milliseconds,
    per_second,
    reason_of,
    seconds,
    size,
    tasks_named,
    when,
)
from tiercel.workers.monitoring.watcher import SHOWN, DeadLetterCache

# The page shows one topology, and letters are selected by row.
OWN = tables.OWN.without("topology")
DEAD = tables.DEAD.without("id")

_WRAP = "white-space: normal; overflow-wrap: anywhere; min-width: 220px"
# All rows are sent to each page every two seconds.
_TASKS_SHOWN = 100
Cells = dict[str, str]
R = TypeVar("R")


def definitions(kind: TableKind[Any]) -> list[dict[str, Any]]:
    """Return the columns; numbers are right-aligned."""
    return [
        {
            "name": column.name,
            "label": column.name,
            "field": column.name,
            "align": "right" if column.kind is Kind.NUMBER else "left",
            "style": _WRAP if column.kind is Kind.LONG else "",
        }
        for column in kind.columns
    ]


def rows_of(kind: TableKind[R], rows: Iterable[R]) -> list[Cells]:
    """Return the rows, each with its number as key."""
    return [
        {
            "key": str(number),
            **{column.name: printable(column.text(row)) for column in kind.columns},
        }
        for number, row in enumerate(rows)
    ]


def tables_of(overview: Overview) -> dict[TableKind[Any], list[Cells]]:
    """Return the rows of all tables but the dead letters."""
    found = {kind: rows_of(kind, rows(overview)) for kind, rows in DETAILS.items()}
    return {**found, FAULTS: rows_of(FAULTS, overview.faults)}


def _tasks_shown(seen: Overview) -> Sequence[TaskRow]:
    """Return all tasks; if there are too many, first tasks without a process, then by age."""
    if len(seen.tasks) <= _TASKS_SHOWN:
        return seen.tasks
    return sorted(seen.tasks, key=lambda row: (row.attended, -row.oldest_s))[:_TASKS_SHOWN]


# The tables at the end of the page, in order, with their rows.
DETAILS: dict[TableKind[Any], Callable[[Overview], Iterable[Any]]] = {
    tables.SPOUTS: attrgetter("spouts"),
    tables.BOLTS: attrgetter("bolts"),
    TASKS: _tasks_shown,
    SPOUT_TASKS: attrgetter("spout_tasks"),
    tables.PROCESSES: attrgetter("processes"),
    tables.QUEUES: attrgetter("queue_rows"),
    tables.ACKER: lambda seen: [seen.acker],
    tables.ONCE: attrgetter("once"),
    OWN: lambda seen: [seen.own],
}


# Vue shows values as text, never as markup.
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


class _TextDialog:
    """A dialog with a text of any length, which must be printable."""

    def __init__(self, test_id: str) -> None:
        with ui.dialog() as self._dialog, ui.card().classes("w-full").style("max-width: 900px"):
            self._heading = ui.label().classes("text-sm").style("overflow-wrap: anywhere")
            self._text = ui.label().classes("tiercel-body w-full")
            self._text.props(f'data-testid="{test_id}"')
            ui.button("close", on_click=self._dialog.close).props("dense no-caps")

    def show(self, heading: str, text: str) -> None:
        self._heading.set_text(printable(heading))
        self._text.set_text(text)
        self._dialog.open()


class LetterList:
    """The section of dead letters; shows one queue at a time.

    Reasons are public. Bodies need the token, and are shown for the letters that were there when it
    was given.
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
            self._chosen_button = self._button(
                "requeue chosen", "", lambda: self._requeue(self._chosen())
            )
            self._all_button = self._button("requeue all", "", partial(self._requeue, None))
        self._note = ui.label().classes("tiercel-faint")
        self._table = table_of(DEAD, selection="multiple")
        self._table.add_slot("body-cell-body", _BODY_CELL)
        self._table.on("read", lambda event: self._read(str(event.args)))
        self._table.on_select(self._offer_buttons)
        self._dialog = _TextDialog("whole body")
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
        # None: the server is stopping. The operator may have chosen another queue meanwhile.
        if listing is not None and chosen == self._queue.value:
            self._show(listing.letters)
            more = f"the oldest {SHOWN} of {count(depth)}" if depth else ""
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
        """Show letters, keeping the selection; a number tells letters with the same id apart."""
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
        """Show the buttons that would have an effect, and the effect as their label."""
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
        self._dialog.show(
            f"{kind}, {size(letter.size)}, from {letter.queue}: {reason_of(letter)}", text
        )

    async def _requeue(self, chosen: Sequence[str] | None) -> None:
        """Put the chosen letters back; all of them if None."""
        if self._queue.value and chosen != []:
            await self._actions.requeue(self._queue.value, chosen, self._look)


_BOLT_TASKS = TableKind("Its tasks", TASKS.without("bolt").columns)
_SPOUT_TASKS = TableKind("Its spout tasks", SPOUT_TASKS.without("spout").columns)
_FAULTS = TableKind("Its errors", FAULTS.without("component").columns)


class ComponentSide:
    """The panel of one component: its current work, tasks and errors, as live as the page.

    It opens beside the page, or over it on a phone.
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
            ui.html("<h2>Errors: click one for its traceback</h2>", sanitize=False)
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
            self._doing.set_text(printable(bolt_doing(bolt, seen), kept="\n"))
            tasks = [row for row in seen.tasks if row.component == self._name]
            self._bolt_tasks.rows = rows_of(_BOLT_TASKS, tasks[:_TASKS_SHOWN])
        elif spout is not None:
            self._heading.set_text(printable(f"spout {spout.name}"))
            self._doing.set_text(printable(_spout_doing(spout, seen), kept="\n"))
            places = [row for row in seen.spout_tasks if row.component == self._name]
            self._spout_tasks.rows = rows_of(_SPOUT_TASKS, places[:_TASKS_SHOWN])
        self._ways.set_text(printable(_ways(self._name, seen)))
        faults = [fault for fault in seen.faults if fault.component == self._name]
        # TracebackDialog reads the component from the row.
        rows = rows_of(_FAULTS, faults)
        self._faults.rows = [row | {"component": self._name} for row in rows]

    def _forget(self) -> None:
        self._name = None


def bolt_doing(row: BoltRow, seen: Overview) -> str:
    """Describe the current work of a bolt, in lines."""
    speed = seen.flow.of(row.name)
    lines = [
        f"executes {per_second(speed.a_second)} tuples per second"
        + (f", {duration(speed.latency_ms)} each" if speed.latency_ms is not None else "")
        + f"; {busiest(row)} works {row.busy:.0%} of the time",
        f"{count(row.waiting)} tuples wait in its inboxes, the oldest for {seconds(row.oldest_s)}"
        if row.waiting
        else "nothing waits in its inboxes",
    ]
    if row.paused_since is not None:
        lines.insert(0, f"is paused by order since {when(row.paused_since)}")
    if row.retrying:
        lines.append(f"{count(row.retrying)} of them have failed and wait for a retry")
    if speed.failed_a_second:
        lines.append(f"fails {per_second(speed.failed_a_second)} per second")
    if row.unattended:
        lines.append(f"no process runs task {tasks_named(row.unattended)}")
    lines += [
        f"task {task} has been in one call for {seconds(call_s)}" for task, call_s in row.calls[:5]
    ]
    return "\n".join(lines)


def _spout_doing(row: SpoutRow, seen: Overview) -> str:
    """Describe the current work of a spout, in lines."""
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
    if row.missing:
        lines.append(f"{count(row.missing)} of {count(row.tasks)} tasks have no worker")
    return "\n".join(lines)


def _ways(name: str, seen: Overview) -> str:
    """Name the sources and targets of a component."""
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
        self._dialog = _TextDialog("traceback")

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
        text = printable(redact(found.first.text), kept="\n\t")
        self._dialog.show(redact(heading_of(found)), text)
