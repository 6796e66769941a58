"""Ends this process when a bolt hangs: a tuple that takes longer than the message timeout, or than
its bolt may take (``execute_timeout_secs``), has failed, and blocks its task.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple, Protocol

from tiercel.spark_jobs.emitting.record import Item, Record

log = logging.getLogger(__name__)

_EXIT_CODE = 70
_LONGEST_PAUSE_S = 1.0
# A call that lasts so long is one for which others wait.
_LONG_S = 1.0
# Limits, after which even the thread that looks must be taken for blocked.
_BLOCKED_AFTER = 2


class WatchedStep(Protocol):
    """A step that is being executed."""

    record: Record

    def roots(self, row: int, /) -> list[int]:
        """The roots of one tuple of its input."""
        ...


class Doing(NamedTuple):
    """Call that a thread of the user's code is in: ``execute`` of a tuple, or of a whole
    batch, or ``flush``.
    """

    task: int
    item: Item | None
    # Of life.
    signs: int = 0
    # The step: the next one is another piece of work, also where the thread is in ``flush`` again.
    work: WatchedStep | None = None

    def same(self, other: Doing | None) -> bool:
        return (
            other is not None
            and self.item is other.item
            and self.work is other.work
            and (self.task, self.signs) == (other.task, other.signs)
        )


class CallLimit(NamedTuple):
    """Limit on how long one call of a bolt may last, in seconds."""

    ends_s: float
    # A call may last longer than a message before it times out: then the timeouts of what waits for
    # it begin anew so often. None: it may not.
    renew_s: float | None = None


class Watched(Protocol):
    """One bolt task, as the watchdog's thread sees it."""

    # None: the watchdog's limit.
    @property
    def limit(self) -> CallLimit | None: ...

    def doing(self) -> Doing | None:
        """Return the call that is under way; None: no call of the user's code."""
        ...

    def lasts(self, doing: Doing) -> None:
        """The call has lasted for half of the limit. Called once for each ``doing``."""
        ...

    def renew(self, doing: Doing) -> None:
        """The task is in a call that may be long: tuples behind it must not time out meanwhile."""
        ...

    def hung(self, doing: Doing, limit_s: float) -> None:
        """The call lasted ``limit_s`` seconds; the process ends soon after this returns."""
        ...


@dataclass(frozen=True, slots=True)
class Putting:
    """Puts off the end of the process: unless ``off`` is called again within its seconds,
    the process ends.

    By a thread that is not Python's: native code that holds the interpreter's lock stops
    every other one.
    """

    off: Callable[[float], None]
    cancel: Callable[[], None]


def _put_off(seconds: float) -> None:
    # With the tracebacks of all threads on stderr.
    faulthandler.dump_traceback_later(seconds, exit=True)


IN_NATIVE_CODE = Putting(_put_off, faulthandler.cancel_dump_traceback_later)


class Watchdog:
    """Looks at the bolt tasks of this process, from its own thread.

    Costs their work nothing.
    """

    def __init__(
        self,
        limit: timedelta | None,
        watched: Sequence[Watched],
        part: Callable[[int], None] = lambda task: None,  # noqa: ARG005 - for a process with one task
        die: Callable[[int], object] = os._exit,
        putting: Putting = IN_NATIVE_CODE,
    ) -> None:
        """``part`` is called with the task that hangs, before the process ends: time for the
        other ones to finish.

        ``limit`` is for tasks without their own; with neither, a task is not watched.
        """
        usual = CallLimit(limit.total_seconds()) if limit else None
        self._watched = [(one, mine) for one in watched if (mine := one.limit or usual) is not None]
        limits = [mine for _, mine in self._watched]
        renewals = [mine.renew_s / 3 for mine in limits if mine.renew_s]
        self._pause_s = min([_LONGEST_PAUSE_S, *renewals, *(mine.ends_s / 10 for mine in limits)])
        self._blocked_s = _BLOCKED_AFTER * max([mine.ends_s for mine in limits], default=0.0)
        self._part = part
        self._die = die
        self._putting = putting
        self._over = threading.Event()

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look within the block. Afterwards the process may live on: Spark uses it again."""
        if not self._watched:
            yield
            return
        self._putting.off(self._blocked_s)
        thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
            self._putting.cancel()

    def _run(self) -> None:
        seen: list[tuple[Doing | None, float]] = [(None, 0.0)] * len(self._watched)
        told: dict[int, Doing] = {}
        renewed = [float("-inf")] * len(self._watched)
        while not self._over.wait(self._pause_s):
            self._putting.off(self._blocked_s)
            now = time.monotonic()
            for at, (watched, limit) in enumerate(self._watched):
                doing = watched.doing()
                before, since = seen[at]
                if doing is None or not doing.same(before):
                    seen[at] = doing, now
                elif now - since >= limit.ends_s:
                    self._end(watched, doing, limit.ends_s)
                    return
                elif limit.renew_s is not None:
                    # Counted over calls, which may be shorter: tuples behind a row of calls have
                    # waited for all of them.
                    long_s = min(_LONG_S, limit.renew_s)
                    if now - since >= long_s and now - renewed[at] >= limit.renew_s:
                        renewed[at] = now
                        self._tell(watched.renew, doing)
                elif now - since >= limit.ends_s / 2 and not doing.same(told.get(at)):
                    told[at] = doing
                    self._tell(watched.lasts, doing)

    def _tell(self, what: Callable[[Doing], None], doing: Doing) -> None:
        try:
            what(doing)
        except Exception as error:  # noqa: BLE001 - what waits behind the call may time out then, and comes again
            log.warning(
                "could not report a long call: %s", error, extra={"event": "lasting_not_told"}
            )

    def _end(self, watched: Watched, doing: Doing, limit_s: float) -> None:
        log.error(
            "task %d has been stuck in one call for %.0f s; its message fails and its process ends",
            doing.task,
            limit_s, extra={"event": "bolt_hangs"},
        )  # fmt: skip
        try:
            watched.hung(doing, limit_s)
        except Exception as error:  # noqa: BLE001 - the process must end, also after any other error
            log.error(
                "could not record the hang in Redis: %s", error, extra={"event": "hang_not_told"}
            )
        try:
            self._part(doing.task)
        except Exception as error:  # noqa: BLE001 - as above
            log.error(
                "the other tasks did not come to an end: %s",
                error,
                extra={"event": "hang_not_parted"},
            )
        finally:
            self._die(_EXIT_CODE)
