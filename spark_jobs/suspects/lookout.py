"""What a piece of work is doing, for the watchdog; and what becomes of a tuple that hangs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from acker import Failure, Ledger, Token
from spark_jobs.collector import Record
from spark_jobs.suspects.book import CaseBook
from spark_jobs.suspects.case import DEATHS, Suspect
from spark_jobs.suspects.watchdog import Doing


class Lookout:
    """Looks at one attempt at a task, from the watchdog's thread."""

    def __init__(
        self, token: Token, book: CaseBook | None, ledger: Ledger | None, roots: Callable[[int], Sequence[int]]
    ) -> None:
        """``roots`` of a row of the input."""
        self._token, self._book, self._ledger, self._roots = token, book, ledger, roots
        self.executing: tuple[int, Record] | None = None
        """The bolt task whose code runs, and its record."""

    def doing(self) -> Doing | None:
        """What is being executed now."""
        executing = self.executing
        if executing is None:
            return None
        task, record = executing
        return Doing(task, record.doing, record.signs)

    def hung(self, doing: Doing, limit_s: float) -> None:
        """Fail the trees of the tuple that hangs, at once, and let the next attempt leave it out.

        Where no tuple can be named, a ``flush`` or a whole batch, the next attempt notes what it does.
        """
        executing, item = self.executing, doing.item
        roots = self._roots(item.row) if item else []
        if self._ledger is None or self._book is None or executing is None or item is None or not roots:
            return
        component, reason = executing[1].component, f"still executing after {limit_s:.0f} s; its process was ended"
        failures = [Failure(root=root, component=component, task=doing.task, reason=reason) for root in roots]
        self._ledger.fail(failures)
        guilty = Suspect(component=component, task=doing.task, seed=item.seed, roots=tuple(roots), deaths=DEATHS)
        before = self._book.load(self._token)
        self._book.begin(self._token, replace(before, doing=None, suspects=(*before.suspects, guilty)))
