"""The failed tuples of a bolt with ``Retry`` and without an order.

A tuple that waits stays in the backlog: the step in which it failed does not cover it. The backlog
does not offer it to other steps before its time. ``TaskOrder`` does the same for ordered bolts, by
key.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from tiercel.acker.errors import RedisUnavailableError
from tiercel.acker.inbox.chunk import Lineage, Rows
from tiercel.acker.inbox.contract import Rest
from tiercel.spark_jobs.emitting.fold import roots_of
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.kinds.awaited import RetryDecisions
from tiercel.spark_jobs.kinds.task_order import ReadyBacklog, SetApart, places_of
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.backlog import Backlog, OpenEntry, Share, first_of
from tiercel.spark_jobs.running.step import Done

# Only a bolt with a ``Retry`` loads tenacity.
if TYPE_CHECKING:
    from tiercel.spark_jobs.bolts.retry import Retry

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Tried:
    """A tuple whose attempts have failed so far."""

    attempts: int = 0
    # Sum of its waits, and the last one.
    waited_s: float = 0.0
    wait_s: float = 0.0
    waits: bool = True

    def again(self, wait_s: float) -> _Tried:
        """Return the tuple after another attempt that failed."""
        return _Tried(self.attempts + 1, self.waited_s + wait_s, wait_s)


_UNTRIED = _Tried()


class TaskRetries:
    """``Order`` of one task of a bolt with ``Retry``. One thread only, except ``waiting``."""

    holds = False

    def __init__(self, around: Around, task: int, retry: Retry) -> None:
        self.retry: Retry | None = retry
        self._task = task
        self._ledger = around.ledger
        self._clock = around.loop.time
        config = around.topology.config
        self._apart = SetApart(around.ledger, self._clock, config.message_timeout_secs)
        # By position and row.
        self._tried: dict[str, dict[int, _Tried]] = {}
        # A heap of the waiting tuples: the end of the wait, a number, and the place.
        self._waits: list[tuple[float, int, OpenEntry, int]] = []
        self._numbers = count()
        # The tuples of the current step that are retried, by their indices.
        self._again: dict[int, _Tried] = {}
        # Places of the tuples whose wait has ended since the last call of ``due``.
        self.fresh: list[tuple[OpenEntry, int]] = []

    @property
    def waiting(self) -> int:
        """Number of tuples that wait for their next attempt. Any thread."""
        return len(self._waits)

    # -- while they wait -------------------------------------------------------------------------

    @property
    def next_at(self) -> float | None:
        """Time at which the next wait ends."""
        return self._waits[0][0] if self._waits else None

    def tell_at(self, moment: float | None) -> float | None:
        """Return ``moment``, or the time of the next report to the spouts if that is earlier."""
        return self._apart.earlier(moment)

    def tell(self, backlog: Backlog, busy: Container[bytes] = ()) -> None:  # noqa: ARG002 - for TaskOrder
        """Report the waiting tuples to the spouts."""
        if self._waits or self._apart.waits:
            self._apart.look(self._waiting_roots)

    def due(self, backlog: Backlog) -> bool:  # noqa: ARG002 - for TaskOrder
        """Return True if waits have ended: these tuples are ``fresh`` now."""
        self.fresh.clear()
        now = self._clock()
        while self._waits and self._waits[0][0] <= now:
            _, _, entry, row = heapq.heappop(self._waits)
            self._tried[entry.position][row].waits = False
            self.fresh.append((entry, row))
        if self.fresh:
            self._restart_timeouts()
        return bool(self.fresh)

    def _restart_timeouts(self) -> None:
        """Have the timeouts of the messages begin anew with the next attempt."""
        roots = {root for entry, row in self.fresh for root in _roots(entry, row)}
        if self._ledger is None or not roots:
            return
        try:
            self._ledger.reset_timeout(sorted(roots))
        except RedisUnavailableError as error:
            log.debug("could not renew timeouts: %s", error, extra={"event": "redis_away"})

    def _waiting_roots(self) -> Iterator[int]:
        for _, _, entry, row in self._waits:
            yield from _roots(entry, row)

    # -- for the backlog -------------------------------------------------------------------------

    def opened(self, snapshot: bytes | None) -> bytes | None:
        return snapshot

    def backlog(self, done: Mapping[str, bytes]) -> Backlog:
        return RetryBacklog(done, self)

    def alone(self) -> None:
        """Return None: no tuple needs a step for itself."""

    def ready(self, backlog: Backlog) -> list[Share]:
        """Return the tuples that do not wait."""
        if not self._waits:
            return [Share(entry, entry.rows) for entry in backlog]
        shares = [Share(entry, self.ready_in(entry)) for entry in backlog]
        return [share for share in shares if share.rows.size]

    def ready_in(self, entry: OpenEntry) -> Rows:
        """Return the rows of an entry that do not wait."""
        tried = self._tried.get(entry.position, {})
        waiting = [row for row, one in tried.items() if one.waits]
        return np.setdiff1d(entry.rows, waiting, assume_unique=True) if waiting else entry.rows

    def last_tried(self, position: str) -> int:
        """Return the last row of an entry that has failed; -1 if none has."""
        return max(self._tried.get(position, ()), default=-1)

    # -- the outcome of a step -------------------------------------------------------------------

    def again(
        self, shares: Sequence[Share], record: Record, lineage: Lineage, *, repeated: bool
    ) -> list[int]:
        del lineage
        decisions = RetryDecisions(self.retry, record)
        self._again = {}
        places = list(places_of(shares))
        for row in list(record.reasons):
            at = row - record.held
            # Held tuples have left the inbox, and ticks were never there.
            if not 0 <= at < len(places) or row in record.replayed:
                continue
            entry, number = places[at]
            tried = self._tried.get(entry.position, {}).get(number, _UNTRIED)
            wait_s = decisions.wait_s(row, 1 + tried.attempts, tried.waited_s)
            if wait_s is not None and not repeated:
                self._again[at] = tried.again(wait_s)
        record.retried = len(self._again)
        return [record.held + at for at in self._again]

    def noted(self, shares: Sequence[Share], done: Done) -> Done:
        if self._tried:
            self._forget(first_of(shares, done.executed))
        if self._again:
            now = self._clock()
            places = list(places_of(shares))
            for at, tried in self._again.items():
                entry, row = places[at]
                self._tried.setdefault(entry.position, {})[row] = tried
                heapq.heappush(self._waits, (now + tried.wait_s, next(self._numbers), entry, row))
            self._again = {}
        return done

    def conflicted(self, shares: Sequence[Share], done: Done) -> None:
        """Note nothing: the messages are redelivered, as for a bolt without ``Retry``."""

    def _forget(self, shares: Sequence[Share]) -> None:
        for share in shares:
            if tried := self._tried.get(share.entry.position):
                for row in tried.keys() & set(share.rows.tolist()):
                    del tried[row]
                if not tried:
                    del self._tried[share.entry.position]


def _roots(entry: OpenEntry, row: int) -> list[int]:
    return roots_of(entry.chunk.lineage, row)


class RetryBacklog(ReadyBacklog):
    """``ReadyBacklog`` of a bolt with ``Retry``, whose entries may have come from a line."""

    def __init__(self, done: Mapping[str, bytes], retries: TaskRetries) -> None:
        super().__init__(done, retries)
        self._retries = retries

    def may_begin(self, entry: OpenEntry) -> Rows:
        return self._retries.ready_in(entry)

    def rests(self, begun: Sequence[Share]) -> list[Rest]:
        # A tuple that has failed stays here: in the line it would be executed at once.
        last = self._retries.last_tried
        return [rest for rest in super().rests(begun) if rest.first > last(rest.position)]

    def gone(self, rests: Sequence[Rest]) -> None:
        self.tuples = self.tuples + self.held_back
        super().gone(rests)
        self.counted()
