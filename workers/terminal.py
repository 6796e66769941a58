"""Terminal output without control characters: lines and table cells. Nothing else writes to it."""

from __future__ import annotations

import typer
from rich.text import Text

from tiercel.spark_jobs.logs.formatters import printable


def say(line: str, *, err: bool = False) -> None:
    """Write a line, or several, to stdout or stderr."""
    typer.echo(printable(line, kept="\n\t"), err=err)


def ask(question: str) -> None:
    """Ask a question that is answered with y; any other answer, or none, ends the command."""
    typer.confirm(printable(question), abort=True)


def cell(text: str, style: str = "") -> Text:
    """Return one line for a table of rich: no markup, no escape sequence, no line break."""
    return Text(printable(text), style)
