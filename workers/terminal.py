"""The way to the terminal: each line and each cell that a command shows is made here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from tiercel.spark_jobs.logs.printable import printable

if TYPE_CHECKING:
    from rich.text import Text


def say(line: str, *, err: bool = False) -> None:
    """Write a line, or several, to stdout or stderr."""
    typer.echo(printable(line, kept="\n\t"), err=err)


def cell(text: str, style: str = "") -> Text:
    """Return one line for a table of rich: no markup, no escape sequence, no line break."""
    from rich.text import Text  # noqa: PLC0415 - `--help` should not wait for it

    return Text(printable(text), style)
