"""The functions that take most of a task's time."""

from __future__ import annotations

import cProfile
import pstats
from pathlib import Path

from bench.tuples.bolts import Count, CountBatch, Split, SplitBatch
from bench.tuples.price import SENTENCES, measure


def hot_spots(
    kind: str, sentences: int = SENTENCES, rounds: int = 3, limit: int = 15
) -> list[dict[str, float | str]]:
    """Return the functions that take most of a task's time themselves, in percent of its time."""
    split, count = (Split(), Count()) if kind == "BasicBolt" else (SplitBatch(), CountBatch())
    profile = cProfile.Profile()
    measure(split, count, sentences, rounds, profile)
    stats = pstats.Stats(profile)
    rows = [
        {"function": _name(where), "percent": 100 * own / stats.total_tt, "calls": calls}  # type: ignore[attr-defined]
        for where, (calls, _, own, _, _) in stats.stats.items()  # type: ignore[attr-defined]
    ]
    return sorted(rows, key=lambda row: -float(row["percent"]))[:limit]


def _name(where: tuple[str, int, str]) -> str:
    path, line, name = where
    if path == "~":
        return name.strip("<>")
    parts = Path(path).parts
    return f"{'/'.join(parts[-2:])}:{line} {name}"
