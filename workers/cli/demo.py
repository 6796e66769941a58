"""The command ``demo``."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from tiercel.compose.errors import ServiceStoppedError
from tiercel.workers.config import LogLevel, Settings
from tiercel.workers.demo.session import run_demo
from tiercel.workers.lifecycle import on_signals
from tiercel.workers.terminal import say

commands = typer.Typer()


@commands.command()
def demo(
    *,
    calm: Annotated[bool, typer.Option("--calm", help="inject no faults")] = False,
    text: Annotated[
        Path | None, typer.Option(help="the text to count; by default Python's language reference")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="publish the text this many times")] = 3,
    log_level: Annotated[
        LogLevel, typer.Option("--log-level", help="lowest level that is logged")
    ] = "warning",
) -> None:
    """Count a real text while things fail, and show that nothing is lost."""
    stopped = threading.Event()
    on_signals(stopped.set)
    # Always on private servers, even if the environment names others: it publishes and kills.
    settings = Settings.load(log_level=log_level).model_copy(
        update={"amqp": None, "redis": None, "management": None}
    )
    try:
        code = run_demo(settings, text, repeat, stopped, calm=calm)
    except ServiceStoppedError:
        say("stopped")
        code = 130
    sys.exit(code)
