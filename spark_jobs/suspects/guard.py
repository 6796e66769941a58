"""What an attempt at a Spark task does when the one before it ended early: find the tuple that kills the process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from acker import Ledger, LedgerUnavailableError, Token
from spark_jobs.collector import Item, Record
from spark_jobs.suspects.book import CaseBook
from spark_jobs.suspects.case import REASON, Suspect

Roots = Callable[[int], Sequence[int]]
T = TypeVar("T", bound=Item)


class Watch(Protocol):
    """What to execute of some input, in which order, given a ``flush`` that it may call in between."""

    def __call__(self, items: Sequence[T], flush: Callable[[], bool], /) -> Iterator[T]: ...


class Guard:
    """Watches the tuples of one attempt. Each tracked tuple costs a round trip to the case book, before it is executed."""

    def __init__(self, book: CaseBook, token: Token, ledger: Ledger, roots: Roots) -> None:
        """``roots`` of a row of the input. Fails at once what is guilty: should the run end, it is not released."""
        self._book, self._token, self._roots = book, token, roots
        before = book.load(token)
        self._case = before.after_death()
        if self._case != before:
            book.begin(token, self._case)
        failures = self._case.failures
        self._guilty = frozenset(failure.root for failure in failures)
        if failures:
            ledger.fail(failures)

    def watch(self, task: int, record: Record, items: Sequence[T], flush: Callable[[], bool]) -> Iterator[T]:
        """A task's input, suspects first; what only belongs to trees of the guilty fails and is left out.

        The caller executes an item before it asks for the next. Where a process died in ``flush``, it is called after each
        item, so that the next death names one; after one that returned False nothing more comes.
        """
        suspects = {each.seed for each in self._case.suspects if each.task == task}
        for item in sorted(items, key=lambda item: item.seed not in suspects):
            roots = self._roots(item.row)
            if roots and self._guilty.issuperset(roots):
                record.fail(item, REASON)
                continue
            # An untracked tuple has no message that could be delivered again or be dead-lettered.
            self._note(Suspect(component=record.component, task=task, seed=item.seed, roots=tuple(roots)) if roots else None)
            yield item
            if None in suspects and not flush():
                break
        self._note(None if None in suspects else Suspect(component=record.component, task=task, seed=None))

    def rest(self) -> None:
        """Nothing of the user's runs from here on. Best effort: a tuple that is named wrongly must kill once more anyway."""
        try:
            self._note(None)
        except LedgerUnavailableError:
            return

    def _note(self, doing: Suspect | None) -> None:
        if doing != self._case.doing:
            self._book.note(self._token, doing)
            self._case = replace(self._case, doing=doing)
