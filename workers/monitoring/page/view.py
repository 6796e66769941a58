"""The pages of ``tiercel monitor``, live: the first one lists all topologies, the other one shows a
topology.

The first screen of a topology shows its health and its problems; the tables below show the details.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from nicegui import run, ui

from tiercel.acker.metrics.contract import Window
from tiercel.spark_jobs.logs.formatters import printable
from tiercel.workers.control.contract import State
from tiercel.workers.monitoring import tables
from tiercel.workers.monitoring.findings import Finding, Grade, Health
from tiercel.workers.monitoring.overview import Overview
from tiercel.workers.monitoring.page import dialogs, sections
from tiercel.workers.monitoring.page.actions import Actions, TokenPrompt
from tiercel.workers.monitoring.page.drawing import CHARTS, ChartKind, chart_of, graph_of
from tiercel.workers.monitoring.page.limits import Lock
from tiercel.workers.monitoring.sampler import LOOK_S, Sample, Sampler
from tiercel.workers.monitoring.watcher import Addresses, DeadLetterCache, Look

# More would push the charts off the first screen.
_FINDINGS = 6
_GRADES = [grade.value for grade in Grade]
_ORDERS = {
    State.ACTIVE: ("activate", "activate: take messages again"),
    State.DEACTIVATED: ("deactivate", "deactivate: take no more messages"),
}
_LOOK = Path(__file__).with_name("look")
STYLE = _LOOK / "page.css"
# In the head of the page, before the scripts whose failure it detects.
LOAD_AGAIN = f"<script>{(_LOOK / 'load_again.js').read_text('utf-8')}</script>"
# The address of the first page, relative to any page.
_ALL = "./"
_WINDOWS = {
    Window.TEN_MINUTES: "10 min",
    Window.THREE_HOURS: "3 h",
    Window.ONE_DAY: "1 day",
    Window.ALL_TIME: "all time",
}
_LEGEND = (
    ("spout", "spout"),
    ("calm", "bolt"),
    ("engaged", "busy half of the time"),
    ("hot", "at its limit"),
    ("failing", "fails now"),
    ("gone", "without a process"),
)


class Page:
    """The page of one browser."""

    def __init__(
        self,
        sampler: Sampler,
        addresses: Addresses,
        cache: DeadLetterCache,
        lock: Lock,
        address: sections.PageAddress,
    ) -> None:
        self._sampler = sampler
        self._topology = address.topology or ""
        self._address = address
        # True until the thing that the address names has been opened.
        self._arriving = True
        self._window = Window.TEN_MINUTES
        self._actions = Actions(addresses, cache, TokenPrompt(lock))
        self._tables: dict[tables.TableKind[Any], ui.table] = {}
        with _header():
            self._choice = ui.select(
                [], label="topology", on_change=lambda event: self._choose(event.value)
            )
            self._choice.props('dense dark options-dense outlined data-testid="topology"')
        self._errors = dialogs.ErrorDialog(self._actions, lambda: self._topology, self._go)
        self._side = dialogs.ComponentSide(self._actions, self._errors, self._go)
        with ui.column().classes("tiercel-page") as self._page:
            self._first_screen()
            self._troubles(cache)
            self._details()
        ui.timer(LOOK_S, self._refresh, immediate=True)

    def _first_screen(self) -> None:
        self._problems = _problems()
        self._verdict = Verdict(self._turn, self._side.open)
        self._choose_window()
        self._tiles = Tiles()
        with ui.element("div").classes("tiercel-pictures"):
            with ui.element("div").classes("tiercel-charts"):
                self._charts = [LineChart(kind) for kind in CHARTS]
            self._draw_graph()

    def _troubles(self, cache: DeadLetterCache) -> None:
        with _section("Errors"):
            ui.label("one line per reason; click one for more").classes("tiercel-faint")
            self._tables[tables.FAULTS] = sections.table_of(tables.FAULTS)
            self._errors.open_from(self._tables[tables.FAULTS])
        with _section(sections.DEAD.title):
            self._letters = dialogs.LetterList(self._actions, cache, self._go)

    def _details(self) -> None:
        for kind in sections.DETAILS:
            with _section(kind.title):
                self._tables[kind] = sections.table_of(kind)
        for long in (tables.BOLTS, tables.TASKS, tables.FAULTS):
            self._tables[long].classes("tiercel-long")
        # The other tables have too few rows to need it.
        self._tables[tables.TASKS].props("virtual-scroll")

    def _choose_window(self) -> None:
        with ui.row().classes("items-center gap-2 no-wrap"):
            ui.label("counted over").classes("tiercel-faint")
            windows = ui.toggle(
                _WINDOWS, value=self._window, on_change=lambda event: self._look_back(event.value)
            )
            windows.props('dense no-caps outline padding="2px 10px" data-testid="window"')

    def _draw_graph(self) -> None:
        with _section("Topology"):
            with ui.element("div").classes("tiercel-legend"):
                for tone, says in _LEGEND:
                    with ui.element("span").classes(f"tone-{tone}"):
                        ui.element("i")
                        ui.label(says).style("display: inline")
                ui.label("press a component for more")
            self._graph = TopologyGraph(self._side.open)

    async def _turn(self, state: State) -> None:
        await self._actions.turn(self._topology, state)

    def _choose(self, topology: str | None) -> None:
        if topology is not None and topology != self._topology:
            self._topology = topology
            self._go()
            self._letters.clear()

    def _go(self, **thing: str) -> None:
        """Give the page the address of this thing of its topology, which can be sent to others.

        The browser's back button shows the thing before it.
        """
        if not thing and self._side.name is not None:
            thing = {"component": self._side.name}
        address = sections.PageAddress(topology=self._topology, **thing)
        if address != self._address:
            self._address = address
            ui.navigate.history.push(address.text)

    def _arrive(self) -> None:
        """Open the thing that the address names."""
        address = self._address
        if address.component is not None:
            self._side.open(address.component)
        if address.error is not None:
            self._errors.open(address.error)
        if address.queue is not None and address.letter is not None:
            self._letters.open(address.queue, address.letter)

    async def _look_back(self, window: Window) -> None:
        self._window = window
        await self._refresh()

    async def _refresh(self) -> None:
        asked = self._topology, self._window
        look = await run.io_bound(self._sampler.look, *asked)
        # None: the server is stopping. A slow reading may arrive after the operator has chosen
        # another topology or window.
        if look is not None and asked == (self._topology, self._window):
            self._show(look)
            if look.overview is not None:
                await self._letters.refresh(look.overview.queues)

    def _show(self, look: Look) -> None:
        self._problems.set_text(" · ".join(look.problems.lines))
        self._problems.set_visibility(bool(look.problems.lines))
        if list(self._choice.options) != list(look.topologies):
            self._choice.set_options(list(look.topologies))
        seen = look.overview
        # The figures of a topology that was forgotten are hidden; while a server is away they stay.
        unknown = seen is None and not look.problems.lines
        self._page.classes(remove="unknown", add="unknown" if unknown else "")
        if seen is None:
            self._verdict.say("" if look.problems.lines else "there is no such topology")
            return
        if self._choice.value != seen.name:
            self._choice.set_value(seen.name)
        self._verdict.show(seen, look)
        self._tiles.show(seen)
        self._errors.show(seen)
        self._side.show(seen)
        if self._arriving:
            self._arriving = False
            self._arrive()
        for kind, rows in sections.tables_of(seen).items():
            self._tables[kind].rows = rows
        samples = self._sampler.samples(seen.name, long=self._window is not Window.TEN_MINUTES)
        for chart in self._charts:
            chart.show(samples)
        self._graph.show(seen)


class AllTopologies:
    """The first page: one row per topology, the ones in trouble first."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        with _header():
            ui.label("all topologies")
        with ui.column().classes("tiercel-page"):
            self._problems = _problems()
            with _section(sections.ALL.title):
                self._note = ui.label().classes("tiercel-faint")
                self._table = sections.table_of(sections.ALL)
                self._table.add_slot("body-cell-topology", sections.LINK_CELL)
                self._table.add_slot("body-cell-health", sections.BADGE_CELL)
        ui.timer(LOOK_S, self._refresh, immediate=True)

    async def _refresh(self) -> None:
        seen = await run.io_bound(self._sampler.all)
        if seen is None:  # the server is stopping
            return
        looks, problems = seen
        self._problems.set_text(" · ".join(problems))
        self._problems.set_visibility(bool(problems))
        found = sections.topology_rows(looks)
        self._table.rows = found
        self._table.set_visibility(bool(found))
        none = "no topology has run here yet: start one, tiercel run MODULE:TOPOLOGY"
        self._note.set_text("" if found or problems else none)


@contextmanager
def _header() -> Iterator[None]:
    """Make the head of a page, with its styles; elements made meanwhile stand in its middle."""
    ui.add_head_html(LOAD_AGAIN)
    ui.add_css(STYLE)
    ui.colors(primary="#23689b", accent="#0f4770")
    with ui.header().classes("tiercel-head"):
        with ui.link(target=_ALL).classes("tiercel-home").props("aria-label='all topologies'"):
            ui.icon("home")
            ui.label("tiercel").classes("tiercel-word")
        yield
        ui.space()
        dark = ui.dark_mode(None)
        with (
            ui.button(icon="contrast").props("flat dense color=white aria-label='dark or light'"),
            ui.menu(),
        ):
            for text, value in (("as the system", None), ("light", False), ("dark", True)):
                ui.menu_item(text, on_click=lambda value=value: dark.set_value(value))


def _problems() -> ui.label:
    """Make the line of the servers' problems, which is hidden."""
    label = ui.label().classes("tiercel-problems").props('data-testid="problems"')
    label.set_visibility(False)
    return label


def _section(title: str) -> ui.element:
    section = ui.element("section").classes("tiercel-card tiercel-section")
    with section:
        ui.html(f"<h2>{title}</h2>", sanitize=False)
    return section


class TopologyGraph(ui.element, component="look/topology_graph.js"):
    """The graph; calls ``on_pick`` with the name of a component that is clicked."""

    def __init__(self, on_pick: Callable[[str], Awaitable[None] | None]) -> None:
        super().__init__()
        self._props.update(nodes=[], edges=[], width=1, height=1)
        self.props('data-testid="graph"')
        self.on("pick", lambda event: on_pick(str(event.args)))

    def show(self, overview: Overview) -> None:
        """Draw a topology."""
        self._props.update(graph_of(overview))
        self.update()


class LineChart(ui.element, component="look/line_chart.js"):
    """One chart."""

    def __init__(self, kind: ChartKind) -> None:
        super().__init__()
        self._kind = kind
        self._props.update(caption=kind.caption, unit=kind.unit, times=[], lines=[], ahead=0)
        self.props(f'data-testid="{kind.key}"')

    def show(self, samples: Sequence[Sample]) -> None:
        """Draw these samples, with the times of this machine's zone."""
        offset = datetime.now().astimezone().utcoffset() or timedelta()
        self._props.update(chart_of(self._kind, samples), ahead=offset // timedelta(milliseconds=1))
        self.update()


@dataclass(frozen=True)
class _Tile:
    name: str
    figure: Callable[[Overview], Any]
    shown: Callable[[Any], str] = tables.count
    # Any figure above 0 is bad news.
    alarms: bool = False


_TILES = (
    _Tile("acked/s now", attrgetter("flow.acked_a_second"), tables.per_second),
    _Tile("p50 now", attrgetter("flow.p50_ms"), sections.latency),
    _Tile("p99 now", attrgetter("flow.p99_ms"), sections.latency),
    _Tile("pending trees", attrgetter("own.pending")),
    _Tile("oldest pending", attrgetter("own.oldest_pending_s"), tables.seconds),
    _Tile("failed", lambda seen: sum(one.counts["failed"] for one in seen.spouts), alarms=True),
    _Tile("timeouts", attrgetter("acker.timeouts"), alarms=True),
    _Tile("dead letters", sections.dead_in, alarms=True),
)


class Tiles:
    """A row of figures, or several rows on a narrow screen."""

    def __init__(self) -> None:
        self._labels: dict[str, tuple[ui.element, ui.label]] = {}
        with ui.element("div").classes("tiercel-tiles"):
            for tile in _TILES:
                with ui.element("div").classes("tiercel-tile") as box:
                    label = ui.label("-").props(f'data-testid="tile {tile.name}"')
                    ui.label(tile.name)
                self._labels[tile.name] = box, label

    def show(self, seen: Overview) -> None:
        """Show the figures of a topology."""
        for tile in _TILES:
            box, label = self._labels[tile.name]
            figure = tile.figure(seen)
            label.set_text(tile.shown(figure))
            box.classes(remove="bad", add="bad" if tile.alarms and figure > 0 else "")


class Verdict:
    """The card with the badge, the problems, and the button to activate or deactivate."""

    def __init__(
        self, turn: Callable[[State], Awaitable[None]], on_pick: Callable[[str], None]
    ) -> None:
        """``turn`` gives an order; ``on_pick`` is called with a component that is clicked."""
        self._on_pick = on_pick
        self._shown: Health | None = None
        self._buttons: dict[State, ui.button] = {}
        with ui.element("section").classes("tiercel-card tiercel-state") as self._card:
            with ui.element("div").classes("tiercel-first"):
                self._badge = ui.label().classes("tiercel-badge").props('data-testid="badge"')
                with ui.element("div").classes("grow"):
                    self._state = ui.label().props('data-testid="state"')
                    self._driver = ui.label().classes("tiercel-faint")
                for state, (key, text) in _ORDERS.items():
                    button = ui.button(text, on_click=partial(turn, state))
                    button.props(f'dense outline no-caps data-testid="{key}"').classes("px-2")
                    button.set_visibility(False)
                    self._buttons[state] = button
            self._hurts = ui.element("div").classes("tiercel-hurts").props('data-testid="hurts"')

    def say(self, text: str) -> None:
        """Show a text in place of a topology's state."""
        self._shown = None
        for button in self._buttons.values():
            button.set_visibility(False)
        self._state.set_text(printable(text))
        self._badge.set_text("?")
        self._card.classes(remove=" ".join(_GRADES))
        self._hurts.clear()
        self._driver.set_text("")

    def show(self, seen: Overview, look: Look) -> None:
        """Show the health of a topology."""
        ordered = "" if seen.running else f" (ordered: {seen.ordered.value})"
        self._state.set_text(f"{seen.name} is {seen.state}{ordered}")
        self._driver.set_text(_about(seen, look.at))
        for state, button in self._buttons.items():
            button.set_visibility(state is not seen.ordered)
        health = look.health
        if health == self._shown:
            return
        self._shown = health
        self._badge.set_text(health.badge)
        self._card.classes(remove=" ".join(_GRADES), add=health.grade.value)
        self._hurts.clear()
        with self._hurts:
            for finding in health.findings[:_FINDINGS]:
                self._add(finding)
            left = len(health.findings) - _FINDINGS
            if left > 0:
                ui.label(f"and {left} more").classes("tiercel-faint")
            if health.grade is Grade.WELL:
                ui.label(
                    "nothing fails, no bolt is at its limit, there are no dead letters"
                ).classes("tiercel-faint")

    def _add(self, finding: Finding) -> None:
        label: Any = ui.label(printable(finding.sentence))
        label.classes(f"tiercel-hurt {finding.level.value}")
        if finding.component is not None:
            label.classes("opens").on("click", partial(self._on_pick, finding.component))


def _about(seen: Overview, at: datetime) -> str:
    driver = seen.driver_at
    parts = [
        f"driver on {driver.host}, pid {driver.pid}, since {tables.when(driver.since)}"
        if driver
        else "",
        printable(seen.executors_said),
        f"counted for {tables.span(seen.seconds)}",
        f"seen {tables.when(at)}",
    ]
    return " · ".join(part for part in parts if part)
