"""Draws the growth curves and the latencies.

    .cache/bench/bin/python bench/plots.py bench/results.json docs/images

It imports matplotlib and nothing of tiercel, so that it runs in the environment of the peers.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter

_CURVES = {
    "tuples": ("tuples per tree", "tuples_per_s", "tuples per second"),
    "depth": ("bolts in a row", "messages_per_s", "messages per second"),
    "size": ("bytes per message", "messages_per_s", "messages per second"),
    "spouts": ("spout tasks", "messages_per_s", "messages per second"),
    "bolts": ("tasks of each bolt", "messages_per_s", "messages per second"),
    "shards": ("ledger shards", "messages_per_s", "messages per second"),
}
_FIGURE = (6.0, 3.4)
_BLUE = "#1f6fb2"
_ORANGE = "#d9742b"
_GREEN = "#3a8f4d"


def main(results: Path, folder: Path) -> None:
    """Draw a plot for each part that was measured."""
    parts = json.loads(results.read_text())["parts"]
    mpl.rcParams.update(
        {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True}
    )
    mpl.rcParams.update({"grid.color": "#dddddd", "axes.axisbelow": True})
    growth = parts.get("growth", {}).get("found") or {}
    for name, rows in growth.items():
        axis, figure, says = _CURVES[name]
        _curve(
            folder / f"growth-{name}.png",
            axis,
            says,
            [row["value"] for row in rows],
            [row[figure] for row in rows],
        )
    slow = [
        row for row in (parts.get("slow", {}).get("found") or {}).get("curve", []) if "share" in row
    ]
    if slow:
        _shares(folder / "growth-slow.png", slow)
    if (rounds := parts.get("latency", {}).get("found")) and len(rounds[0]) > 1:
        _latency(folder / "latency.png", rounds)
    rows = [found["by_pending"] for found in parts.get("ledger", {}).get("found") or []]
    if rows and len(rows[0]) > 1:
        pending = [row["pending"] for row in rows[0]]
        updates = _medians(rows, "updates_per_s")
        _curve(folder / "ledger.png", "pending roots", "root updates per second", pending, updates)


def _curve(
    path: Path, axis: str, says: str, values: Sequence[float], rates: Sequence[float]
) -> None:
    """Draw rates from zero, so that small differences look small, at equidistant values."""
    figure, axes = plt.subplots(figsize=_FIGURE)
    places = range(len(values))
    axes.plot(places, rates, marker="o", color=_BLUE)
    for place, rate in zip(places, rates, strict=True):
        axes.annotate(
            f"{rate:,.0f}",
            (place, rate),
            textcoords="offset points",
            xytext=(0, 6),
            ha="center",
            fontsize=8,
        )
    axes.set_xticks(list(places), [f"{value:,.0f}" for value in values])
    axes.set_ylim(0, 1.15 * max(rates))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:,.0f}"))
    axes.set_xlabel(axis)
    axes.set_ylabel(says)
    _save(figure, path)


def _latency(path: Path, rounds: Sequence[Sequence[dict[str, float]]]) -> None:
    figure, axes = plt.subplots(figsize=_FIGURE)
    rates = [row["rate"] for row in rounds[0]]
    for key, says, colour in (
        ("p999_ms", "p99.9", _ORANGE),
        ("p99_ms", "p99", _GREEN),
        ("p50_ms", "p50", _BLUE),
    ):
        axes.plot(range(len(rates)), _medians(rounds, key), marker="o", label=says, color=colour)
    axes.set_xticks(range(len(rates)), [f"{rate:,}" for rate in rates])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("messages per second")
    axes.set_ylabel("milliseconds to the ack")
    axes.legend(frameon=False)
    _save(figure, path)


def _shares(path: Path, rows: Sequence[dict[str, float]]) -> None:
    """Draw one line per duration of work; a share of 1 means that only the work takes time."""
    figure, axes = plt.subplots(figsize=_FIGURE)
    tasks = sorted({row["tasks"] for row in rows})
    for work_ms in sorted({row["work_ms"] for row in rows}):
        mine = sorted((row["tasks"], row["share"]) for row in rows if row["work_ms"] == work_ms)
        places = [tasks.index(count) for count, _ in mine]
        axes.plot(
            places, [share for _, share in mine], marker="o", label=f"{work_ms:,g} ms per tuple"
        )
    axes.set_xticks(range(len(tasks)), [f"{count:,g}" for count in tasks])
    axes.set_ylim(0, 1.1)
    axes.set_xlabel("tasks of the slow bolt")
    axes.set_ylabel("throughput / (tasks / time)")
    axes.legend(frameon=False)
    _save(figure, path)


def _medians(rounds: Sequence[Sequence[dict[str, float]]], key: str) -> list[float]:
    return [
        statistics.median(rows[place][key] for rows in rounds) for place in range(len(rounds[0]))
    ]


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
