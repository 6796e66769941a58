"""Ends this process when a bolt hangs. A call that lasts longer than the message timeout, or than
``execute_timeout_secs``, blocks its task, and its tuple has failed.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NamedTuple, Protocol

from tiercel.acker.inbox.contract import StaleAttemptError
from tiercel.acker.ledger import Failure, Ledger, Token
from tiercel.spark_jobs.emitting.record import Item, Record
from tiercel.spark_jobs.suspects.book import DEATHS, Suspect
from tiercel.spark_jobs.suspects.redis_book import RedisCaseBook

log = logging.getLogger(__name__)

_EXIT_CODE = 70
_STDERR = 2
_LONGEST_PAUSE_S = 1.0
# A call is long after this time.
_LONG_S = 1.0
# Number of limits after which the watchdog's own thread must be blocked.
_BLOCKED_AFTER = 2


class WatchedStep(Protocol):
    """A step that is being executed."""

    record: Record
    # The bolt task whose bolt executes it.
    task: int

    @property
    def waits(self) -> bool:
        """True for a call that waits without blocking anything, and has not ended: it ends or is
        cancelled by itself.
        """

    def roots(self, row: int, /) -> list[int]:
        """Return the roots of one tuple of the input."""


class Doing(NamedTuple):
    """The current call of the user's code: ``execute`` of a tuple or batch, or ``flush``."""

    task: int
    item: Item | None
    # Count of signs of life.
    signs: int = 0
    # The step. Two calls of ``flush`` in two steps are not the same work.
    work: WatchedStep | None = None

    def same(self, other: Doing | None) -> bool:
        """Return True for the same call without a new sign of life."""
        return other is not None and self.goes_on(other) and self.signs == other.signs

    @property
    def waits(self) -> bool:
        """True for a call that is only reported: it ends or is cancelled by itself."""
        return self.work is not None and self.work.waits

    def goes_on(self, other: Doing | None) -> bool:
        """Return True for the same call."""
        return (
            other is not None
            and self.item is other.item
            and self.work is other.work
            and self.task == other.task
        )


class CallLimit(NamedTuple):
    """Limits of one call of a bolt, in seconds."""

    ends_s: float
    # Interval at which the timeouts of waiting messages restart, if a call may last longer than the
    # message timeout. None: it may not.
    renew_s: float | None = None


class Lookout:
    """Watches one bolt task, from the watchdog's thread."""

    def __init__(  # noqa: PLR0913 - it joins parts that each have a contract
        self,
        token: Token,
        book: RedisCaseBook | None,
        ledger: Ledger | None,
        work: Callable[[], WatchedStep | None],
        *,
        waiting: Callable[[], Iterable[int]] = tuple,
        limit: CallLimit | None = None,
    ) -> None:
        """``work`` returns the step that is being executed; ``token`` names the task's case.

        ``waiting`` returns the roots of the tuples in the task's inbox, including the step's own;
        ``limit`` is the limit of the bolt's calls, if it has its own.
        """
        self.task = token.task
        self.limit = limit
        self._token = token
        self._book = book
        self._ledger = ledger
        self._work = work
        self._waiting = waiting
        self._helped: set[int] = set()

    def doing(self) -> Doing | None:
        """Return the step that is being executed now."""
        work = self._work()
        return (
            None if work is None else Doing(self.task, work.record.doing, work.record.signs, work)
        )

    def lasts(self, doing: Doing) -> None:
        """Restart the timeouts of all tuples that wait behind a long call, once for each tree.

        They would time out with the hanging tuple, before its process is replaced, and innocent
        messages would follow it into the dead-letter queue.
        """
        item = doing.item
        work = doing.work
        if self._ledger is None or item is None or work is None:
            return
        behind = set(self._waiting()).difference(work.roots(item.row))
        new = behind - self._helped
        self._helped = behind
        if new:
            self._ledger.reset_timeout(sorted(new))

    def renew(self, doing: Doing) -> None:
        """Restart the timeouts of all tuples that wait for the call: its own, the step's executed
        tuples, which are not committed yet, and the tuples behind them in the inbox.
        """
        item = doing.item
        work = doing.work
        if self._ledger is None or work is None:
            return
        own = work.roots(item.row) if item is not None else ()
        self._ledger.reset_timeout(sorted({*self._waiting(), *own}))

    def hung(self, doing: Doing, limit_s: float) -> None:
        """Fail the trees of the hanging tuple at once, and have the next attempt leave it out.

        If no tuple can be named, in a ``flush`` or a batch, the next attempt notes its work.
        """
        item = doing.item
        work = doing.work
        roots = work.roots(item.row) if item and work else []
        if self._ledger is None or self._book is None or item is None or work is None or not roots:
            return
        component = work.record.component
        reason = f"still executing after {limit_s:.0f} s; its process was ended"
        try:
            self._ledger.fail(
                [
                    Failure(root=root, component=component, task=work.task, reason=reason)
                    for root in roots
                ]
            )
        finally:
            guilty = Suspect(
                component=component,
                task=work.task,
                seed=item.seed,
                roots=tuple(roots),
                deaths=DEATHS,
            )
            before = self._book.load(self._token)
            self._book.begin(
                self._token, replace(before, doing=None, suspects=(*before.suspects, guilty))
            )


@dataclass(frozen=True, slots=True)
class Putting:
    """Postpones the end of the process, which ends unless ``off`` is called again in time.

    A native thread waits for that: native code that holds the interpreter's lock stops all Python
    threads.
    """

    off: Callable[[float], None]
    cancel: Callable[[], None]


def _put_off(seconds: float) -> None:
    # With the tracebacks of all threads on stderr: not ``sys.stderr``, which a bolt may replace by
    # an object without a file.
    faulthandler.dump_traceback_later(seconds, exit=True, file=_STDERR)


IN_NATIVE_CODE = Putting(_put_off, faulthandler.cancel_dump_traceback_later)


class Watchdog:
    """Watches the bolt tasks of this process from its own thread, at no cost to them."""

    def __init__(
        self,
        limit: timedelta | None,
        watched: Sequence[Lookout],
        part: Callable[[int], None] = lambda task: None,  # noqa: ARG005 - for a process with one task
        die: Callable[[int], object] = os._exit,
        putting: Putting = IN_NATIVE_CODE,
    ) -> None:
        """``part`` is called with the hanging task before the process ends, so that the other tasks
        can finish.

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
        """Watch within the block. Afterwards the process may live on: Spark reuses it."""
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
        begun = [0.0] * len(self._watched)
        while not self._over.wait(self._pause_s):
            self._putting.off(self._blocked_s)
            now = time.monotonic()
            for at, (watched, limit) in enumerate(self._watched):
                doing = watched.doing()
                before, since = seen[at]
                if doing is None or not doing.goes_on(before) or doing.waits:
                    seen[at] = doing, now
                    begun[at] = now
                elif not doing.same(before):
                    # A call that restarts the timeouts of its own tuples, such as a sink that waits
                    # for its server, may last. The tuples behind it wait as long.
                    seen[at] = doing, now
                    renew_s = limit.renew_s or limit.ends_s / 3
                    if now - max(begun[at], renewed[at]) >= renew_s:
                        renewed[at] = now
                        self._tell(watched.renew, doing)
                elif now - since >= limit.ends_s:
                    self._end(watched, doing, limit.ends_s)
                    return
                elif limit.renew_s is not None:
                    # Timed across calls: tuples behind several short calls wait for all of them.
                    long_s = min(_LONG_S, limit.renew_s)
                    if now - since >= long_s and now - renewed[at] >= limit.renew_s:
                        renewed[at] = now
                        self._tell(watched.renew, doing)
                elif now - since >= limit.ends_s / 2 and not doing.same(told.get(at)):
                    told[at] = doing
                    self._tell(watched.lasts, doing)

    def _tell(self, what: Callable[[Doing], None], doing: Doing) -> None:
        try:
            with suppress(StaleAttemptError):  # its tuples are emitted again
                what(doing)
        except Exception as error:  # noqa: BLE001 - waiting tuples may then time out and be redelivered
            log.warning(
                "could not report a long call: %s", error, extra={"event": "lasting_not_told"}
            )

    def _end(self, watched: Lookout, doing: Doing, limit_s: float) -> None:
        work = doing.work
        name = f"task {doing.task}" if work is None else f"{work.record.component}[{work.task}]"
        log.error(
            "%s has been stuck in one call for %.0f s; its message fails and its process ends",
            name, limit_s, extra={"event": "bolt_hangs"},
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
                "could not let the other tasks finish: %s",
                error,
                extra={"event": "hang_not_parted"},
            )
        finally:
            self._die(_EXIT_CODE)
