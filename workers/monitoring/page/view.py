"""The page of ``tiercel monitor``: one topology at a time, live.

The first screen says whether it is well and where it hurts; the tables below say the rest.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from nicegui import run, ui

from tiercel.acker.metrics.windows import Window
from tiercel.workers.control.contract import State
from tiercel.workers.monitoring.overview import Overview
from tiercel.workers.monitoring.page.actions import Actions
from tiercel.workers.monitoring.page.canvas import LOAD_AGAIN, STYLE, LineChart, TopologyGraph
from tiercel.workers.monitoring.page.component import ComponentSide
from tiercel.workers.monitoring.page.letters import LetterList, table_of
from tiercel.workers.monitoring.page.lines import CHARTS
from tiercel.workers.monitoring.page.tables import DEAD, OWN, tables_of
from tiercel.workers.monitoring.page.tiles import Tiles
from tiercel.workers.monitoring.page.token import Lock, TokenPrompt
from tiercel.workers.monitoring.page.tracebacks import TracebackDialog
from tiercel.workers.monitoring.page.verdict import Verdict
from tiercel.workers.monitoring.shelf import Shelf
from tiercel.workers.monitoring.station import LOOK_S, Station
from tiercel.workers.monitoring.tables import (
    ACKER,
    BOLTS,
    FAULTS,
    ONCE,
    PROCESSES,
    QUEUES,
    SPOUT_TASKS,
    SPOUTS,
    TASKS,
    TableKind,
)
from tiercel.workers.monitoring.watcher import Addresses, Look

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
        station: Station,
        addresses: Addresses,
        shelf: Shelf,
        lock: Lock,
        topology: str | None,
    ) -> None:
        self._station = station
        self._topology = topology
        self._window = Window.TEN_MINUTES
        self._actions = Actions(addresses, shelf, TokenPrompt(lock))
        self._tables: dict[TableKind[Any], ui.table] = {}
        ui.add_head_html(LOAD_AGAIN)
        ui.add_css(STYLE)
        ui.colors(primary="#23689b", accent="#0f4770")
        self._header()
        self._tracebacks = TracebackDialog(self._actions, lambda: self._topology)
        self._side = ComponentSide(self._tracebacks)
        with ui.column().classes("tiercel-page"):
            self._first_screen()
            self._troubles(shelf)
            self._details()
        ui.timer(LOOK_S, self._refresh, immediate=True)

    def _first_screen(self) -> None:
        self._problems = ui.label().classes("tiercel-problems")
        self._problems.props('data-testid="problems"').set_visibility(False)
        self._verdict = Verdict(self._turn, self._side.open)
        self._choose_window()
        self._tiles = Tiles()
        with ui.element("div").classes("tiercel-pictures"):
            with ui.element("div").classes("tiercel-charts"):
                self._charts = [LineChart(kind) for kind in CHARTS]
            self._draw_graph()

    def _troubles(self, shelf: Shelf) -> None:
        with _section("Errors"):
            ui.label("one line per reason; press one for its traceback").classes("tiercel-faint")
            self._tables[FAULTS] = table_of(FAULTS)
            self._tracebacks.open_from(self._tables[FAULTS])
        with _section(DEAD.title):
            self._letters = LetterList(self._actions, shelf)

    def _details(self) -> None:
        for kind in (SPOUTS, BOLTS, TASKS, SPOUT_TASKS, PROCESSES, QUEUES, ACKER, ONCE, OWN):
            with _section(kind.title):
                self._tables[kind] = table_of(kind)
        for long in (BOLTS, TASKS, FAULTS):
            self._tables[long].classes("tiercel-long")
        # Of the others too few are shown to be worth it.
        self._tables[TASKS].props("virtual-scroll")

    def _header(self) -> None:
        with ui.header().classes("tiercel-head"):
            ui.label("tiercel").classes("text-lg font-bold tiercel-word")
            self._choice = ui.select(
                [], label="topology", on_change=lambda event: self._choose(event.value)
            )
            self._choice.props('dense dark options-dense outlined data-testid="topology"')
            ui.space()
            dark = ui.dark_mode(None)
            with (
                ui.button(icon="contrast").props(
                    "flat dense color=white aria-label='dark or light'"
                ),
                ui.menu(),
            ):
                for text, value in (("as the system", None), ("light", False), ("dark", True)):
                    ui.menu_item(text, on_click=lambda value=value: dark.set_value(value))

    def _choose_window(self) -> None:
        with ui.row().classes("items-center gap-2 no-wrap"):
            ui.label("counted over").classes("tiercel-faint")
            windows = ui.toggle(
                _WINDOWS, value=self._window, on_change=lambda event: self._look_back(event.value)
            )
            windows.props('dense no-caps outline padding="2px 10px" data-testid="window"')

    def _draw_graph(self) -> None:
        with _section("Topology"):
            with ui.element("div").classes("tiercel-legend tiercel-graph-legend"):
                for tone, says in _LEGEND:
                    with ui.element("span").classes(f"tone-{tone}"):
                        ui.element("i")
                        ui.label(says).style("display: inline")
                ui.label("press a component for more")
            self._graph = TopologyGraph(self._side.open)

    async def _turn(self, state: State) -> None:
        if self._topology is not None:
            await self._actions.turn(self._topology, state)

    def _choose(self, topology: str | None) -> None:
        self._topology = topology
        if topology is not None:
            # To be linked, and to be the same when the page is loaded again.
            ui.navigate.history.replace(f"?{urlencode({'topology': topology})}")
        self._letters.clear()

    async def _look_back(self, window: Window) -> None:
        self._window = window
        await self._refresh()

    async def _refresh(self) -> None:
        asked = self._topology, self._window
        look = await run.io_bound(self._station.look, *asked)
        # None: the server is ending. And a slow look may come after the operator has chosen another
        # topology or window.
        if look is not None and asked == (self._topology, self._window):
            self._show(look)
            if look.overview is not None:
                await self._letters.refresh(look.overview.queues)

    def _show(self, look: Look) -> None:
        self._problems.set_text(" · ".join(look.problems))
        self._problems.set_visibility(bool(look.problems))
        if list(self._choice.options) != list(look.topologies):
            self._choice.set_options(list(look.topologies))
        seen = look.overview
        if seen is None:
            self._verdict.say("" if look.problems else _nothing(look, self._topology))
            return
        if self._topology is None:
            self._topology = seen.name
        if self._choice.value != seen.name and self._topology == seen.name:
            self._choice.set_value(seen.name)
        self._verdict.show(seen, look.at)
        self._tiles.show(seen)
        self._side.show(seen)
        for kind, rows in tables_of(seen).items():
            self._tables[kind].rows = rows
        self._draw(seen)

    def _draw(self, seen: Overview) -> None:
        samples = self._station.samples(seen.name, long=self._window is not Window.TEN_MINUTES)
        for chart in self._charts:
            chart.show(samples)
        self._graph.show(seen)


def _nothing(look: Look, topology: str | None) -> str:
    if look.topologies:
        return f"there is no topology {topology}"
    return "no topology has run here yet: start one, tiercel run MODULE:TOPOLOGY"


def _section(title: str) -> ui.element:
    section = ui.element("section").classes("tiercel-card tiercel-section")
    with section:
        ui.html(f"<h2>{title}</h2>", sanitize=False)
    return section
