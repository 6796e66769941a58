"""Tables of the costs of inboxes, the ledger and bolts."""

from __future__ import annotations

from typing import Any

from bench import figures
from bench.figures import Results
from bench.ledger import PENDING, TREES
from bench.page.markdown import number, table_of, with_plot


def inbox(results: Results) -> list[str]:
    found: dict[str, Any] = dict(figures.rounds_of(results, "inbox") or {})
    forms = {
        "p50_ms": "{:.3f} ms",
        "p99_ms": "{:.3f} ms",
        "client_us": "{:,.0f}",
        "server_us": "{:,.0f}",
    }
    heads = ["p50", "p99", "µs of CPU, client", "server"]
    rows = [
        [f"{says}{name}", *(number(row.get(figure), form) for figure, form in forms.items())]
        for part, says in (
            ("calls", ""),
            ("steps", "a step of one tuple: "),
            ("hops", "a hop, tuples per second: "),
        )
        for name, row in found.get(part, {}).items()
    ]
    return table_of(["what", *heads], rows)


def ledger(results: Results) -> list[str]:
    forms = {
        "bytes_per_root": "{:.1f}",
        "updates_per_s": "{:,.0f}",
        "updates_per_core_s": "{:,.0f}",
    }
    table = table_of(
        [
            "pending roots",
            "bytes per root",
            "updates/s, two writers",
            "updates/s of the server's core",
        ],
        [
            [
                f"{pending:,}",
                *(
                    number(figures.ledger(results, pending, figure), form)
                    for figure, form in forms.items()
                ),
            ]
            for pending in PENDING
        ],
    )
    return with_plot(table, "root updates per second by pending roots", "ledger.png")


def trees(results: Results) -> list[str]:
    rows = [[f"{tuples:,}", number(figures.tree(results, tuples), "{:.1f}")] for tuples in TREES]
    return table_of(["tuples in a tree", "bytes per root"], rows)


def tuples(results: Results) -> list[str]:
    forms = {
        "tuples_per_s": "{:,.0f}",
        "spout_us": "{:.2f}",
        "split_us": "{:.2f}",
        "count_us": "{:.2f}",
    }
    return table_of(
        [
            "kind",
            "tuples/s on a core",
            "µs per sentence emitted",
            "µs per tuple split, in or out",
            "µs per word counted",
        ],
        [
            [
                f"`{kind}`",
                *(
                    number(figures.price(results, kind, figure), form)
                    for figure, form in forms.items()
                ),
            ]
            for kind in ("BasicBolt", "Bolt", "ArrowBolt")
        ],
    )


def profile(results: Results) -> list[str]:
    profiles: dict[str, Any] = dict(figures.rounds_of(results, "tuples") or {}).get("profile", {})
    lines: list[str] = []
    for kind, rows in profiles.items():
        table = table_of(
            [f"`{kind}`", "% of the time"],
            [[f"`{row['function']}`", f"{row['percent']:.1f}"] for row in rows],
        )
        lines += ["", *table] if lines else table
    return lines


def activity(results: Results) -> list[str]:
    rows = figures.activities(results)
    total = sum(rows.values())
    return (
        table_of(
            ["`BasicBolt`: activity, or kind of process", "µs of CPU per sentence"],
            [[name, f"{us:.1f}"] for name, us in rows.items()]
            + ([["**sum**", f"**{total:.0f}**"]] if rows else []),
        )
        if rows
        else []
    )
