"""Logging in Spark's Python workers, with the name of the logging bolt task, the relay of records
to the driver, which shares their stderr, and the lines that bolts print.

A record is a JSON object on lines of its own, each with a secret mark that worker and driver share:
a bolt that prints an outsider's message cannot forge a record. Lines are short enough that writes
of several processes to one pipe do not mix.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TextIO, cast

from tiercel.spark_jobs.logs.formatters import (
    STANDARD,
    fitting,
    log_to,
    plain_handler,
    redacted,
)

_speaker: ContextVar[tuple[str, int] | None] = ContextVar("speaker", default=None)
# A pipe writes up to 4,096 bytes atomically.
_PART = 3_900
# Longest message of a record, and longest traceback, in characters.
_LONGEST = 32 * 1024
# Most incomplete records to keep; their processes died.
_UNFINISHED = 64


def new_mark() -> str:
    """Draw a random mark."""
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
            parts = [text[at : at + _PART] for at in range(0, len(text), _PART)]
            # With the process id, because several processes write to one pipe.
            name = f"{os.getpid()}.{next(self._numbers)}"
            for number, part in enumerate(parts, 1):
                self._write(f"{self._mark} {name} {number}/{len(parts)} {part}\n".encode())
        except Exception:  # noqa: BLE001 - such as a pipe that a bolt has made non-blocking
            self.handleError(record)

    def _packed(self, record: logging.LogRecord) -> str:
        error = record.exc_text
        if record.exc_info and not error:
            error = self._formatter.formatException(record.exc_info)
        extra = {key: redacted(vars(record)[key]) for key in vars(record).keys() - STANDARD}
        said = {
            "name": record.name,
            "levelno": record.levelno,
            "levelname": record.levelname,
            "created": record.created,
            "msg": fitting(record).getMessage()[:_LONGEST],
            "exc_text": error[-_LONGEST:] if error else None,
            "stack_info": record.stack_info[-_LONGEST:] if record.stack_info else None,
            "event": redacted(getattr(record, "event", "")),
            **extra,
        }
        return json.dumps(said)


class RelayReader:
    """Puts lines together to records again. For one thread."""

    def __init__(self, mark: str) -> None:
        self._mark = f"{mark} "
        self._parts: dict[str, list[str]] = {}

    def owns(self, line: str) -> bool:
        """Return True for a line of a record."""
        return line.startswith(self._mark)

    def record(self, line: str) -> logging.LogRecord | None:
        """Return the record that this line completes; None if lines are missing or damaged."""
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
    """Have log records of this thread or coroutine name this bolt task from now on."""
    _speaker.set((component, task))


@contextmanager
def speaking_as(component: str, task: int) -> Iterator[None]:
    """Have log records of this thread or coroutine name this bolt task within the block."""
    token = _speaker.set((component, task))
    try:
        yield
    finally:
        _speaker.reset(token)


class Speaking(logging.Filter):
    """Gives each record of a bolt task the attributes ``bolt`` and ``task``."""

    def filter(self, record: logging.LogRecord) -> bool:
        speaker = _speaker.get()
        if speaker is not None and not hasattr(record, "bolt"):
            record.bolt, record.task = speaker
        return True


class WholeLines:
    """Standard output or standard error of a process in which several bolt tasks print: each line
    stays whole. ``print`` writes a text and its line break one after the other.
    """

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._begun = threading.local()

    def write(self, text: str) -> int:
        """Write the lines that are complete; the rest when this thread completes it or flushes."""
        lines, end, rest = (self._taken() + text).rpartition("\n")
        self._begun.text = rest
        if end:
            self._output.write(lines + end)
        return len(text)

    def flush(self) -> None:
        """Write what this thread has begun, too, such as a progress bar."""
        begun = self._taken()
        if begun:
            self._output.write(begun)
        self._output.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)

    def _taken(self) -> str:
        begun: str = getattr(self._begun, "text", "")
        self._begun.text = ""
        return begun


_NAME = "executor"


@dataclass(frozen=True, kw_only=True)
class WorkerLogs:
    """Level and form of the log of a run's Python workers; it travels with the run."""

    # debug, info, warning or error.
    level: str = "info"
    # text or json.
    form: str = "text"
    # Set if the workers share the driver's stderr, as in local mode: the driver takes their records
    # into its own log. None: they log to the stderr of their executor.
    mark: str | None = field(default=None, repr=False)

    def set_up(self) -> None:
        """Set up logging and printing in this process, replacing any earlier set-up."""
        for name in ("stdout", "stderr"):
            output = getattr(sys, name)
            if output is not None and not isinstance(output, WholeLines):
                setattr(sys, name, cast("TextIO", WholeLines(output)))
        handler = RelayHandler(self.mark) if self.mark else plain_handler(self.form, _NAME)
        handler.addFilter(Speaking())
        log_to(handler, self.level)
