"""Ends this process when a bolt hangs: when a call takes longer than the message timeout, or than
``execute_timeout_secs``. Its tuple has failed by then, but blocks its task.
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
# A call that lasts this long holds up other tuples.
_LONG_S = 1.0
# After this many limits the watchdog's own thread must be blocked too.
_BLOCKED_AFTER = 2


class WatchedStep(Protocol):
    """A step that is being executed."""

    record: Record

    def roots(self, row: int, /) -> list[int]:
        """Return the roots of one tuple of the input."""
        ...


class Doing(NamedTuple):
    """A call of the user's code under way: ``execute`` of a tuple or batch, or ``flush``."""

    task: int
    item: Item | None
    # Signs of life that the call has given.
    signs: int = 0
    # The step: ``flush`` of the next step is another call.
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
    # Period at which the timeouts of waiting tuples are restarted, if the limit is longer than the
    # message timeout; None: it is not.
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
        """The call has lasted for half its limit. Called once per call."""
        ...

    def renew(self, doing: Doing) -> None:
        """A long call goes on: restart the timeouts of the tuples that wait behind it."""
        ...

    def hung(self, doing: Doing, limit_s: float) -> None:
        """The call lasted ``limit_s`` seconds; the process ends soon after this returns."""
        ...


@dataclass(frozen=True, slots=True)
class Putting:
    """A timer that ends the process unless ``off`` is called again within its seconds.

    It runs outside Python's threads, all of which native code stops if it holds the GIL.
    """

    off: Callable[[float], None]
    cancel: Callable[[], None]


def _put_off(seconds: float) -> None:
    # With the tracebacks of all threads on stderr.
    faulthandler.dump_traceback_later(seconds, exit=True)


IN_NATIVE_CODE = Putting(_put_off, faulthandler.cancel_dump_traceback_later)


class Watchdog:
    """Watches the bolt tasks of this process from its own thread, at no cost to them."""

    def __init__(
        self,
        limit: timedelta | None,
        watched: Sequence[Watched],
        part: Callable[[int], None] = lambda task: None,  # noqa: ARG005 - for a process with one task
        die: Callable[[int], object] = os._exit,
        putting: Putting = IN_NATIVE_CODE,
    ) -> None:
        """``part`` is called with the task that hangs before the process ends, to let the other
        tasks finish. ``limit`` is for tasks without their own; tasks with neither are not watched.
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
        """Watch within the block. Spark may reuse the process afterwards."""
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
                    # ``renewed`` spans calls: a tuple may wait behind several calls in a row.
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
