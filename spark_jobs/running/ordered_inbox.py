"""The order of a bolt task outlives its process: it is a part of the task's snapshot, and is sealed
with the step that changed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from tiercel.acker.effects import Effect
from tiercel.acker.inbox.contract import Inbox
from tiercel.acker.inbox.records import NO_CLAIMS, Claims, Covered, Entry, Opened, Rest
from tiercel.spark_jobs.running.task_order import TaskOrder
from tiercel.spark_jobs.snapshots.packing import joined, parted


class OrderedInbox:
    """``Inbox`` whose snapshots have the order beside the copy."""

    def __init__(self, inbox: Inbox, order: TaskOrder) -> None:
        """Loads the order from what an earlier attempt left."""
        self._inbox = inbox
        self._order = order
        kept, copy = parted(inbox.opened.snapshot or b"")
        order.load(kept)
        self._kept = kept
        # Of the copy, as the newest step that gave one has it.
        self._copy = copy
        self._opened = replace(inbox.opened, snapshot=copy or None)

    @property
    def opened(self) -> Opened:
        return self._opened

    def take(
        self,
        tuples: int,
        size: int,
        wait: timedelta,
        finishing: int | None = None,
        claims: Claims = NO_CLAIMS,
    ) -> list[Entry]:
        return self._inbox.take(tuples, size, wait, finishing, claims)

    def read(self, positions: Sequence[str]) -> list[Entry]:
        return self._inbox.read(positions)

    def seal(self, covered: Covered, snapshot: bytes | None = None) -> Effect[bool]:
        """Seal with the order that the step left; a repeat gives the same."""
        part = self._order.part
        if part is None and snapshot is None:
            return self._inbox.seal(covered, None)
        if part is not None:
            self._kept = part
        if snapshot is not None:
            self._copy = snapshot
        return self._inbox.seal(covered, joined(self._kept, self._copy))

    def finish(self, step: int) -> Effect[bool]:
        return self._inbox.finish(step)

    def give_back(self, rests: Sequence[Rest]) -> Effect[bool]:
        return self._inbox.give_back(rests)

    def wake(self) -> None:
        self._inbox.wake()

    def close(self) -> None:
        self._inbox.close()
