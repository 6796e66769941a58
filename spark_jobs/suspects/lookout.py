"""Tells the watchdog what a bolt task is doing, and decides about a tuple that hangs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from tiercel.acker.ledger import Failure, Ledger, Token
from tiercel.spark_jobs.suspects.book import CaseBook
from tiercel.spark_jobs.suspects.case import DEATHS, Suspect
from tiercel.spark_jobs.suspects.watchdog import CallLimit, Doing, WatchedStep


class Lookout:
    """Looks at one bolt task, from the watchdog's thread."""

    def __init__(  # noqa: PLR0913 - the things it joins, each with a contract of its own
        self,
        token: Token,
        book: CaseBook | None,
        ledger: Ledger | None,
        work: Callable[[], WatchedStep | None],
        *,
        waiting: Callable[[], Iterable[int]] = tuple,
        limit: CallLimit | None = None,
    ) -> None:
        """``work`` returns the step that is being executed; ``token`` names the case of the task.

        ``waiting`` returns the roots of the tuples in the task's inbox, the step's own among them;
        ``limit`` is that of the task's calls, where the bolt has one of its own.
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
        """Begin the timeouts of all that waits behind a tuple anew, once for each tree.

        They would end with the tuple's own, before its process is replaced, and blame messages
        that did nothing: a message that hangs would take its neighbours along into the
        dead-letter queue.
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
        """Restart the timeouts of all tuples that wait for the call: its own, the step's tuples
        that are done and not committed, and the tuples behind them in the inbox.
        """
        item = doing.item
        work = doing.work
        if self._ledger is None or work is None:
            return
        own = work.roots(item.row) if item is not None else ()
        self._ledger.reset_timeout(sorted({*self._waiting(), *own}))

    def hung(self, doing: Doing, limit_s: float) -> None:
        """Fail the trees of the tuple that hangs, at once, and let the next attempt leave it out.

        Where no tuple can be named, a ``flush`` or a whole batch, the next attempt
        notes what it does.
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
                    Failure(root=root, component=component, task=self.task, reason=reason)
                    for root in roots
                ]
            )
        finally:
            guilty = Suspect(
                component=component,
                task=self.task,
                seed=item.seed,
                roots=tuple(roots),
                deaths=DEATHS,
            )
            before = self._book.load(self._token)
            self._book.begin(
                self._token, replace(before, doing=None, suspects=(*before.suspects, guilty))
            )
