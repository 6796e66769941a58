"""The cells of the tables that terminals show: each one is made here."""

from __future__ import annotations

from rich.text import Text

from tiercel.spark_jobs.logs.printable import printable


def cell(text: str, style: str = "") -> Text:
    """Return one line for a table of rich: no markup, no escape sequence, no line break."""
    return Text(printable(text), style)
