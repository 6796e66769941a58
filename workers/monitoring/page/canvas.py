"""The drawings of the page: elements whose JavaScript is in ``look``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from nicegui import ui

from tiercel.workers.monitoring.history import Sample
from tiercel.workers.monitoring.overview import Overview
from tiercel.workers.monitoring.page.drawing import graph_of
from tiercel.workers.monitoring.page.lines import ChartKind, chart_of

_LOOK = Path(__file__).with_name("look")
STYLE = _LOOK / "page.css"
# In the head of the page, for it must be there before the scripts that it looks after.
LOAD_AGAIN = f"<script>{(_LOOK / 'load_again.js').read_text()}</script>"


class TopologyGraph(ui.element, component="look/topology_graph.js"):
    """The graph; ``on_pick`` is called with the name of a component that is pressed."""

    def __init__(self, on_pick: Callable[[str], Awaitable[None] | None]) -> None:
        super().__init__()
        self._props["nodes"] = []
        self._props["edges"] = []
        self._props["width"] = 1
        self._props["height"] = 1
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
        self._props["caption"] = kind.caption
        self._props["unit"] = kind.unit
        self._props["times"] = []
        self._props["lines"] = []
        self.props(f'data-testid="{kind.key}"')

    def show(self, samples: Sequence[Sample]) -> None:
        """Draw these samples."""
        self._props.update(chart_of(self._kind, samples))
        self.update()
