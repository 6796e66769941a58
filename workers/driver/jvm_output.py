"""The output of Spark's JVM and its Python workers as log records of the driver."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from tiercel.spark_jobs.logs.relay import RelayReader, new_mark
from tiercel.spark_jobs.spark.executors import start_failure

log = logging.getLogger(__name__)

# The layout of spark_jobs/spark/log4j2.properties.
_OURS = re.compile(r"\d\d:\d\d:\d\d (ERROR|WARN|FATAL) +spark +(.*)")
_LEVELS = {"ERROR": logging.ERROR, "FATAL": logging.ERROR, "WARN": logging.WARNING}
# The last two appear per task if ``spark.executor.pyspark.memory`` is set.
_NOISE = ("WARNING: Using incubator modules", "Current mem limits: ", "Setting mem limits to ")
_TRACEBACK = "Traceback (most recent call last):"
# Spark's long messages about a Python that does not start; the driver logs its own line.
_NO_START = re.compile(r"(?:Exception in|Lost) task .*|Task \d+ in stage .* failed .*")
_JAVA_FRAME = re.compile(r"\s+at [\w.$/]+|Caused by: |\s+\.\.\. \d+ more")
# What faulthandler writes as the watchdog ends a process: a heading, and the stack of each thread.
# It writes in pieces, so two processes that end at once may share a line.
_BLOCKED = re.compile(r"Timeout \((\d+:\d\d:\d\d)(?:\.\d+)?\)!")
_STACK = re.compile(
    r"(?:Thread|Current thread) 0x[0-9a-f]+|  File \".*\", line \d+|, line \d+ in |  ?in \S+$"
    r"|Extension modules: "
)
# A process that is given no time for longer has stood still; that explains what follows within the
# second number.
_STANDSTILL_S = 4.0
_LATELY_S = 30.0


class Standstills:
    """Notes from a thread when this process stands still: it is stopped, or its machine is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._over = threading.Event()
        self._last = clock()
        # Length and end of the last standstill.
        self._stood_s, self._ended_at = 0.0, float("-inf")

    def tick(self) -> None:
        """Note that the process goes on; called about once per second."""
        now = self._clock()
        if now - self._last >= _STANDSTILL_S:
            self._stood_s, self._ended_at = now - self._last, now
        self._last = now

    def stood_still_s(self) -> float:
        """Return how long the process has just stood still; 0 if it has not. Thread-safe."""
        now = self._clock()
        # The first thread to go on may ask before the next tick.
        lately_s = self._stood_s if now - self._ended_at < _LATELY_S else 0.0
        return max(lately_s, now - self._last if now - self._last >= _STANDSTILL_S else 0.0)

    @contextmanager
    def ticking(self) -> Iterator[Standstills]:
        """Tick within the block."""

        def run() -> None:
            while not self._over.wait(1.0):
                self.tick()

        threading.Thread(target=run, name="standstills", daemon=True).start()
        try:
            yield self
        finally:
            self._over.set()


class JvmLogReader:
    """Turns lines of the JVM into log records; its only state is an unfinished traceback."""

    def __init__(self, stood_still_s: Callable[[], float] = lambda: 0.0) -> None:
        """``stood_still_s`` returns how long this process has just stood still."""
        self._traceback: list[str] = []
        self._stood_still_s = stood_still_s

    def line(self, text: str) -> tuple[int, str] | None:
        """Return the (level, message) that this line completes; None if it completes none."""
        if self._traceback:
            self._traceback.append(text)
            return None if text.startswith(" ") or text == _TRACEBACK else self._end_of_traceback()
        if text == _TRACEBACK:
            self._traceback = [text]
            return None
        return self._level_of(text)

    def _level_of(self, text: str) -> tuple[int, str] | None:
        """Return the (level, message) of a line that is a record by itself; None if it is none."""
        if not text.strip() or text.startswith(_NOISE):
            return None
        if match := _BLOCKED.search(text):
            return logging.ERROR, self._why_blocked(match[1])
        if _NO_START.search(text) and start_failure(text):
            return logging.DEBUG, text
        if match := _OURS.fullmatch(text):
            return _LEVELS[match[1]], match[2].rstrip()
        # The stacks of a process that only stood still tell nothing.
        is_detail = _JAVA_FRAME.match(text) or (_STACK.match(text) and self._stood_still_s())
        return (logging.DEBUG if is_detail else logging.INFO), text

    def _why_blocked(self, limit: str) -> str:
        stood_s = self._stood_still_s()
        why = (
            f"everything stood still for {stood_s:.0f} s"
            if stood_s
            else "native code of a bolt or a library holds Python's lock in one of these threads"
        )
        return (
            f"a Python worker has ended, because it could not watch its bolts for {limit}: {why}; "
            "Spark starts another one, and its tuples are executed again"
        )

    def _end_of_traceback(self) -> tuple[int, str] | None:
        lines = self._traceback
        self._traceback = []
        # Spark ends idle or left-over Python workers by closing their sockets.
        if lines[-1].startswith(("BrokenPipeError", "ConnectionResetError")) and any(
            "daemon.py" in line for line in lines
        ):
            return None
        return logging.ERROR, "\n".join(lines)


@contextmanager
def as_log_records() -> Iterator[str]:
    """Within the block, send file descriptor 2 into our log; ``sys.stderr`` still reaches stderr.

    Yields the mark of lines that are log records of other processes.

    Call it before logging is set up and before the JVM, which inherits the descriptor, starts.
    """
    ours = os.dup(2)
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(writer)
    original, sys.stderr = sys.stderr, os.fdopen(ours, "w", buffering=1, closefd=False)
    mark = new_mark()
    with Standstills().ticking() as standstills:
        target = partial(_read, reader, mark, JvmLogReader(standstills.stood_still_s))
        thread = threading.Thread(target=target, name="jvm-output", daemon=True)
        thread.start()
        try:
            yield mark
        finally:
            sys.stderr.flush()
            sys.stderr = original
            os.dup2(ours, 2)
            # It ends with the last process that holds the pipe; do not wait for a lingering one.
            thread.join(timeout=1)


def _read(descriptor: int, mark: str, log_reader: JvmLogReader) -> None:
    relay = RelayReader(mark)
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
