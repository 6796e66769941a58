"""What a new attempt at a bolt task does where the one before it ended early."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from acker import Ledger, Token
from queues.inbox.records import Sender
from spark_jobs.collector import Item
from spark_jobs.running.pending import Share
from spark_jobs.running.step import Step
from spark_jobs.suspects.book import CaseBook
from spark_jobs.suspects.guard import Guard


class Suspicion:
    """For the bolt tasks of one process."""

    def __init__(self, run: str, book: CaseBook | None, ledger: Ledger | None) -> None:
        self._run = run
        self._book = book
        self._ledger = ledger

    def of(self, sender: Sender, taken: str | None) -> Suspect:
        """What to think of the input of one attempt, where the one before had taken it up to ``taken``."""
        if self._book is None or self._ledger is None or taken is None:
            return Suspect(None, None, "", sender.task)
        return Suspect(self._book, self._ledger, taken, sender.task, self._run)


class Suspect:
    """The part of one task's input that an earlier attempt had taken when it ended."""

    def __init__(self, book: CaseBook | None, ledger: Ledger | None, taken: str, task: int, run: str = "") -> None:
        self._book = book
        self._ledger = ledger
        self._taken = place(taken) if taken else None
        self._token = Token(run=run, task=task, step=0)

    def looks_at(self, shares: Sequence[Share]) -> bool:
        """Whether these tuples are executed one by one, each noted before."""
        if self._taken is None:
            return False
        if not shares or place(shares[0].waiting.position) > self._taken:
            self._taken = None
            return False
        return True

    def watch(self, step: Step) -> Callable[..., Iterator[Item]] | None:
        """Notes each tuple before it is executed, and leaves out those that killed the process before."""
        if self._book is None or self._ledger is None:
            return None
        return Guard(self._book, self._token, self._ledger, step.roots).watch


def place(position: str) -> tuple[int, int]:
    """A position that can be compared."""
    first, _, second = position.partition("-")
    return int(first), int(second or 0)
