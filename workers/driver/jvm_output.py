"""Turns stderr of Spark's JVM and of its Python workers into log records.

So a JSON log stays JSON, a terminal shows one format, and the prints of a bolt are kept. Log
records of a bolt arrive as records: ``spark_jobs/logs/relay``.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tiercel.spark_jobs.logs.relay import RelayReader, new_mark
from tiercel.spark_jobs.spark.executors import start_failure

log = logging.getLogger(__name__)

# The layout in spark_jobs/spark/log4j2.properties.
_OURS = re.compile(r"\d\d:\d\d:\d\d (ERROR|WARN|FATAL) +spark +(.*)")
_LEVELS = {"ERROR": logging.ERROR, "FATAL": logging.ERROR, "WARN": logging.WARNING}
# The last two come with each task where ``spark.executor.pyspark.memory`` is set.
_NOISE = ("WARNING: Using incubator modules", "Current mem limits: ", "Setting mem limits to ")
_TRACEBACK = "Traceback (most recent call last):"
# Spark's long messages about a Python that does not start: the driver logs a line of its own.
_NO_START = re.compile(r"(?:Exception in|Lost) task .*|Task \d+ in stage .* failed .*")
_JAVA_FRAME = re.compile(r"\s+at [\w.$/]+|Caused by: |\s+\.\.\. \d+ more")


class JvmLogReader:
    """Turns lines into records. Pure, except that it remembers an unfinished traceback."""

    def __init__(self) -> None:
        self._traceback: list[str] = []

    def line(self, text: str) -> tuple[int, str] | None:
        """The (level, message) that this line completes, or None."""
        if self._traceback:
            self._traceback.append(text)
            return None if text.startswith(" ") or text == _TRACEBACK else self._end_of_traceback()
        if text == _TRACEBACK:
            self._traceback = [text]
            return None
        if not text.strip() or text.startswith(_NOISE):
            return None
        if _NO_START.search(text) and start_failure(text):
            return logging.DEBUG, text
        if match := _OURS.fullmatch(text):
            return _LEVELS[match[1]], match[2].rstrip()
        return (logging.DEBUG if _JAVA_FRAME.match(text) else logging.INFO), text

    def _end_of_traceback(self) -> tuple[int, str] | None:
        lines = self._traceback
        self._traceback = []
        # Spark ends Python workers that are idle, or left over at its end, by
        # closing their sockets.
        if lines[-1].startswith(("BrokenPipeError", "ConnectionResetError")) and any(
            "daemon.py" in line for line in lines
        ):
            return None
        return logging.ERROR, "\n".join(lines)


@contextmanager
def as_log_records() -> Iterator[str]:
    """Within the block, file descriptor 2 leads into our log; ``sys.stderr`` is what it was.

    Yields the mark of the lines that are records of other processes.

    Call it before logging is set up and before the JVM starts, which inherits the descriptor.
    """
    ours = os.dup(2)
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(writer)
    original, sys.stderr = sys.stderr, os.fdopen(ours, "w", buffering=1, closefd=False)
    mark = new_mark()
    thread = threading.Thread(target=_read, args=[reader, mark], name="jvm-output", daemon=True)
    thread.start()
    try:
        yield mark
    finally:
        sys.stderr.flush()
        sys.stderr = original
        os.dup2(ours, 2)
        # It ends with the last process that holds the pipe; one that lingers shall not hold us up.
        thread.join(timeout=1)


def _read(descriptor: int, mark: str) -> None:
    relay = RelayReader(mark)
    log_reader = JvmLogReader()
    with os.fdopen(descriptor, "r", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            text = line.rstrip("\n")
            if relay.owns(text):
                relayed = relay.record(text)
                if relayed is not None:
                    logging.getLogger(relayed.name).handle(relayed)
                continue
            record = log_reader.line(text)
            if record is not None:
                log.log(*record, extra={"event": "spark_output"})
