"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from bench.figures import Figure


def table_of(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Make a Markdown table, numbers in all columns but the first; empty if no row has numbers."""
    known = [row for row in rows if any(cell not in ("", "-") for cell in row[1:])]
    if not known:
        return []
    rule = "| --- |" + " ---: |" * (len(head) - 1)
    return ["| " + " | ".join(head) + " |", rule, *("| " + " | ".join(row) + " |" for row in known)]


def with_plot(table: list[str], says: str, name: str) -> list[str]:
    """Add the plot of the rows to a table, if it has several rows."""
    return [*table, "", f"![{says}](images/{name})"] if len(table) > 3 else table


def number(value: Figure, form: str = "{:,.0f}") -> str:
    """Format a number, or a dash for None."""
    return "-" if value is None else form.format(value)
