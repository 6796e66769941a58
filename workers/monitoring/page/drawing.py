"""The graph of a topology laid out from left to right, as ``look/topology_graph.js`` draws it.

Pure.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tiercel.queues.nouns import counted
from tiercel.spark_jobs.logs.printable import printable
from tiercel.workers.monitoring.bolts import BoltRow
from tiercel.workers.monitoring.health import BUSY, ENGAGED, NOT_RUNNING
from tiercel.workers.monitoring.overview import EdgeRow, Overview, SpoutRow
from tiercel.workers.monitoring.wording import count, duration, per_second

# The components of each layer, from top to bottom.
Columns = list[list[str]]
NODE_WIDTH = 178
NODE_HEIGHT = 66
GAP_X = 86
GAP_Y = 20
_MARGIN = 6
_NAME_LENGTH = 22
_STREAM_LENGTH = 14
# Below the line between its ends: where an edge passes by other layers, and beside its twins.
_DETOUR = 74
_BESIDE = 30


class _Point(NamedTuple):
    x: float
    y: float


def layers(overview: Overview) -> Columns:
    """Spouts first, then each bolt to the right of all that it subscribes to, and beside them.

    On a cycle there is no such order: of the edges that close it, those go backwards.
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


def graph_of(overview: Overview) -> dict[str, Any]:
    """Return the graph: its size, its nodes, and its edges with what goes over them."""
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
    """Return how far below its ends each edge goes.

    Round the layers that it passes by, back on a cycle, away from others between the same two.
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
        "flows": row.a_second > 0,
        # The middle of such a curve.
        "x": round((begin.x + end.x) / 2),
        "y": round((begin.y + end.y) / 2 + 0.75 * detour - 5),
    }


def _edge_label(stream: str, a_second: float) -> str:
    """Nothing where nothing goes: in a large topology it would only hide the rest."""
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
    speed = overview.flow.of(row.name)
    latency = row.complete_ms if speed.latency_ms is None else speed.latency_ms
    tone = "gone" if row.running < row.tasks else ""
    if overview.state == NOT_RUNNING:
        tone = "off"
    return {
        "name": row.name,
        "label": _cut(row.name, _NAME_LENGTH),
        "title": printable(f"spout {row.name}"),
        "kind": "spout",
        "tone": tone,
        "failing": False,
        "failed": f"{count(row.failed)} failed" if row.failed else "",
        "share": None,
        "lines": [_moves(speed.a_second, latency), f"{count(row.pending)} in flight"],
    }


def _bolt(row: BoltRow, overview: Overview) -> dict[str, Any]:
    speed = overview.flow.of(row.name)
    latency = row.execute_ms if speed.latency_ms is None else speed.latency_ms
    waiting = f", {count(row.waiting)} wait" if row.waiting else ""
    return {
        "name": row.name,
        "label": _cut(row.name, _NAME_LENGTH),
        "title": printable(f"bolt {row.name}, {counted(row.tasks, 'task')}"),
        "kind": "bolt",
        "tone": _tone(row, overview),
        "failing": speed.failed_a_second > 0,
        "failed": f"{count(row.failed)} failed" if row.failed else "",
        "share": round(row.busy, 3),
        "lines": [_moves(speed.a_second, latency), f"busy {row.busy:.0%}{waiting}"],
    }


def _tone(row: BoltRow, overview: Overview) -> str:
    if overview.state == NOT_RUNNING:
        return "off"
    if row.unattended:
        return "gone"
    if row.busy >= BUSY:
        return "hot"
    return "engaged" if row.busy >= ENGAGED else "calm"


def _moves(a_second: float, latency_ms: float | None) -> str:
    rate = f"{per_second(a_second)}/s"
    return rate if latency_ms is None else f"{rate} · {duration(latency_ms)}"


def _cut(name: str, length: int) -> str:
    shown = printable(name)
    return shown if len(shown) <= length else f"{shown[: length - 1]}…"
