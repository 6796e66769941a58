"""The graph and the chart of the page, as options of ECharts. Pure.

Both are drawn as SVG, so that the page's style sheet colours their text in light and in dark mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tiercel.workers.monitoring.history import DepthSample
from tiercel.workers.monitoring.overview import Overview
from tiercel.workers.monitoring.wording import per_second

# The components of each layer, from left to right.
Rows = list[list[str]]
ROW_PX = 110
COLUMN_PX = 150
_SPOUT = "#00897b"
_BOLT = "#3f6fb5"
_GRID = "rgba(128, 128, 128, 0.25)"
# Each to be seen on white and on black.
_LINES = ["#3f7fd0", "#e07b39", "#c2405b", "#2fa07a", "#8e6bbf", "#b59a2c", "#4aa3b8", "#d06fa5"]
_NO_HTML = {"renderMode": "richText"}


def layers(overview: Overview) -> Rows:
    """Spouts first, then each bolt below all that it subscribes to.

    Within a layer below its sources.

    On a cycle there is no such order: of the edges that close it, those go upwards.
    """
    depth = _depths(overview)
    rows: Rows = [[] for _ in range(1 + max(depth.values(), default=0))]
    for name, row in depth.items():
        rows[row].append(name)
    place: dict[str, float] = {}
    for names in rows:
        for name in names:
            above = [
                place[row.edge.source]
                for row in overview.edges
                if row.edge.target == name and row.edge.source in place
            ]
            place[name] = sum(above) / len(above) if above else 0.0
        names.sort(key=lambda name: place[name])
        for at, name in enumerate(names):
            place[name] = at - (len(names) - 1) / 2
    return rows


def _depths(overview: Overview) -> dict[str, int]:
    """The layer of each component."""
    depth = {spout.name: 0 for spout in overview.spouts}
    sources: dict[str, set[str]] = {bolt.name: set() for bolt in overview.bolts}
    for row in overview.edges:
        sources[row.edge.target].add(row.edge.source)
    left = list(sources)
    while left:
        ready = [name for name in left if sources[name] <= depth.keys()]
        if not ready:
            ready = [next((name for name in left if sources[name] & depth.keys()), left[0])]
        layer = {
            name: 1 + max((depth[each] for each in sources[name] & depth.keys()), default=0)
            for name in ready
        }
        depth |= layer
        left = [name for name in left if name not in layer]
    return depth


def graph_size(overview: Overview) -> tuple[int, int]:
    """Pixels: as wide as its widest layer needs, and as high as it has layers."""
    rows = layers(overview)
    return COLUMN_PX * max(map(len, rows)), ROW_PX * len(rows)


def graph_options(overview: Overview) -> dict[str, Any]:
    """Spouts and bolts, and on each edge its tuples per second."""
    rows = layers(overview)
    half = max(map(len, rows)) / 2
    return {
        "animation": False,
        "grid": {"left": 0, "right": 0, "top": 0, "bottom": 0},
        "xAxis": {"type": "value", "show": False, "min": -half - 0.25, "max": half},
        "yAxis": {
            "type": "value",
            "show": False,
            "inverse": True,
            "min": -0.4,
            "max": len(rows) - 0.4,
        },
        "series": [_graph_series(overview, rows)],
    }


def _graph_series(overview: Overview, rows: Rows) -> dict[str, Any]:
    return {
        "type": "graph",
        "coordinateSystem": "cartesian2d",
        "symbolSize": 22,
        "edgeSymbol": ["none", "arrow"],
        "edgeSymbolSize": 8,
        "label": {
            "show": True,
            "position": "left",
            "width": COLUMN_PX - 50,
            "overflow": "breakAll",
            "lineHeight": 15,
        },
        "edgeLabel": {
            "show": True,
            "fontSize": 11,
            "rotate": 0,
            "align": "left",
            "padding": [0, 0, 0, 8],
        },
        "lineStyle": {"color": "#8a93a0", "opacity": 1},
        "silent": True,
        "data": _nodes(overview, rows),
        "links": _links(overview, rows),
    }


def depth_options(samples: Sequence[DepthSample]) -> dict[str, Any]:
    """Depths over time, a line each; a gap where a server did not answer."""
    names = list(dict.fromkeys(name for sample in samples for name in sample.depths))
    return {
        "animation": False,
        "color": _LINES,
        "tooltip": {"trigger": "axis", **_NO_HTML},
        "legend": {"type": "scroll", "bottom": 0},
        "grid": {"left": 8, "right": 16, "top": 16, "bottom": 40, "containLabel": True},
        "xAxis": {"type": "time", "axisLabel": {"hideOverlap": True}},
        "yAxis": {
            "type": "value",
            "minInterval": 1,
            "min": 0,
            "splitLine": {"lineStyle": {"color": _GRID}},
        },
        "series": [
            {
                "name": name,
                "type": "line",
                "showSymbol": False,
                "data": [
                    [round(sample.at.timestamp() * 1000), sample.depths.get(name)]
                    for sample in samples
                ],
            }
            for name in names
        ],
    }


def _nodes(overview: Overview, rows: Rows) -> list[dict[str, Any]]:
    spouts = {spout.name for spout in overview.spouts}
    return [
        {
            "name": name,
            "value": [at - (len(names) - 1) / 2, row],
            "itemStyle": {"color": _SPOUT if name in spouts else _BOLT},
            "symbol": "roundRect" if name in spouts else "circle",
        }
        for row, names in enumerate(rows)
        for at, name in enumerate(names)
    ]


def _links(overview: Overview, rows: Rows) -> list[dict[str, Any]]:
    return [
        {
            "source": row.edge.source,
            "target": row.edge.target,
            "label": {"show": True, "formatter": _edge_label(row.edge.stream, row.a_second)},
            "lineStyle": {"curveness": bend, "width": 2 if row.a_second else 1},
        }
        for row, bend in zip(overview.edges, _bends(overview, rows), strict=True)
    ]


def _edge_label(stream: str, a_second: float) -> str:
    """Nothing where nothing goes: in a large topology it would only hide the rest."""
    if not a_second:
        return "" if stream == "default" else stream
    rate = f"{per_second(a_second)}/s"
    return rate if stream == "default" else f"{stream}: {rate}"


def _bends(overview: Overview, rows: Rows) -> list[float]:
    """Return the curve of each edge.

    Round the layers that it passes by, back up a cycle, away from others between the same two.
    """
    layer = {name: row for row, names in enumerate(rows) for name in names}
    seen: dict[tuple[str, str], int] = {}
    bends = []
    for row in overview.edges:
        ends = row.edge.source, row.edge.target
        next_layer = layer[row.edge.target] == layer[row.edge.source] + 1
        bends.append(0.15 * seen.get(ends, 0) + (0.0 if next_layer else 0.45))
        seen[ends] = seen.get(ends, 0) + 1
    return bends
