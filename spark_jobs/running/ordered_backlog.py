"""Backlogs of a bolt with an order: what comes first is of each key what comes next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from tiercel.acker.inbox.records import Entry
from tiercel.spark_jobs.running.backlog import Backlog, Reader, Share, first_of
from tiercel.spark_jobs.running.task_order import TaskOrder


class OrderedBacklog(Backlog):
    """``Backlog`` of which steps take only what may begin."""

    def __init__(self, done: Mapping[str, bytes], order: TaskOrder) -> None:
        super().__init__(done)
        self._order = order

    def first(self, most: int) -> list[Share]:
        return first_of(self._ready(), most)

    def one_of(self, identities: AbstractSet[int]) -> Share | None:
        found = super().one_of(identities)
        if found is None or not any(_has(share, found) for share in self._ready()):
            return None
        return found

    def _ready(self) -> Sequence[Share]:
        return self._order.ready(self)


class ReadyBacklog(OrderedBacklog):
    """Counts as waiting only what may begin; one tuple is executed after the other."""

    def __init__(self, done: Mapping[str, bytes], order: TaskOrder) -> None:
        super().__init__(done, order)
        # All tuples that wait.
        self._all = 0
        self._shares: Sequence[Share] = ()

    @property
    def held_back(self) -> int:
        """Number of tuples that wait for their predecessors."""
        return self._all - self.tuples

    def add(self, entries: Iterable[Entry], read: Reader) -> list[int]:
        self.tuples = self._all
        strange = super().add(entries, read)
        self._all = self.tuples
        self.refresh()
        return strange

    def refresh(self) -> None:
        """Look again at what may begin."""
        self._shares = self._order.ready(self)
        self.tuples = sum(len(share.rows) for share in self._shares)

    def _remove(self, shares: Sequence[Share]) -> None:
        self.tuples = self._all
        super()._remove(shares)
        self._all = self.tuples
        self.refresh()

    def _ready(self) -> Sequence[Share]:
        return self._shares


def _has(share: Share, one: Share) -> bool:
    return share.entry is one.entry and one.rows[0] in share.rows
