"""The dialogs of the page: one component, one error, one dead letter; and the list of dead letters,
which opens them. Each of these things has an address.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from nicegui import run, ui

from tiercel.acker.metrics.contract import KnownError
from tiercel.queues.broker.depths import QueueDepth
from tiercel.queues.nouns import counted
from tiercel.queues.publishing.dead_letters import DeadLetter
from tiercel.spark_jobs.logs.formatters import printable, redact
from tiercel.workers.monitoring.overview import Fault, Overview, SpoutRow, known_for
from tiercel.workers.monitoring.page.actions import Actions
from tiercel.workers.monitoring.page.sections import (
    BODY_CELL,
    DEAD,
    TASKS_SHOWN,
    Cells,
    rows_of,
    table_of,
)
from tiercel.workers.monitoring.rows import BoltRow
from tiercel.workers.monitoring.tables import (
    FAULTS,
    SPOUT_TASKS,
    TASKS,
    TableKind,
    body_text,
    count,
    duration,
    heading_of,
    milliseconds,
    per_second,
    queued,
    reason_of,
    seconds,
    size,
    tasks_named,
    when,
    working,
)
from tiercel.workers.monitoring.watcher import SHOWN, DeadLetterCache

_PAUSE = "pause: take no more tuples"
_RESUME = "resume: take tuples again"
# Notes in the browser's history that the page shows this thing of its topology now.
Go = Callable[..., None]


class _ThingDialog:
    """A dialog about one error or dead letter: its facts, and a text of any length, which needs the
    token. All texts must be printable.
    """

    def __init__(
        self, test_id: str, asks: str, ask: Callable[[], Awaitable[None]], closed: Callable[[], Any]
    ) -> None:
        """``ask`` is called when the button with the text ``asks`` is clicked."""
        with ui.dialog() as self._dialog, ui.card().classes("w-full").style("max-width: 900px"):
            self._heading = ui.label().classes("text-sm").style("overflow-wrap: anywhere")
            self._text = ui.label().classes("tiercel-body w-full")
            self._text.props(f'data-testid="{test_id}"')
            self._ask = ui.button(asks, on_click=ask).props("dense no-caps outline")
            self._ask.props(f'data-testid="{test_id} button"').classes("px-2")
            ui.button("close", on_click=self._dialog.close).props("dense no-caps")
        self._dialog.on("hide", closed)

    def show(self, heading: str, text: str | None, *, asks: bool = False) -> None:
        """Show the heading, and the text if there is one; with ``asks``, a button to ask for it."""
        self._heading.set_text(printable(heading))
        self._text.set_text(text or "")
        self._text.set_visibility(text is not None)
        self._ask.set_visibility(asks)
        self._dialog.open()


class LetterList:
    """The section of dead letters; shows one queue at a time.

    Reasons are public. Bodies need the token, and are shown for the letters that were there when it
    was given.
    """

    def __init__(self, actions: Actions, cache: DeadLetterCache, go: Go) -> None:
        self._actions = actions
        self._cache = cache
        self._go = go
        # All letters that were read, and the shown letters by the key of their row.
        self._listed: Sequence[DeadLetter] = ()
        self._letters: dict[str, DeadLetter] = {}
        self._opened: set[str] = set()
        # The queue and the id of the letter to open once the letters of its queue are there.
        self._wanted: tuple[str, str] | None = None
        # The letter in the dialog.
        self._read_id = ""
        with ui.row().classes("items-center gap-2"):
            self._queue = ui.select([], label="queue", on_change=self.clear)
            self._queue.props('dense outlined data-testid="dead queue"').classes("min-w-40")
            self._look_button = self._button("look", "show bodies", self._look)
            self._chosen_button = self._button(
                "requeue chosen", "", lambda: self._requeue(self._chosen())
            )
            self._delete_button = self._button("delete chosen", "", self._delete)
            self._all_button = self._button("requeue all", "", partial(self._requeue, None))
            self._filter = ui.input("reason contains").props("dense outlined clearable")
            self._filter.props('data-testid="dead reason"')
            self._filter.on_value_change(lambda: self._show(self._listed))
        self._note = ui.label().classes("tiercel-faint")
        self._table = table_of(DEAD, selection="multiple")
        self._table.add_slot("body-cell-body", BODY_CELL)
        self._table.on("read", lambda event: self._read(str(event.args)))
        self._table.on_select(self._offer_buttons)
        self._dialog = _ThingDialog("whole body", "show its body", self._read_again, go)
        self.clear()

    def open(self, queue: str, letter: str) -> None:
        """Open the dialog of a letter as soon as the letters of its queue are there."""
        self._wanted = queue, letter

    async def refresh(self, queues: Sequence[QueueDepth]) -> None:
        """Show the letters of the chosen queue, by default the first queue that has any."""
        names = [queue.name for queue in queues]
        if list(self._queue.options) != names:
            full = [queue.name for queue in queues if queue.dead_lettered]
            self._queue.set_options(names, value=next(iter(full or names), None))
        self._queue.set_visibility(len(names) > 1)
        if self._wanted is not None:
            self._choose_wanted(self._wanted[0], names)
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
            if self._wanted is not None and listing.problem is None and depth is not None:
                self._open_wanted(*self._wanted)

    def _choose_wanted(self, queue: str, names: Sequence[str]) -> None:
        """Choose the queue that the address names, if the topology reads it."""
        if queue in names:
            self._queue.set_value(queue)
        elif names:
            self._wanted = None
            self._dialog.show("this topology does not read the queue that the address names", None)

    def _open_wanted(self, queue: str, letter_id: str) -> None:
        # The address may be a stranger's: its texts are not shown, lest one be taken for ours.
        self._wanted = None
        if any(letter.id == letter_id for letter in self._listed):
            self._show_letter(letter_id)
        else:
            self._dialog.show(
                f"this dead letter is not among the oldest {SHOWN} of {queue}: it was put back or "
                "deleted, or others are older; tiercel dead-letters read searches more of them",
                None,
            )

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
        self._listed = letters
        wanted = str(self._filter.value or "").casefold()
        letters = [letter for letter in letters if wanted in reason_of(letter).casefold()]
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
        self._filter.set_visibility(bool(self._listed))
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
        self._delete_button.set_visibility(chosen > 0)
        self._delete_button.set_text(f"delete the {count(chosen)} chosen")
        # "All" would include letters that the filter does not show.
        self._all_button.set_visibility(bool(self._letters) and not self._filter.value)
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
        """Show a letter, asking for the token first if it was not given."""
        if key not in self._letters:
            return
        letter_id = self._letters[key].id
        if letter_id not in self._opened:
            await self._look()
        if letter_id in self._opened:
            self._go(queue=self._queue.value, letter=letter_id)
            self._show_letter(letter_id)

    async def _read_again(self) -> None:
        """Show the body of the letter in the dialog."""
        await self._look()
        self._show_letter(self._read_id)

    def _show_letter(self, letter_id: str) -> None:
        """Show the details of a letter: its body too if that may be shown."""
        letter = next((each for each in self._listed if each.id == letter_id), None)
        if letter is None:
            return
        self._read_id = letter_id
        if letter_id in self._opened:
            kind, text = body_text(letter.body, letter.size)
            self._dialog.show(
                f"{kind}, {size(letter.size)}, from {letter.queue}: {reason_of(letter)}", text
            )
            return
        died = "at an unknown time" if letter.died is None else when(letter.died)
        self._dialog.show(
            f"dead letter {letter_id}, {size(letter.size)}, from {letter.queue}, died {died}: "
            f"{reason_of(letter)}",
            None,
            asks=True,
        )

    async def _requeue(self, chosen: Sequence[str] | None) -> None:
        """Put the chosen letters back; all of them if None."""
        if self._queue.value and chosen != []:
            await self._actions.requeue(self._queue.value, chosen, self._look)

    async def _delete(self) -> None:
        """Delete the chosen letters."""
        if self._queue.value and (chosen := self._chosen()):
            await self._actions.delete(self._queue.value, chosen, self._look)


_BOLT_TASKS = TableKind("Its tasks", TASKS.without("bolt").columns)
_SPOUT_TASKS = TableKind("Its spout tasks", SPOUT_TASKS.without("spout").columns)
_FAULTS = TableKind("Its errors", FAULTS.without("component").columns)


class ComponentSide:
    """The panel of one component: its current work, tasks and errors, as live as the page.

    It opens beside the page, or over it on a phone.
    """

    def __init__(self, actions: Actions, errors: ErrorDialog, go: Go) -> None:
        self._actions = actions
        self._go = go
        # The component that the open panel shows.
        self.name: str | None = None
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
            self._turn_button = ui.button(on_click=self._turn).classes("px-2")
            self._turn_button.props('dense outline no-caps data-testid="pause"')
            ui.html("<h2>Tasks</h2>", sanitize=False)
            self._bolt_tasks = table_of(_BOLT_TASKS)
            self._spout_tasks = table_of(_SPOUT_TASKS)
            ui.html("<h2>Errors: click one for more</h2>", sanitize=False)
            self._faults = table_of(_FAULTS)
            errors.open_from(self._faults)
        self._dialog.on("hide", self._forget)

    def open(self, name: str) -> None:
        """Open the panel for a component of the topology that was shown last."""
        if self._seen is None:
            return
        if name not in {*map(attrgetter("name"), (*self._seen.bolts, *self._seen.spouts))}:
            ui.notify("the topology has no such component", type="warning")
            return
        self.name = name
        self._go(component=name)
        self.show(self._seen)
        self._dialog.open()

    def show(self, seen: Overview) -> None:
        """Update the component, if the panel is open."""
        self._seen = seen
        if self.name is None:
            return
        bolt = next((row for row in seen.bolts if row.name == self.name), None)
        spout = next((row for row in seen.spouts if row.name == self.name), None)
        self._bolt_tasks.set_visibility(bolt is not None)
        self._spout_tasks.set_visibility(spout is not None)
        self._turn_button.set_visibility(bolt is not None)
        if bolt is not None:
            self._turn_button.set_text(_RESUME if bolt.paused else _PAUSE)
            self._heading.set_text(printable(f"bolt {bolt.name}"))
            self._doing.set_text(printable(bolt_doing(bolt, seen), kept="\n"))
            tasks = [row for row in seen.tasks if row.component == self.name]
            self._bolt_tasks.rows = rows_of(_BOLT_TASKS, tasks[:TASKS_SHOWN])
        elif spout is not None:
            self._heading.set_text(printable(f"spout {spout.name}"))
            self._doing.set_text(printable(_spout_doing(spout, seen), kept="\n"))
            places = [row for row in seen.spout_tasks if row.component == self.name]
            self._spout_tasks.rows = rows_of(_SPOUT_TASKS, places[:TASKS_SHOWN])
        self._ways.set_text(printable(_ways(self.name, seen)))
        faults = [fault for fault in seen.faults if fault.component == self.name]
        self._faults.rows = rows_of(_FAULTS, faults, attrgetter("id"))

    async def _turn(self) -> None:
        """Pause the bolt, or let it go on."""
        seen = self._seen
        bolt = next((row for row in seen.bolts if row.name == self.name), None) if seen else None
        if seen is not None and bolt is not None:
            await self._actions.pause(seen.name, bolt.name, paused=not bolt.paused)

    def _forget(self) -> None:
        self.name = None
        self._go()


def bolt_doing(row: BoltRow, seen: Overview) -> str:
    """Describe the current work of a bolt, in lines."""
    speed = seen.flow.of(row.name)
    lines = [
        f"executes {per_second(speed.a_second)} tuples per second"
        + (f", {duration(speed.latency_ms)} each" if speed.latency_ms is not None else "")
        + f"; {working(row)}",
        queued(row) or "nothing waits for it",
    ]
    if row.paused_since is not None:
        lines.insert(0, f"is paused by order since {when(row.paused_since)}")
    if row.retrying:
        lines.append(f"{count(row.retrying)} failed tuples wait for a retry")
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


class ErrorDialog:
    """Opens when a row in a table of errors is clicked: the errors that share a reason, and their
    traceback, which needs the token, because it shows code.
    """

    def __init__(self, actions: Actions, topology: Callable[[], str], go: Go) -> None:
        """``topology`` returns the name of the topology that the page shows."""
        self._actions = actions
        self._topology = topology
        self._go = go
        self._faults: dict[str, Fault] = {}
        self._shown: Fault | None = None
        self._dialog = _ThingDialog("traceback", "show its traceback", self._trace, go)

    def show(self, seen: Overview) -> None:
        """Take over the errors of a topology."""
        self._faults = {fault.id: fault for fault in seen.faults}

    def open_from(self, errors: ui.table) -> None:
        """Open the dialog when a row of this table is clicked."""
        errors.classes("tiercel-pressed")
        errors.on("rowClick", lambda event: self._click(event.args))

    async def _click(self, arguments: Any) -> None:
        """Open the dialog for a row; the browser sends (event, row, number)."""
        row = arguments[1] if isinstance(arguments, list) and len(arguments) > 1 else None
        if isinstance(row, dict):
            self.open(str(row.get("key", "")))
            if self._shown is not None and self._actions.trusted:
                await self._trace()

    def open(self, error: str) -> None:
        """Open the dialog for the error with this id."""
        fault = self._shown = self._faults.get(error)
        if fault is None:
            self._dialog.show("this error is no longer among the last errors", None)
            return
        self._go(error=error)
        self._dialog.show(_fault_line(fault), None, asks=True)

    async def _trace(self) -> None:
        if self._shown is not None:
            show = partial(self._show_trace, self._shown)
            await self._actions.tracebacks(self._topology(), show)

    def _show_trace(self, fault: Fault, known: Sequence[KnownError]) -> None:
        found = known_for(known, fault.component, fault.reason)
        if found is None:
            ui.notify("no traceback is kept of this error", type="warning")
            return
        text = printable(redact(found.first.text), kept="\n\t")
        self._dialog.show(redact(heading_of(found)), text)


def _fault_line(fault: Fault) -> str:
    """Return one line about errors that share a reason."""
    times = "once, " if fault.count == 1 else f"{count(fault.count)} times, {when(fault.first)} to "
    about = f" · last {fault.about}" if fault.about else ""
    return f"{fault.component}: {fault.reason} · {times}{when(fault.last)}{about}"
