"""The two layouts of log records: readable lines at a terminal, or one JSON object per line.

Passwords in URLs are redacted, texts over 16 KiB are cut, and no record can look like two.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from pathlib import PurePath

from tiercel.spark_jobs.logs.printable import printable
from tiercel.spark_jobs.logs.redaction import redact

# Attributes of a record that are no extras of the caller.
STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "event",
    "component",
}
_OURS = "tiercel."
_CONTINUED = "\n    "
# Libraries whose failures we translate and report ourselves: their own lines would say
# everything twice.
QUIET = {
    "pika": logging.CRITICAL,
    "py4j": logging.WARNING,
    "pyspark": logging.WARNING,
    "urllib3": logging.WARNING,
}


class TextFormatter(logging.Formatter):
    """``07:06:28 INFO    spout-1  the message``; of a bolt's own logger ``enrich[7] its.name``.

    For consoles that show time and level themselves, ``short``.
    """

    def __init__(self, component: str = "", *, short: bool = False) -> None:
        super().__init__("%(message)s")
        self._component = component
        self._short = short

    def format(self, record: logging.LogRecord) -> str:
        where = getattr(record, "component", None) or self._component or record.name
        bolt = getattr(record, "bolt", None)
        if bolt and not record.name.startswith(_OURS):
            where = f"{bolt}[{getattr(record, 'task', '')}] {record.name}"
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
            **{key: value for key, value in vars(record).items() if key not in STANDARD},
        }
        if record.exc_text:
            # A record of another process comes with its traceback as text.
            entry["error"] = record.exc_text
        elif record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        # Value by value: a password with a quote in it is not the same within JSON.
        return json.dumps(_redacted(entry)).replace("\x7f", "\\u007f")


def _redacted(value: object) -> object:
    if isinstance(value, dict):
        return {redact(str(key)): _redacted(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(each) for each in value]
    return value if value is None or isinstance(value, int | float) else redact(str(value))


def hush_libraries() -> None:
    """Leave out what libraries say that we report ourselves."""
    for name, least in QUIET.items():
        logging.getLogger(name).setLevel(least)
    logging.getLogger().addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Tell it apart from what py4j logs with the root logger: tracebacks of failed calls, which
    raise errors besides, and come also when we end Spark ourselves in the middle of its start.
    """
    return PurePath(record.pathname).parent.name != "py4j"
