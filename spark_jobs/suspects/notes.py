"""After a process has died, finds the tuple that kills it; and fails a tuple that hangs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from tiercel.acker.errors import RedisUnavailableError
from tiercel.acker.ledger import Failure, Ledger, Token
from tiercel.spark_jobs.emitting.record import Item, Record
from tiercel.spark_jobs.suspects.book import DEATHS, REASON, CaseBook, Suspect
from tiercel.spark_jobs.suspects.watchdog import CallLimit, Doing, WatchedStep

Roots = Callable[[int], Sequence[int]]
T = TypeVar("T", bound=Item)


class Watch(Protocol):
    """Yields the tuples of the input to execute; may call ``flush`` between two tuples."""

    def __call__(self, items: Iterable[T], flush: Callable[[], bool], /) -> Iterator[T]: ...


class ExecutionNotes:
    """Notes each tracked tuple of one bolt task in the case book before it is executed, which costs
    one round trip per tuple.

    One per bolt task and process; one thread at a time.
    """

    def __init__(self, book: CaseBook, token: Token, ledger: Ledger) -> None:
        """Continue the case of the previous process.

        Fails guilty tuples at once, so that they are not released if the run ends.
        """
        self._book = book
        self._token = token
        self._task = token.task
        before = book.load(token)
        self._case = before.after_death()
        if self._case != before:
            book.begin(token, self._case)
        # Seeds of the tuples that were being executed when a process died.
        self.suspects = frozenset(
            each.seed for each in self._case.suspects if each.seed is not None
        )
        self._flushing = any(each.seed is None for each in self._case.suspects)
        self._guilty = book.guilty(token)
        failures = self._case.failures
        if failures:
            ledger.fail(failures)

    @property
    def clear(self) -> bool:
        """True if every noted death is explained by a guilty tuple, or by a guilty batch."""
        guilty = self._case.guilty
        return all(not guilty.isdisjoint(each.roots) for each in self._case.suspects)

    def watch(
        self, record: Record, roots: Roots, items: Iterable[T], flush: Callable[[], bool]
    ) -> Iterator[T]:
        """Yield the tuples of a step, and note each before the caller executes it.

        A tuple all of whose trees belong to guilty tuples fails instead. ``roots`` returns the
        roots of a row. If a process died in ``flush``, ``flush`` is called after each tuple, so
        that the next death can be blamed on one; if it returns False, no more tuples follow.
        """
        for item in items:
            trees = roots(item.row)
            if self._fails(record, item, trees):
                continue
            # An untracked tuple has no message to redeliver or dead-letter.
            self._note(self._suspect(record, item.seed, trees) if trees else None)
            yield item
            if self._flushing and not flush():
                break
        self._note(None if self._flushing else self._suspect(record, None))

    def watch_together(
        self,
        record: Record,
        roots: Roots,
        identity: int,
        items: Iterable[T],
        flush: Callable[[], bool],  # noqa: ARG002 - as the others are given it
    ) -> Iterator[T]:
        """Yield the tuples of a step that are executed in one call, noted by the step's identity.

        Tuples all of whose trees belong to guilty tuples fail before the call.
        """
        kept = [item for item in items if not self._fails(record, item, roots(item.row))]
        trees = [root for item in kept for root in roots(item.row)]
        self._note(self._suspect(record, identity, trees))
        yield from kept
        self._note(self._suspect(record, None))

    def _fails(self, record: Record, item: Item, trees: Sequence[int]) -> bool:
        guilty = bool(trees) and self._guilty.issuperset(trees)
        if guilty:
            record.fail(item, REASON)
            record.replayed.add(item.row)
        return guilty

    def repeats(self, record: Record, identity: int, roots: Sequence[int]) -> bool:
        """Note that a sealed step is repeated, as a whole, for it must do the same work; returns
        False if it killed its process twice, and then fails as a whole.
        """
        if any(each.seed == identity and each.guilty for each in self._case.suspects):
            return False
        self._note(self._suspect(record, identity, roots) if roots else None)
        return True

    def rest(self) -> None:
        """Note that no code of the user runs any more.

        Best effort: a tuple that is blamed wrongly would have to be there at a second death.
        """
        try:
            self._note(None)
        except RedisUnavailableError:
            return

    def _note(self, doing: Suspect | None) -> None:
        if doing != self._case.doing:
            self._book.note(self._token, doing)
            self._case = replace(self._case, doing=doing)

    def _suspect(self, record: Record, seed: int | None, roots: Sequence[int] = ()) -> Suspect:
        return Suspect(component=record.component, task=self._task, seed=seed, roots=tuple(roots))


class Lookout:
    """Watches one bolt task, from the watchdog's thread."""

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
        """``work`` returns the step that is being executed; ``token`` names the task's case.

        ``waiting`` returns the roots of all tuples in the task's inbox, including those of the
        step; ``limit`` is the limit of the bolt's calls, if it has its own.
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
        """Restart the timeouts of all tuples that wait behind this one, once per tree.

        They would expire together with its own, before the process is replaced, so that a message
        that hangs would fail its neighbours as well, until all are dead-lettered.
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
        """Restart the timeouts of all tuples that the call holds up: its own, tuples of the step
        that are not committed yet, and tuples that wait in the inbox.
        """
        item = doing.item
        work = doing.work
        if self._ledger is None or work is None:
            return
        own = work.roots(item.row) if item is not None else ()
        self._ledger.reset_timeout(sorted({*self._waiting(), *own}))

    def hung(self, doing: Doing, limit_s: float) -> None:
        """Fail the trees of the tuple that hangs, so that the next attempt leaves it out.

        If no single tuple hangs (a ``flush``, a whole batch), the next attempt notes its tuples.
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
