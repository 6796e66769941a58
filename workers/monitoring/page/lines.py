"""The charts of the page, as ``look/line_chart.js`` draws them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tiercel.spark_jobs.logs.printable import printable
from tiercel.workers.monitoring.history import Figures, Sample

# Each page is sent all of its charts every two seconds.
POINTS = 150
LINES = 8
# Of all colours the one that stands for failures, in each chart.
_BAD = 2
_TONES = (0, 3, 4, 5, 1, 6, 7, 2)


@dataclass(frozen=True)
class ChartKind:
    """One chart."""

    # Its name for tests, and its caption.
    key: str
    caption: str
    unit: str
    figures: Callable[[Sample], Figures]


CHARTS = (
    ChartKind("throughput", "Throughput: messages per second", "", lambda each: each.throughput),
    ChartKind("latency", "Latency: spout to complete tree", "ms", lambda each: each.latency),
    ChartKind("depths", "Depths: on the way in the topology", "", lambda each: each.inside),
    ChartKind("queues", "Depths: queues of the broker", "", lambda each: each.queues),
)


def chart_of(kind: ChartKind, samples: Sequence[Sample]) -> dict[str, Any]:
    """Return times and lines; a line is unknown where a server did not answer.

    Of very many samples several make one point, which is as high as the highest of them; of very
    many lines the highest are shown.
    """
    every = -(-len(samples) // POINTS) or 1
    parts = [samples[at : at + every] for at in range(0, len(samples), every)]
    names = dict.fromkeys(name for sample in samples for name in kind.figures(sample))
    lines = {name: [_highest(kind, part, name) for part in parts] for name in names}
    if len(lines) > LINES:
        tallest = sorted(lines, key=lambda name: -max(_known(lines[name]), default=0.0))[:LINES]
        lines = {name: lines[name] for name in names if name in tallest}
    return {
        "times": [round(part[-1].at.timestamp() * 1000) for part in parts],
        "lines": [
            {"name": printable(name), "tone": _tone(at, name), "values": values}
            for at, (name, values) in enumerate(lines.items())
        ],
    }


def _highest(kind: ChartKind, part: Sequence[Sample], name: str) -> float | None:
    known = _known([kind.figures(sample).get(name) for sample in part])
    return round(max(known), 2) if known else None


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _tone(at: int, name: str) -> int:
    return _BAD if name == "failed" else _TONES[at % len(_TONES)]
