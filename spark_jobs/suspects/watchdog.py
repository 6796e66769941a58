"""Ends this process when a bolt hangs: a tuple that takes longer than the message timeout has failed, and blocks all others."""

from __future__ import annotations

import faulthandler
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple, Protocol

from spark_jobs.collector import Item

log = logging.getLogger(__name__)

_EXIT_CODE = 70
_LONGEST_PAUSE_S = 1.0
_BLOCKED_AFTER = 2
"""Limits, after which even the thread that looks must be taken for blocked."""


class Doing(NamedTuple):
    """What a thread of the user's code is in: ``execute`` of a tuple, or ``flush``."""

    task: int
    item: Item | None
    signs: int = 0
    """Of life."""

    def same(self, other: Doing | None) -> bool:
        return other is not None and self.item is other.item and (self.task, self.signs) == (other.task, other.signs)


class Watched(Protocol):
    """A piece of work, as the watchdog's thread sees it."""

    def doing(self) -> Doing | None:
        """What is being done now; None: nothing of the user's."""
        ...

    def hung(self, doing: Doing, limit_s: float) -> None:
        """It did the same for ``limit_s`` seconds, and ends when this returns."""
        ...


def end_later(seconds: float) -> None:
    """Unless this is called again in time, the process ends, with the tracebacks of all threads on stderr.

    By a thread that is not Python's: native code that holds the interpreter's lock stops every other one.
    """
    faulthandler.dump_traceback_later(seconds, exit=True)


class Watchdog:
    """Looks at one piece of work at a time, from a thread of its own. Costs the work nothing."""

    def __init__(
        self,
        limit: timedelta,
        die: Callable[[int], object] = os._exit,
        end_later: Callable[[float], None] = end_later,
    ) -> None:
        self._limit_s, self._die, self._end_later = limit.total_seconds(), die, end_later
        self._watched: Watched | None = None
        self._thread: threading.Thread | None = None

    @contextmanager
    def over(self, work: Watched) -> Iterator[None]:
        """Look at ``work`` within the block."""
        if self._thread is None:
            self._end_later(_BLOCKED_AFTER * self._limit_s)
            self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
            self._thread.start()
        self._watched = work
        try:
            yield
        finally:
            self._watched = None

    def _run(self) -> None:
        pause_s = min(_LONGEST_PAUSE_S, self._limit_s / 10)
        seen: Doing | None = None
        since = time.monotonic()
        while True:
            # Also without work: it must not begin in the gap between two looks.
            self._end_later(_BLOCKED_AFTER * self._limit_s)
            time.sleep(pause_s)
            watched = self._watched
            now = watched.doing() if watched else None
            if watched is None or now is None or not now.same(seen):
                seen, since = now, time.monotonic()
            elif time.monotonic() - since >= self._limit_s:
                self._end(watched, now)
                return

    def _end(self, work: Watched, doing: Doing) -> None:
        log.error("task %d hangs since %.0f s; its process ends", doing.task, self._limit_s, extra={"event": "bolt_hangs"})
        try:
            work.hung(doing, self._limit_s)
        except Exception as error:  # noqa: BLE001 - the process must end, whatever else goes wrong
            log.error("nobody knows of it: %s", error, extra={"event": "hang_not_told"})
        finally:
            self._die(_EXIT_CODE)
