"""The demo's result, as a table for people and one JSON object for scripts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from tiercel.queues.broker.depths import QueueDepth
from tiercel.workers.cells import cell


@dataclass(frozen=True, kw_only=True)
class Result:
    """The figures of one demo."""

    # Messages that the broker confirmed.
    published: int
    # Messages that left the queue and are not dead-lettered: the broker was told
    # that they are done.
    acked: int
    # Deliveries that were not the first of their message.
    requeued: int
    dead_lettered: int
    # Lines that left the queue although a word of theirs never reached the counter.
    lost: int
    # Words whose count is below the independent one.
    undercounted: int
    # Words whose count is above it: sentences that were processed twice.
    overcounted: int
    sentences_per_s: float
    # Complete latency, from the emit to the outcome of the whole tree.
    p50_ms: float
    p99_ms: float

    @property
    def nothing_lost(self) -> bool:
        return self.lost == 0 and self.undercounted == 0

    def as_json(self) -> str:
        figures = asdict(self)
        del figures["overcounted"]
        for name in ("sentences_per_s", "p50_ms", "p99_ms"):
            figures[name] = round(figures[name], 1)
        return json.dumps(figures)


def show_words(console: Console, words: Sequence[tuple[str, int, int]]) -> None:
    """The most frequent words as (word, counted, true count)."""
    table = Table(title="The most frequent words", title_justify="left")
    table.add_column("word")
    table.add_column("counted", justify="right")
    table.add_column("in the text", justify="right")
    for word, counted, true in words:
        table.add_row(cell(word), f"{counted:,}", f"{true:,}")
    console.print(table)


def show_result(console: Console, result: Result, depth: QueueDepth) -> None:
    """The figures, and what is left in the queues."""
    table = Table(title="What became of the messages", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_row("published", f"{result.published:,}")
    table.add_row("acked", f"{result.acked:,}")
    table.add_row("requeued", f"{result.requeued:,}")
    table.add_row("dead-lettered", f"{result.dead_lettered:,}")
    table.add_row("lost", _alarm(result.lost))
    table.add_row("words undercounted", _alarm(result.undercounted))
    table.add_row("words counted twice somewhere", f"{result.overcounted:,}")
    table.add_row("sentences per second", f"{result.sentences_per_s:,.0f}")
    table.add_row("complete latency p50", f"{result.p50_ms:,.0f} ms")
    table.add_row("complete latency p99", f"{result.p99_ms:,.0f} ms")
    table.add_row(f"queue {depth.name}", f"{depth.ready:,} ready, {depth.unacked or 0:,} unacked")
    table.add_row(f"queue {depth.name}.dead", f"{depth.dead_lettered or 0:,} ready")
    console.print(table)


def _alarm(count: int) -> str:
    return "[green]0[/]" if count == 0 else f"[red]{count:,}[/]"
