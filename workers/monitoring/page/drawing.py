"""The data of the page's pictures: charts for ``look/line_chart.js``, and the graph of a topology,
laid out from left to right, for ``look/topology_graph.js``. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tiercel.queues.nouns import counted
from tiercel.spark_jobs.logs.formatters import printable
from tiercel.workers.monitoring.overview import EdgeRow, Overview, SpoutRow
from tiercel.workers.monitoring.rows import BoltRow
from tiercel.workers.monitoring.sampler import Figures, Sample, highest
from tiercel.workers.monitoring.tables import count, duration, per_second

# Each page is sent all of its charts every two seconds.
POINTS = 150
LINES = 8
# The colour of failures in every chart.
_BAD = 2
_TONES = (0, 3, 4, 5, 1, 6, 7, 2)


@dataclass(frozen=True)
class ChartKind:
    """One chart."""

    # Test id.
    key: str
    caption: str
    unit: str
    figures: Callable[[Sample], Figures]


CHARTS = (
    ChartKind("throughput", "Throughput: messages per second", "", lambda each: each.throughput),
    ChartKind("latency", "Latency: spout to complete tree", "ms", lambda each: each.latency),
    ChartKind("depths", "Depths: in flight in the topology", "", lambda each: each.inside),
    ChartKind("queues", "Depths: RabbitMQ's queues", "", lambda each: each.queues),
)


def chart_of(kind: ChartKind, samples: Sequence[Sample]) -> dict[str, Any]:
    """Return times and lines; a value is None if a server did not answer.

    If there are too many samples, several become one point with their maximum; if there are too
    many lines, the highest are shown.
    """
    every = -(-len(samples) // POINTS) or 1
    parts = [samples[at : at + every] for at in range(0, len(samples), every)]
    points = [highest(map(kind.figures, part)) for part in parts]
    peaks = highest(points)
    tallest = sorted(peaks, key=lambda name: -(peaks[name] or 0.0))[:LINES]
    lines = {
        name: [_rounded(point.get(name)) for point in points] for name in peaks if name in tallest
    }
    return {
        "times": [round(part[-1].at.timestamp() * 1000) for part in parts],
        "lines": [
            {"name": printable(name), "tone": _line_tone(at, name), "values": values}
            for at, (name, values) in enumerate(lines.items())
        ],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _line_tone(at: int, name: str) -> int:
    return _BAD if name == "failed" else _TONES[at % len(_TONES)]


# The components of each layer, from top to bottom.
Columns = list[list[str]]
NODE_WIDTH = 178
NODE_HEIGHT = 66
GAP_X = 86
GAP_Y = 20
_MARGIN = 6
_NAME_LENGTH = 22
_STREAM_LENGTH = 14
# How far an edge bends down, to pass other layers, or a parallel edge.
_DETOUR = 74
_BESIDE = 30


class _Point(NamedTuple):
    x: float
    y: float


def layers(overview: Overview) -> Columns:
    """Return the columns: spouts first, then each bolt to the right of all its sources, at their
    height.

    Edges that close a cycle go backwards.
    """
    depth = _depths(overview)
    columns: Columns = [[] for _ in range(1 + max(depth.values(), default=0))]
    for name, layer in depth.items():
        columns[layer].append(name)
    place: dict[str, float] = {}
    for names in columns:
        for name in names:
            before = [
                place[row.edge.source]
                for row in overview.edges
                if row.edge.target == name and row.edge.source in place
            ]
            place[name] = sum(before) / len(before) if before else 0.0
        names.sort(key=lambda name: place[name])
        for at, name in enumerate(names):
            place[name] = at - (len(names) - 1) / 2
    return columns


def _depths(overview: Overview) -> dict[str, int]:
    """Return the column of each component."""
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


def graph_of(overview: Overview) -> dict[str, Any]:
    """Return the graph: its size, its nodes, and its edges with their traffic."""
    columns = layers(overview)
    most = max(map(len, columns))
    height = most * (NODE_HEIGHT + GAP_Y) - GAP_Y
    corners = {
        name: _Point(
            _MARGIN + layer * (NODE_WIDTH + GAP_X),
            _MARGIN
            + (height - len(names) * (NODE_HEIGHT + GAP_Y) + GAP_Y) / 2
            + at * (NODE_HEIGHT + GAP_Y),
        )
        for layer, names in enumerate(columns)
        for at, name in enumerate(names)
    }
    layer_of = {name: layer for layer, names in enumerate(columns) for name in names}
    detours = _detours(overview, layer_of)
    edges = [
        _edge(row, corners, detour) for row, detour in zip(overview.edges, detours, strict=True)
    ]
    lowest = max([height + 2 * _MARGIN, *(edge["y"] + 10 for edge in edges)])
    return {
        "width": len(columns) * (NODE_WIDTH + GAP_X) - GAP_X + 2 * _MARGIN,
        "height": round(lowest),
        "nodes": [
            *(_spout(row, overview) | _at(corners[row.name]) for row in overview.spouts),
            *(_bolt(row, overview) | _at(corners[row.name]) for row in overview.bolts),
        ],
        "edges": edges,
    }


def _detours(overview: Overview, layer_of: dict[str, int]) -> list[float]:
    """Return how far each edge bends below its ends.

    An edge bends to pass columns in between, to close a cycle, and to avoid parallel edges.
    """
    seen: dict[tuple[str, str], int] = {}
    found = []
    for row in overview.edges:
        ends = row.edge.source, row.edge.target
        neighbours = layer_of[row.edge.target] == layer_of[row.edge.source] + 1
        found.append(_BESIDE * seen.get(ends, 0) + (0.0 if neighbours else _DETOUR))
        seen[ends] = seen.get(ends, 0) + 1
    return found


def _edge(row: EdgeRow, corners: dict[str, _Point], detour: float) -> dict[str, Any]:
    source = corners[row.edge.source]
    target = corners[row.edge.target]
    begin = _Point(source.x + NODE_WIDTH, source.y + NODE_HEIGHT / 2)
    end = _Point(target.x - 2, target.y + NODE_HEIGHT / 2)
    reach = max(GAP_X / 2, (end.x - begin.x) / 2)
    path = (
        f"M{begin.x:.0f},{begin.y:.0f} C{begin.x + reach:.0f},{begin.y + detour:.0f} "
        f"{end.x - reach:.0f},{end.y + detour:.0f} {end.x:.0f},{end.y:.0f}"
    )
    return {
        "path": path,
        "label": _edge_label(row.edge.stream, row.a_second),
        "title": "" if row.edge.stream == "default" else printable(row.edge.stream),
        "flows": row.a_second > 0,
        # The middle of the curve.
        "x": round((begin.x + end.x) / 2),
        "y": round((begin.y + end.y) / 2 + 0.75 * detour - 5),
    }


def _edge_label(stream: str, a_second: float) -> str:
    """Return the label. Rates of zero are left out: they would clutter a large topology."""
    name = "" if stream == "default" else _cut(stream, _STREAM_LENGTH)
    rate = f"{per_second(a_second)}/s" if a_second else ""
    return ": ".join(part for part in (name, rate) if part)


def _at(corner: _Point) -> dict[str, Any]:
    return {
        "x": round(corner.x),
        "y": round(corner.y),
        "width": NODE_WIDTH,
        "height": NODE_HEIGHT,
    }


def _spout(row: SpoutRow, overview: Overview) -> dict[str, Any]:
    return _node(row, overview, f"{count(row.pending)} in flight") | {
        "title": printable(f"spout {row.name}"),
        "kind": "spout",
        "tone": _tone(overview, "", gone=row.missing > 0),
        "failing": False,
        "share": None,
    }


def _bolt(row: BoltRow, overview: Overview) -> dict[str, Any]:
    waiting = f", {count(row.waiting)} wait" if row.waiting else ""
    return _node(row, overview, f"busy {row.busy:.0%}{waiting}") | {
        "title": printable(f"bolt {row.name}, {counted(row.tasks, 'task')}"),
        "kind": "bolt",
        "tone": _tone(overview, row.load.value, gone=bool(row.unattended)),
        "failing": overview.flow.of(row.name).failed_a_second > 0,
        "share": round(row.busy, 3),
    }


def _node(row: SpoutRow | BoltRow, overview: Overview, line: str) -> dict[str, Any]:
    speed = overview.flow.of(row.name)
    rate = f"{per_second(speed.a_second)}/s"
    latency = "" if speed.latency_ms is None else f" · {duration(speed.latency_ms)}"
    return {
        "name": row.name,
        "label": _cut(row.name, _NAME_LENGTH),
        "failed": f"{count(failed)} failed" if (failed := row.counts["failed"]) else "",
        "lines": [f"{rate}{latency}", line],
    }


def _tone(overview: Overview, load: str, *, gone: bool) -> str:
    if not overview.running:
        return "off"
    return "gone" if gone else load


def _cut(name: str, length: int) -> str:
    shown = printable(name)
    return shown if len(shown) <= length else f"{shown[: length - 1]}…"
