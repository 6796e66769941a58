"""Tables of throughput by tree size, bolts in a row, message size, tasks and shards."""

from __future__ import annotations

from typing import Any

from bench import figures
from bench.figures import Results
from bench.growth import CURVES
from bench.page.markdown import number, table_of


def growth(results: Results) -> list[str]:
    found: dict[str, Any] = dict(figures.rounds_of(results, "growth") or {})
    lines: list[str] = []
    for name, curve in CURVES.items():
        if name not in found:
            continue
        table = table_of(
            [curve.axis, "messages/s", "tuples/s"],
            [
                [
                    f"{row['value']:,}",
                    *(number(row[f"{unit}_per_s"]) for unit in ("messages", "tuples")),
                ]
                for row in found[name]
            ],
        )
        lines += [
            *([""] if lines else []),
            *table,
            "",
            f"![{curve.unit} per second by {curve.axis}](images/growth-{name}.png)",
        ]
    return lines
