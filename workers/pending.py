"""The messages of one spout task that are in flight, and when each times out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from queues.spout import MsgId


@dataclass(frozen=True, slots=True)
class InFlight:
    """One emitted spout tuple."""

    msg_id: MsgId
    emitted_at: float
    """Seconds on the caller's monotonic clock."""


class Pending:
    """Roots in flight, oldest deadline first. One thread only; times are seconds on one monotonic clock.

    Storm rotates two buckets, so that a tuple times out after one to two timeouts. The timeout is the same for all, hence
    insertion order is the order of deadlines and the front of one dict is exact: never early, late by one call at most.
    """

    def __init__(self, timeout: timedelta | None) -> None:
        """``timeout`` of None: nothing expires."""
        self._timeout = timeout.total_seconds() if timeout else None
        self._entries: dict[int, tuple[InFlight, float]] = {}
        self._reset: dict[int, float] = {}
        """When those were emitted whose timeout began again: the oldest may be one of them."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, root: int) -> bool:
        return root in self._entries

    def add(self, root: int, msg_id: MsgId, now: float) -> None:
        """A tuple was emitted at ``now``."""
        self._entries[root] = (InFlight(msg_id, now), now)

    def pop(self, root: int) -> InFlight | None:
        """The tuple has its outcome; None if it is not in flight any more."""
        found = self._entries.pop(root, None)
        if self._reset:
            self._reset.pop(root, None)
        return found[0] if found else None

    def reset(self, root: int, now: float) -> bool:
        """Start the timeout of a tuple again; False if it is not in flight any more."""
        found = self._entries.pop(root, None)
        if found is None:
            return False
        self._entries[root] = (found[0], now)
        self._reset[root] = found[0].emitted_at
        return True

    def expire(self, now: float) -> list[tuple[int, InFlight]]:
        """Take out all tuples whose timeout is over."""
        expired: list[tuple[int, InFlight]] = []
        if self._timeout is None:
            return expired
        for root, (in_flight, since) in self._entries.items():
            if now - since < self._timeout:
                break
            expired.append((root, in_flight))
        for root, _ in expired:
            del self._entries[root]
            self._reset.pop(root, None)
        return expired

    def oldest_s(self, now: float) -> float:
        """Seconds since the oldest of them was emitted; 0 if nothing is in flight."""
        first = next(iter(self._entries.values()), None)
        if first is None:
            return 0.0
        return max(0.0, now - min([first[0].emitted_at, *self._reset.values()]))

    def items(self) -> list[tuple[int, InFlight]]:
        """Everything in flight, as it is now."""
        return [(root, in_flight) for root, (in_flight, _) in self._entries.items()]
