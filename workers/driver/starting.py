"""Starting Spark, unless the driver is to end first: a start takes seconds, and far longer on a
busy machine, and has nothing in hand that would have to be given back.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")
_LOOK_S = 0.05
_AGAIN_S = 1.0
# For the JVM to delete its temporary files.
_GRACE_S = 5.0


def start_unless(stopped: threading.Event, start: Callable[[], T]) -> T | None:
    """Return what ``start`` returns; None if ``stopped`` was set before.

    The processes that ``start`` has begun are then told to end, so that it fails, whatever it
    waits for. It must be the only one that begins processes meanwhile.
    """
    others = _children()
    breaker = _Breaker(stopped, others)
    breaker.start()
    try:
        started = start()
    except Exception:
        breaker.end()
        if not stopped.is_set():
            raise
        _wait_for_the_end_of(others)
        return None
    breaker.end()
    if breaker.has_broken:
        _wait_for_the_end_of(others)
        return None
    return started


class _Breaker(threading.Thread):
    """Tells the new processes to end as soon as ``stopped`` is set, until ``end``."""

    def __init__(self, stopped: threading.Event, others: set[int]) -> None:
        super().__init__(name="start-breaker", daemon=True)
        self.has_broken = False
        self._stopped = stopped
        self._others = others
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            if self._stopped.wait(_LOOK_S):
                # Again and again: a process may be about to begin, and one that has not yet become
                # its program hears nothing.
                self._break_off()
                self._over.wait(_AGAIN_S)

    def end(self) -> None:
        self._over.set()
        self.join()

    def _break_off(self) -> None:
        for pid in _children() - self._others:
            if not self._over.is_set():
                self.has_broken = True
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)


def _wait_for_the_end_of(others: set[int]) -> None:
    give_up = time.monotonic() + _GRACE_S
    while _running(_children() - others) and time.monotonic() < give_up:
        time.sleep(_LOOK_S)


def _children() -> set[int]:
    """Return the child processes of this one, those that have ended and are not yet waited for
    among them.
    """
    found: set[int] = set()
    for listed in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            found.update(map(int, listed.read_text().split()))
    return found


def _running(pids: set[int]) -> bool:
    """Tell whether one of these children has not ended; the others are left to who began them."""
    for pid in pids:
        with suppress(ChildProcessError):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return True
    return False
