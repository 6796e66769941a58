"""Finds the tuple that killed the previous process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from tiercel.acker.errors import RedisUnavailableError
from tiercel.acker.ledger import Ledger, Token
from tiercel.spark_jobs.emitting.record import Item, Record
from tiercel.spark_jobs.suspects.book import REASON, Suspect
from tiercel.spark_jobs.suspects.redis_book import RedisCaseBook

Roots = Callable[[int], Sequence[int]]
T = TypeVar("T", bound=Item)


class Watch(Protocol):
    """Yields the tuples of some input that are to be executed; may call ``flush`` in between."""

    def __call__(self, items: Iterable[T], flush: Callable[[], bool], /) -> Iterator[T]: ...


class ExecutionNotes:
    """Notes each tracked tuple of one bolt task in the case book before it is executed, which costs
    one round trip per tuple.

    One per bolt task and process; one thread at a time.
    """

    def __init__(self, book: RedisCaseBook, token: Token, ledger: Ledger) -> None:
        """Open the case of the previous process.

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
        """True if a guilty tuple explains every recorded death.

        If tuples were executed at once, one of them is enough.
        """
        guilty = self._case.guilty
        return all(not guilty.isdisjoint(each.roots) for each in self._case.suspects)

    def watch(
        self, record: Record, roots: Roots, items: Iterable[T], flush: Callable[[], bool]
    ) -> Iterator[T]:
        """Yield the input of a step, each tuple noted before.

        Tuples that belong only to trees of guilty tuples fail and are left out. ``roots`` returns
        the roots of a row of the input. The caller executes an item before it asks for the next. If
        a process died in ``flush``, it is called after each item, so that the next death names one;
        when it returns False, the input ends.
        """
        for item in items:
            trees = roots(item.row)
            if self._fails(record, item, trees):
                continue
            # An untracked tuple has no message that could be redelivered or dead-lettered.
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
        flush: Callable[[], bool],  # noqa: ARG002 - the signature of ``watch``
    ) -> Iterator[T]:
        """Yield the input of a step whose tuples are executed at once, noted by the step's
        identity.

        Tuples that belong only to trees of guilty tuples fail before the first one is executed.
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
        """Note a sealed step before it is executed again, as a whole, because it must do the same
        work; False: leave it out.

        It was executed once, so it seldom kills. A step that kills twice fails as a whole.
        """
        if any(each.seed == identity and each.guilty for each in self._case.suspects):
            return False
        self._note(self._suspect(record, identity, roots) if roots else None)
        return True

    def rest(self) -> None:
        """Note that no code of the user's runs from here on.

        Best effort: a tuple that is named wrongly is guilty only after another death.
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
