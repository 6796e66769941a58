"""The figures of the moment, large."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nicegui import ui

from tiercel.workers.monitoring.overview import Overview
from tiercel.workers.monitoring.wording import count, duration, per_second, seconds


@dataclass(frozen=True)
class _Tile:
    name: str
    text: Callable[[Overview], str]
    # Bad news unless it is none.
    is_bad: Callable[[Overview], bool] = lambda _seen: False


def _latency(number_ms: float | None) -> str:
    return "-" if number_ms is None else duration(number_ms)


def _failed(seen: Overview) -> int:
    return sum(spout.failed for spout in seen.spouts)


def _dead(seen: Overview) -> int:
    return sum(queue.dead_lettered or 0 for queue in seen.queues)


_TILES = (
    _Tile("acked/s now", lambda seen: per_second(seen.flow.acked_a_second)),
    _Tile("p50 now", lambda seen: _latency(seen.flow.p50_ms)),
    _Tile("p99 now", lambda seen: _latency(seen.flow.p99_ms)),
    _Tile("pending trees", lambda seen: count(seen.own.pending)),
    _Tile("oldest pending", lambda seen: seconds(seen.own.oldest_pending_s)),
    _Tile("failed", lambda seen: count(_failed(seen)), lambda seen: _failed(seen) > 0),
    _Tile(
        "timeouts", lambda seen: count(seen.acker.timeouts), lambda seen: seen.acker.timeouts > 0
    ),
    _Tile("dead letters", lambda seen: count(_dead(seen)), lambda seen: _dead(seen) > 0),
)


class Tiles:
    """One row of them, more where the screen is narrow."""

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
            label.set_text(tile.text(seen))
            if tile.is_bad(seen):
                box.classes(add="bad")
            else:
                box.classes(remove="bad")
