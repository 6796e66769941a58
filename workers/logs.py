"""Logging of our own processes: readable lines at a terminal, or one JSON object per line.

Log records of bolts in Spark's Python workers arrive here too: ``driver/jvm_output``.

A record that people may want to count or search for names its event: ``log.info("…",
extra={"event": "channel_lost"})``. Other keys of ``extra`` become keys of the JSON object.
Everything goes to stderr; stdout is for results.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from tiercel.spark_jobs.logs.formatters import JsonFormatter, TextFormatter, hush_libraries

if TYPE_CHECKING:
    from rich.console import Console

    from tiercel.workers.config import LogFormat


def set_up_logging(
    log_format: LogFormat, level: str = "info", component: str = "", console: Console | None = None
) -> None:
    """Send all log records to stderr; replaces the handlers of an earlier call.

    ``component`` names this process in records that name no component. ``console`` is the rich
    console that also shows a progress bar, if there is one: lines are then written above it.
    """
    logging.basicConfig(
        level=level.upper(), handlers=[_handler(log_format, component, console)], force=True
    )
    logging.captureWarnings(capture=True)
    hush_libraries()


def _handler(log_format: LogFormat, component: str, console: Console | None) -> logging.Handler:
    if log_format == "json":
        plain: logging.Handler = logging.StreamHandler(sys.stderr)
        plain.setFormatter(JsonFormatter(component))
        return plain
    if console is None and not sys.stderr.isatty():
        plain = logging.StreamHandler(sys.stderr)
        plain.setFormatter(TextFormatter(component))
        return plain
    from rich.console import Console  # noqa: PLC0415 - costs 60 ms, and only a terminal needs it
    from rich.logging import RichHandler  # noqa: PLC0415 - as above

    rich = RichHandler(
        console=console or Console(stderr=True),
        show_path=False,
        omit_repeated_times=False,
        log_time_format="%H:%M:%S",
        markup=False,
    )
    rich.setFormatter(TextFormatter(component, short=True))
    return rich
