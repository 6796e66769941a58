"""Logging in Spark's Python workers, with the bolt task that logs, and the relay of records to
the driver, which shares their stderr.

A record is a JSON object on lines of its own, each with a mark that only the two know: what a bolt
prints, of a stranger's message too, can never be taken for a record. Lines stay below the size up
to which the writes of several processes to one pipe do not mix.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import secrets
import sys
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from tiercel.spark_jobs.logs.formatters import (
    STANDARD,
    JsonFormatter,
    TextFormatter,
    hush_libraries,
)

_speaker: ContextVar[tuple[str, int] | None] = ContextVar("speaker", default=None)
# A pipe takes 4,096 bytes at once.
_PART = 3_900
# Of a record's message, and of its traceback.
_LONGEST = 32 * 1024
# Incomplete records, because their process died.
_UNFINISHED = 64


def new_mark() -> str:
    """Draw a mark."""
    return f"tiercel-{secrets.token_hex(8)}"


class RelayHandler(logging.Handler):
    """Writes records for a ``RelayReader`` with the same mark."""

    def __init__(self, mark: str, write: Callable[[bytes], object] | None = None) -> None:
        """``write`` takes one line; by default to file descriptor 2."""
        super().__init__()
        self._mark = mark
        self._write = write or _to_stderr
        self._numbers = itertools.count()
        self._formatter = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self._packed(record)
        except Exception:  # noqa: BLE001 - arguments that do not fit: as logging does with them
            self.handleError(record)
            return
        parts = [text[at : at + _PART] for at in range(0, len(text), _PART)]
        # Of the process too: several write to one pipe.
        name = f"{os.getpid()}.{next(self._numbers)}"
        for number, part in enumerate(parts, 1):
            self._write(f"{self._mark} {name} {number}/{len(parts)} {part}\n".encode())

    def _packed(self, record: logging.LogRecord) -> str:
        error = record.exc_text
        if record.exc_info and not error:
            error = self._formatter.formatException(record.exc_info)
        extra = {key: value for key, value in vars(record).items() if key not in STANDARD}
        said = {
            "name": record.name,
            "levelno": record.levelno,
            "levelname": record.levelname,
            "created": record.created,
            "msg": record.getMessage()[:_LONGEST],
            "exc_text": error[-_LONGEST:] if error else None,
            "event": getattr(record, "event", ""),
            **extra,
        }
        return json.dumps(said, default=str)


class RelayReader:
    """Makes records of lines again. One thread only."""

    def __init__(self, mark: str) -> None:
        self._mark = f"{mark} "
        self._parts: dict[str, list[str]] = {}

    def owns(self, line: str) -> bool:
        """Return True for a line of a record."""
        return line.startswith(self._mark)

    def record(self, line: str) -> logging.LogRecord | None:
        """Return the record that this line ends; None if it has further lines, or is damaged."""
        try:
            _, name, place, part = line.split(" ", 3)
            number, of = map(int, place.split("/"))
        except ValueError:
            return None
        parts = self._parts.pop(name, [])
        if len(parts) != number - 1:
            return None
        parts.append(part)
        if number < of:
            self._keep(name, parts)
            return None
        return _made("".join(parts))

    def _keep(self, name: str, parts: list[str]) -> None:
        self._parts[name] = parts
        if len(self._parts) > _UNFINISHED:
            del self._parts[next(iter(self._parts))]


def _made(text: str) -> logging.LogRecord | None:
    try:
        said: dict[str, Any] = json.loads(text)
    except ValueError:
        return None
    return logging.makeLogRecord({**said, "args": ()})


def _to_stderr(line: bytes) -> None:
    os.write(2, line)


def speak_as(component: str, task: int) -> None:
    """Let records name this bolt task, from now on, on this thread or in this coroutine."""
    _speaker.set((component, task))


class Speaking(logging.Filter):
    """Gives each record the attributes ``bolt`` and ``task``, where a bolt task logs."""

    def filter(self, record: logging.LogRecord) -> bool:
        speaker = _speaker.get()
        if speaker is not None and not hasattr(record, "bolt"):
            record.bolt, record.task = speaker
        return True


_NAME = "executor"


@dataclass(frozen=True, kw_only=True)
class WorkerLogs:
    """Level and form of the log of a run's Python workers; it travels with the run."""

    # debug, info, warning or error.
    level: str = "info"
    # text or json.
    form: str = "text"
    # Where the workers write to the driver's stderr, as in local mode: the driver takes their
    # records into its own log. None: they write lines to the stderr of their executor.
    mark: str | None = field(default=None, repr=False)

    def set_up(self) -> None:
        """Set up logging in this process; replaces an earlier set-up."""
        handler = RelayHandler(self.mark) if self.mark else self._own()
        handler.addFilter(Speaking())
        logging.basicConfig(level=self.level.upper(), handlers=[handler], force=True)
        logging.captureWarnings(capture=True)
        hush_libraries()

    def _own(self) -> logging.Handler:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter(_NAME) if self.form == "json" else TextFormatter(_NAME))
        return handler
