"""The page of ``tiercel monitor``: one topology at a time, live."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nicegui import run, ui

from tiercel.acker.metrics.windows import Window
from tiercel.workers.control.contract import State
from tiercel.workers.monitoring.overview import Overview
from tiercel.workers.monitoring.page.actions import Actions
from tiercel.workers.monitoring.page.charts import depth_options, graph_options, graph_size
from tiercel.workers.monitoring.page.letters import Letters, table_of
from tiercel.workers.monitoring.page.tables import DEAD, OWN, tables_of
from tiercel.workers.monitoring.page.token import Lock, TokenPrompt
from tiercel.workers.monitoring.page.tracebacks import TracebackDialog
from tiercel.workers.monitoring.station import LOOK_S, Station
from tiercel.workers.monitoring.tables import (
    ACKER,
    BOLTS,
    ERRORS,
    ONCE,
    QUEUES,
    SPOUTS,
    TASKS,
    TableKind,
)
from tiercel.workers.monitoring.watcher import Addresses, Look
from tiercel.workers.monitoring.wording import count, per_second, seconds, span, when

_WINDOWS = {
    Window.TEN_MINUTES: "10 min",
    Window.THREE_HOURS: "3 h",
    Window.ONE_DAY: "1 day",
    Window.ALL_TIME: "all time",
}
_TILES = ("acked/s", "pending trees", "oldest pending", "failed", "timeouts", "dead letters")
STYLE = """
<style>
body { overflow-x: hidden; }
.nicegui-content { padding: 0; }
.tiercel-page { width: 100%; max-width: 1500px; margin: 0 auto; padding: 8px 12px 48px; gap: 14px; }
.tiercel-tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(118px, 1fr)); }
.tiercel-tiles { gap: 8px; width: 100%; }
.tiercel-tile { border: 1px solid rgba(128,128,128,.35); border-radius: 8px; padding: 6px 10px; }
.tiercel-tile b { display: block; font-size: 1.25rem; font-weight: 600; }
.tiercel-tile b { font-variant-numeric: tabular-nums; }
.tiercel-tile span { font-size: .78rem; opacity: .8; }
.tiercel-section { width: 100%; min-width: 0; }
.tiercel-section h2 { font-size: 1rem; line-height: 1.6rem; font-weight: 600; margin: 0; }
.tiercel-section .q-table td, .tiercel-section .q-table th { font-variant-numeric: tabular-nums; }
.tiercel-body { white-space: pre-wrap; overflow: auto; overflow-wrap: anywhere; max-height: 65vh; }
.tiercel-body { font-family: monospace; font-size: .8rem; padding: 6px; }
.tiercel-body { border: 1px solid rgba(128,128,128,.35); }
.tiercel-wide { width: 100%; overflow-x: auto; }
.body--dark .tiercel-page svg text { fill: #d7dce2 !important; stroke: none !important; }
.tiercel-page svg text { fill: #1f2933; stroke: none !important; }
</style>
"""


class Page:
    """The page of one browser."""

    def __init__(
        self, station: Station, addresses: Addresses, lock: Lock, topology: str | None
    ) -> None:
        self._station = station
        self._topology = topology
        self._window = Window.TEN_MINUTES
        self._actions = Actions(addresses, TokenPrompt(lock))
        self._tables: dict[TableKind[Any], ui.table] = {}
        self._tiles: dict[str, ui.label] = {}
        self._shape: object = None
        ui.add_head_html(STYLE)
        ui.colors(primary="#23689b", accent="#0f4770")
        self._header()
        with ui.column().classes("tiercel-page"):
            self._problems = (
                ui.label()
                .classes("w-full bg-negative text-white rounded p-3")
                .props('data-testid="problems"')
            )
            self._state = ui.label().classes("text-sm").props('data-testid="state"')
            with ui.element("div").classes("tiercel-tiles"):
                for name in _TILES:
                    self._tile(name)
            self._graph_box = _section("Topology").classes("tiercel-wide")
            for kind in (SPOUTS, BOLTS, TASKS, ACKER, ONCE, QUEUES, OWN):
                self._table(kind)
            with _section("Depths, the last three hours"):
                self._depths = (
                    ui.echart(depth_options([]), renderer="svg")
                    .classes("w-full h-72")
                    .props('data-testid="depths"')
                )
            self._table(ERRORS)
            for long in (TASKS, ERRORS):
                self._tables[long].style("max-height: 340px").props("virtual-scroll")
            with _section(DEAD.title):
                self._letters = Letters(self._actions)
        ui.timer(LOOK_S, self._refresh, immediate=True)

    def _header(self) -> None:
        with ui.header().classes("items-center gap-2 py-1 px-3 flex-wrap"):
            ui.label("tiercel").classes("text-lg font-bold")
            self._choice = ui.select(
                [], label="topology", on_change=lambda event: self._choose(event.value)
            )
            self._choice.props("dense dark options-dense outlined").classes("min-w-36").props(
                'data-testid="topology"'
            )
            windows = ui.toggle(
                _WINDOWS, value=self._window, on_change=lambda event: self._look_back(event.value)
            )
            windows.props("dense no-caps color=primary toggle-color=accent").props(
                'data-testid="window"'
            )
            ui.space()
            for state, text in ((State.ACTIVE, "activate"), (State.DEACTIVATED, "deactivate")):
                ui.button(text, on_click=self._turner(state)).props(
                    "dense outline color=white no-caps"
                ).props(f'data-testid="{text}"')
            dark = ui.dark_mode(None)
            with (
                ui.button(icon="contrast").props(
                    "flat dense color=white aria-label='dark or light'"
                ),
                ui.menu(),
            ):
                for text, value in (("as the system", None), ("light", False), ("dark", True)):
                    ui.menu_item(text, on_click=lambda value=value: dark.set_value(value))

    def _turner(self, state: State) -> Callable[[], Any]:
        async def turn() -> None:
            if self._topology is not None:
                await self._actions.turn(self._topology, state)

        return turn

    def _tile(self, name: str) -> None:
        with ui.element("div").classes("tiercel-tile"):
            self._tiles[name] = (
                ui.label("-").classes("text-xl font-semibold").props(f'data-testid="tile {name}"')
            )
            ui.label(name).classes("text-xs")

    def _table(self, kind: TableKind[Any]) -> None:
        with _section(kind.title):
            self._tables[kind] = table_of(kind)
            if kind is ERRORS:
                TracebackDialog(self._tables[kind], self._actions, lambda: self._topology)

    def _choose(self, topology: str | None) -> None:
        self._topology = topology
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

    def _show(self, look: Look) -> None:
        self._problems.set_text(" · ".join(look.problems))
        self._problems.set_visibility(bool(look.problems))
        if list(self._choice.options) != list(look.topologies):
            self._choice.set_options(list(look.topologies))
        seen = look.overview
        if seen is None:
            self._state.set_text("" if look.problems else _nothing(look, self._topology))
            return
        if self._topology is None:
            self._topology = seen.name
        if self._choice.value != seen.name and self._topology == seen.name:
            self._choice.set_value(seen.name)
        driver = "" if seen.driver or seen.state == "not running" else " · no driver"
        self._state.set_text(
            f"{seen.name} is {seen.state}{driver} · counted for {span(seen.seconds)} · "
            f"{when(look.at)}"
        )
        for kind, rows in tables_of(seen).items():
            self._tables[kind].rows = rows
        self._show_tiles(seen)
        self._show_charts(seen)
        self._letters.offer([queue.name for queue in seen.queues])

    def _show_tiles(self, seen: Overview) -> None:
        self._tiles["acked/s"].set_text(per_second(seen.acked_a_second))
        self._tiles["pending trees"].set_text(count(seen.own.pending))
        self._tiles["oldest pending"].set_text(seconds(seen.own.oldest_pending_s))
        self._tiles["failed"].set_text(count(sum(spout.failed for spout in seen.spouts)))
        self._tiles["timeouts"].set_text(count(seen.acker.timeouts))
        self._tiles["dead letters"].set_text(
            count(sum(queue.dead_lettered or 0 for queue in seen.queues))
        )

    def _show_charts(self, seen: Overview) -> None:
        options = graph_options(seen)
        if self._shape != (seen.name, len(seen.spouts), len(seen.bolts), len(seen.edges)):
            self._shape = (seen.name, len(seen.spouts), len(seen.bolts), len(seen.edges))
            wide, high = graph_size(seen)
            self._graph_box.clear()
            with self._graph_box:
                ui.html("<h2>Topology</h2>", sanitize=False)
                self._graph = ui.echart(options, renderer="svg").props('data-testid="graph"')
                self._graph.style(f"height: {high + 40}px; min-width: {wide}px; width: 100%")
        else:
            self._graph.options.update(options)
            self._graph.update()
        self._depths.options.update(depth_options(self._station.samples(seen.name)))
        self._depths.update()


def _nothing(look: Look, topology: str | None) -> str:
    if look.topologies:
        return f"there is no topology {topology}"
    return "no topology has run here yet: start one, tiercel run MODULE:TOPOLOGY"


def _section(title: str) -> ui.element:
    section = ui.element("section").classes("tiercel-section")
    with section:
        ui.html(f"<h2>{title}</h2>", sanitize=False)
    return section
