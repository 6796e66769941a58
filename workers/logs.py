"""Logging of all processes: readable lines at a terminal, or one JSON object per line.

Passwords in URLs are redacted, what is longer than 16 KiB is cut, and no record can look like two.

A call that others may want to count or search for names its event: ``log.info("…", extra={"event":
"channel_lost"})``. Other keys of ``extra`` become keys of the JSON object. Everything goes to
stderr; stdout belongs to results.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tiercel.workers.printable import printable
from tiercel.workers.redaction import redact

if TYPE_CHECKING:
    from rich.console import Console

    from tiercel.workers.config import LogFormat

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "event",
    "component",
}
_CONTINUED = "\n    "
# Libraries whose failures we translate and report ourselves: their own lines would say
# everything twice.
_QUIET = {
    "pika": logging.CRITICAL,
    "py4j": logging.WARNING,
    "pyspark": logging.WARNING,
    "urllib3": logging.WARNING,
}


class TextFormatter(logging.Formatter):
    """``07:06:28 INFO    spout-1  the message``.

    For consoles that show time and level themselves, ``short``.
    """

    def __init__(self, component: str = "", *, short: bool = False) -> None:
        super().__init__("%(message)s")
        self._component = component
        self._short = short

    def format(self, record: logging.LogRecord) -> str:
        where = getattr(record, "component", None) or self._component or record.name
        text = f"{where}  {super().format(record)}"
        if not self._short:
            text = f"{datetime.fromtimestamp(record.created):%H:%M:%S} {record.levelname:<7} {text}"  # noqa: DTZ006 - the reader's clock
        # Lines after the first are indented: no message can forge the beginning of a record.
        return printable(redact(text), kept="\n\t").replace("\n", _CONTINUED)


class JsonFormatter(logging.Formatter):
    """One object per line: time (UTC), level, logger, component, event, message, what was given
    as extra, error.
    """

    def __init__(self, component: str = "") -> None:
        super().__init__("%(message)s")
        self._component = component

    def format(self, record: logging.LogRecord) -> str:
        component = getattr(record, "component", None) or self._component
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            **({"component": component} if component else {}),
            "event": getattr(record, "event", ""),
            "message": record.getMessage(),
            **{key: value for key, value in vars(record).items() if key not in _STANDARD},
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        # Value by value: a password with a quote in it is not the same within JSON.
        return json.dumps(_redacted(entry)).replace("\x7f", "\\u007f")


def _redacted(value: object) -> object:
    if isinstance(value, dict):
        return {redact(str(key)): _redacted(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(each) for each in value]
    return value if value is None or isinstance(value, int | float) else redact(str(value))


def set_up_logging(
    log_format: LogFormat, level: str = "info", component: str = "", console: Console | None = None
) -> None:
    """Send all log records to stderr; replaces what an earlier call set up.

    ``component`` names this process where a record does not name its own. ``console`` is the rich
    console that also shows a progress bar, if there is one: lines are then written above it.
    """
    logging.basicConfig(
        level=level.upper(), handlers=[_handler(log_format, component, console)], force=True
    )
    logging.captureWarnings(capture=True)
    for name, least in _QUIET.items():
        logging.getLogger(name).setLevel(least)


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
