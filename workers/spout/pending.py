"""The messages of one spout task that are in flight, and when each times out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from tiercel.queues.spout import MsgId


class InFlight(NamedTuple):
    """One emitted spout tuple."""

    msg_id: MsgId
    # Seconds on the caller's monotonic clock.
    emitted_at: float
    # True if it waited for a limit.
    waited: bool = False


class Pending:
    """Roots in flight, oldest deadline first.

    One thread only; times are seconds on one monotonic clock.

    Storm rotates two buckets, so that a tuple times out after one to two timeouts. The timeout is
    the same for all, hence insertion order is the order of deadlines and the front of one dict is
    exact: never early, late by one call at most.

    Tuples that wait for a limit are in flight too, and apart: they say nothing about how long work
    takes, so that the oldest one is among the others.
    """

    def __init__(self, timeout: timedelta | None) -> None:
        """``timeout`` of None: nothing expires."""
        self._timeout = timeout.total_seconds() if timeout else None
        # Root to message id, when it was emitted, and when its timeout began.
        self._entries: dict[int, tuple[MsgId, float, float]] = {}
        # Emit times of those whose timeout began again: the oldest may be one of them.
        self._reset: dict[int, float] = {}
        # The entries of tuples that wait for a limit. Others read it too.
        self.waiting: dict[int, tuple[MsgId, float, float]] = {}

    def __len__(self) -> int:
        return len(self._entries) + len(self.waiting)

    def __contains__(self, root: int) -> bool:
        return root in self._entries or root in self.waiting

    @property
    def working(self) -> int:
        """Number of tuples that wait for no limit."""
        return len(self._entries)

    def add(self, root: int, msg_id: MsgId, now: float) -> None:
        """A tuple was emitted at ``now``."""
        self._entries[root] = (msg_id, now, now)

    def add_all(self, emitted: Sequence[tuple[int, MsgId]], now: float) -> None:
        """These tuples, (root, message id) each, were."""
        self._entries.update([(root, (msg_id, now, now)) for root, msg_id in emitted])

    def pop(self, root: int) -> InFlight | None:
        """The tuple has its outcome; None if it is not in flight any more."""
        found = self._entries.pop(root, None)
        waited = found is None
        if found is None:
            found = self.waiting.pop(root, None)
        if self._reset:
            self._reset.pop(root, None)
        return InFlight(*found[:2], waited=waited) if found else None

    def pop_all(self, roots: Sequence[int]) -> tuple[list[MsgId], list[float], list[InFlight]]:
        """Take out the tuples that are in flight: message ids, and when each was emitted; tuples
        that waited for a limit come last, apart.
        """
        found = [
            entry
            for entry in [self._entries.pop(root, None) for root in roots]
            if entry is not None
        ]
        waited: list[InFlight] = []
        if self.waiting:
            taken = [self.waiting.pop(root, None) for root in roots]
            waited = [InFlight(*entry[:2], waited=True) for entry in taken if entry is not None]
        if self._reset:
            for root in roots:
                self._reset.pop(root, None)
        return [entry[0] for entry in found], [entry[1] for entry in found], waited

    def wait(self, root: int, now: float) -> float | None:
        """Start the timeout of a tuple again, and set it apart.

        Returns when it was emitted if it was among the others until now, else None.
        """
        known = self.waiting.pop(root, None)
        found = known or self._entries.pop(root, None)
        if found is None:
            return None
        msg_id, emitted_at, _ = found
        self.waiting[root] = (msg_id, emitted_at, now)
        self._reset.pop(root, None)
        return None if known else emitted_at

    def reset(self, root: int, now: float) -> bool:
        """Start the timeout of a tuple again; False if it is not in flight any more."""
        if root in self.waiting:
            self.wait(root, now)
            return True
        found = self._entries.pop(root, None)
        if found is None:
            return False
        msg_id, emitted_at, _ = found
        self._entries[root] = (msg_id, emitted_at, now)
        self._reset[root] = emitted_at
        return True

    def expire(self, now: float) -> list[tuple[int, InFlight]]:
        """Take out all tuples whose timeout is over."""
        if self._timeout is None:
            return []
        both = [
            *self._expired(self._entries, now, waited=False),
            *self._expired(self.waiting, now, waited=True),
        ]
        for root, _ in both:
            self.pop(root)
        return both

    @property
    def next_timeout(self) -> float | None:
        """Time at which ``expire`` will take out something; None if nothing expires."""
        firsts = [next(iter(group.values()), None) for group in (self._entries, self.waiting)]
        began = [first[2] for first in firsts if first is not None]
        return None if not began or self._timeout is None else min(began) + self._timeout

    def oldest_s(self, now: float) -> float:
        """Seconds since the oldest of them was emitted; 0 if nothing is in flight."""
        first = next(iter(self._entries.values()), None)
        return 0.0 if first is None else max(0.0, now - min([first[1], *self._reset.values()]))

    def items(self) -> list[tuple[int, InFlight]]:
        """Everything in flight, as it is now."""
        return [
            (root, InFlight(msg_id, emitted_at))
            for root, (msg_id, emitted_at, _) in [*self._entries.items(), *self.waiting.items()]
        ]

    def _expired(
        self, group: dict[int, tuple[MsgId, float, float]], now: float, *, waited: bool
    ) -> list[tuple[int, InFlight]]:
        expired: list[tuple[int, InFlight]] = []
        for root, (msg_id, emitted_at, since) in group.items():
            if self._timeout is None or now < since + self._timeout:
                break
            expired.append((root, InFlight(msg_id, emitted_at, waited)))
        return expired
