"""The blocks of docs/performance.md and README.md: figures between two markers.

No figure there is typed by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.figures import Results
from bench.page import costs, growth, slow, speed, storm


def blocks(results: Results) -> dict[str, list[str]]:
    """Return the lines of each block by the name in its marker, without blocks that have no
    figures.
    """
    made: dict[str, Callable[[Results], list[str]]] = {
        "machine": speed.machine,
        "short": speed.short,
        "headline": speed.headline,
        "throughput": speed.throughput,
        "cpu": speed.cpu,
        "latency": speed.latency,
        "slow": slow.slow,
        "beside": slow.beside,
        "uneven": slow.uneven,
        "curve": slow.curve,
        "storm": storm.storm,
        "stormlatency": storm.latency,
        "stormuneven": storm.uneven,
        "ledger": costs.ledger,
        "trees": costs.trees,
        "inbox": costs.inbox,
        "tuples": costs.tuples,
        "profile": costs.profile,
        "activity": costs.activity,
        "growth": growth.growth,
    }
    written = {name: make(results) for name, make in made.items()}
    return {name: lines for name, lines in written.items() if lines}


def filled(text: str, made: dict[str, list[str]]) -> str:
    """Return the page with the text between the markers replaced by these blocks."""

    def fill(match: re.Match[str]) -> str:
        lines = made.get(match["name"])
        return (
            match[0] if lines is None else "\n".join([match["begin"], "", *lines, "", match["end"]])
        )

    pattern = r"(?P<begin><!-- bench:(?P<name>[a-z]+) -->)\n.*?(?P<end><!-- /bench -->)"
    return re.sub(pattern, fill, text, flags=re.DOTALL)


def write(results: Results, pages: Sequence[Path]) -> None:
    """Fill the pages in place."""
    made = blocks(results)
    for page in pages:
        page.write_text(filled(page.read_text(), made))
