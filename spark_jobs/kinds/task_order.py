"""The order of the tuples of one bolt task: which tuples may begin, and which have failed.

A step never has two tuples of one key. A tuple begins only after the step of its predecessor is
committed, so the predecessor's outcome is known and stored. ``OrderGate`` does this for calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tiercel.acker.errors import RedisUnavailableError
from tiercel.acker.inbox.chunk import Lineage
from tiercel.acker.inbox.contract import Covered, Entry
from tiercel.acker.ledger import Ledger
from tiercel.queues.habits import habits_of
from tiercel.queues.retry import RetryPolicy
from tiercel.spark_jobs.bolts.tuples import Tuple
from tiercel.spark_jobs.bolts.verdicts import Reject, RetryLater
from tiercel.spark_jobs.emitting.fold import roots_of
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.kinds.awaited import (
    FailedTuples,
    HeldTuples,
    RetryDecisions,
    TupleKeys,
    times_of,
)
from tiercel.spark_jobs.kinds.calls.call import Call
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.backlog import Backlog, OpenEntry, Reader, Share, first_of
from tiercel.spark_jobs.running.kind import joined, parted
from tiercel.spark_jobs.running.step import Done
from tiercel.spark_jobs.topology.graph import Topology

# Only a bolt with a ``Retry`` loads tenacity.
if TYPE_CHECKING:
    from tiercel.spark_jobs.bolts.retry import Retry

log = logging.getLogger(__name__)

# Shorter waits are not worth reporting.
_LOOK_S = 0.1
# Three reports per message timeout, so that one report may fail.
_TELLS_PER_TIMEOUT = 3


class TaskOrder:
    """``Order`` of one bolt task. One thread only."""

    holds = False

    def __init__(
        self,
        around: Around,
        task: int,
        backlog: Callable[..., OrderedBacklog],
        retry: Retry | None = None,
    ) -> None:
        """``backlog`` creates the backlog; ``retry`` is the bolt's own policy."""
        topology = around.topology
        self.component = topology.component_of(task)
        self.retry = retry
        # Number of tuples that wait for their next attempt. Any thread may read it.
        self.waiting = 0
        self._task = task
        self._new_backlog = backlog
        clock = around.loop.time
        timeout_s = topology.config.message_timeout_secs
        self._apart = SetApart(around.ledger, clock, timeout_s)
        self._keys = TupleKeys(topology, self.component)
        times = times_of(topology, self.component)
        self._failed = FailedTuples(clock, around.wall, policy_of(topology), times)
        self._held = HeldTuples()
        # The dumped order after the newest step, and the bolt's part of the newest snapshot.
        self._kept = b""
        self._copy = b""
        # Places of the failed tuples of the last step that are retried.
        self.fresh: list[tuple[OpenEntry, int]] = []
        # The waits by ``retry`` of tuples of the current step, by their indices.
        self._waits_s: dict[int, float] = {}

    @property
    def next_at(self) -> float | None:
        """Time of the next change that does not depend on a new tuple."""
        return self._failed.next_at

    def tell_at(self, moment: float | None) -> float | None:
        """Return ``moment``, or the time of the next report to the spouts if that is earlier."""
        return self._apart.earlier(moment)

    def tell(self, backlog: Backlog, busy: Container[bytes] = ()) -> None:
        """Report failed tuples and their successors to the spouts, except for ``busy`` keys."""
        if self._failed or self._apart.waits:
            self._apart.look(lambda: self._waiting_in(backlog, busy))

    def opened(self, snapshot: bytes | None) -> bytes | None:
        kept, self._copy = parted(snapshot or b"")
        held, failed = parted(kept)
        try:
            self._failed.load(failed)
            self._held.load(held)
            self._kept = kept
        except ValueError as error:
            log.warning(
                "%s[%d]: %s; tuples that failed before are delivered out of order",
                self.component, self._task, error, extra={"event": "order_unreadable"},
            )  # fmt: skip
        return self._copy or None

    def backlog(self, done: Mapping[str, bytes]) -> Backlog:
        return self._new_backlog(done, self)

    # -- which tuples may begin ------------------------------------------------------------------

    def key(self, tup: Tuple) -> bytes | None:
        """Return the key of a tuple; None for a tick."""
        return self._keys.key(tup)

    def awaits(self, key: bytes) -> bool:
        """Return True if a failed tuple of this key comes before all others."""
        failed = self._failed.first(key)
        return failed is not None and failed.holds

    def comes_next(self, key: bytes, call: Call) -> bool:
        """Return True if no failed tuple of the key comes before the tuple of this call."""
        return self._is_next(
            key, call.position, call.tup.row, lambda: self._keys.identity(call.tup)
        )

    def _is_next(
        self, key: bytes, position: str | None, row: int, identity: Callable[[], bytes]
    ) -> bool:
        failed = self._failed.first(key)
        if failed is None or not failed.holds:
            return True
        if failed.entry is not None:
            return failed.may_begin_at(position, row)
        return failed.identity == identity()

    def ready(self, backlog: Backlog) -> list[Share]:
        """Return the tuples that the next step may take: the next one of each key, if present."""
        taken: set[bytes] = set()
        shares = []
        for entry in backlog:
            keyed = self._rows_of(Share(entry, entry.rows))
            rows = [row for row, key in keyed if self._may_go(entry, row, key, taken)]
            if rows:
                shares.append(Share(entry, np.array(rows)))
        return shares

    def _may_go(self, entry: OpenEntry, row: int, key: bytes | None, taken: set[bytes]) -> bool:
        if key is None:
            return True
        if key in taken:
            return False
        is_next = self._is_next(
            key, entry.position, row, lambda: self._keys.identity_in(entry.chunk, row)
        )
        if is_next:
            taken.add(key)
        return is_next

    def alone(self) -> Share | None:
        """Return the tuple that needs the next step for itself; None if there is none."""
        failed = self._failed.alone if self._failed else None
        if failed is None or failed.entry is None:
            return None
        return Share(failed.entry, np.array([failed.row]))

    # -- while they wait -------------------------------------------------------------------------

    def due(self, backlog: Backlog) -> bool:
        """Return True if tuples that were held back may begin.

        A back-off has ended, or the task has given up an awaited tuple.
        """
        if not self._failed:
            return False
        due = self._failed.due() | self._lapse(backlog)
        self.waiting = self._failed.waiting
        return due

    def _waiting_in(self, backlog: Backlog, busy: Container[bytes]) -> Iterator[int]:
        """Yield the roots of waiting tuples whose key has a failed first tuple.

        Leaves out ``busy`` keys, whose first tuple is running.
        """
        for entry in backlog:
            for row, key in self._rows_of(Share(entry, entry.rows)):
                if key is not None and key not in busy and self.awaits(key):
                    yield from roots_of(entry.chunk.lineage, row)

    def _lapse(self, backlog: Backlog) -> bool:
        if not (late := set(self._failed.late())):
            return False
        # Look in the backlog first: a late tuple may be back, but running or waiting for a permit.
        for entry in backlog:
            for row, key in self._rows_of(Share(entry, entry.rows)):
                if key is not None and key in late:
                    identity = self._keys.identity_in(entry.chunk, row)
                    failed = self._failed.first(key)
                    if failed is not None and failed.identity == identity:
                        self._failed.is_here(key)
        given_up = self._failed.lapse()
        for key in given_up:
            log.warning(
                "%s[%d]: a failed tuple was not delivered again; the other tuples of its key (%s) "
                "go on without it",
                self.component, self._task, key.hex()[:8], extra={"event": "order_given_up"},
            )  # fmt: skip
        return bool(given_up)

    # -- the outcome of a step -------------------------------------------------------------------

    def again(
        self, shares: Sequence[Share], record: Record, lineage: Lineage, *, repeated: bool
    ) -> list[int]:
        rows = []
        places = list(places_of(shares))
        decisions = RetryDecisions(self.retry, record)
        self._waits_s = {}
        for row in list(record.reasons):
            at = row - record.held
            # Held tuples have left the inbox, and ticks were never there.
            if not 0 <= at < len(places) or not _would_come_again(record, lineage, row):
                continue
            entry, number = places[at]
            key = self._keys_of(entry)[number]
            if key is None or row in record.replayed:
                continue
            identity = self._keys.identity_in(entry.chunk, number)
            attempts, waited_s = self._failed.attempts(key, identity)
            wait_s = decisions.wait_s(row, 1 + attempts, waited_s)
            if wait_s is None and self._is_last(key, identity, record, row):
                continue
            if not repeated:
                rows.append(row)
                if wait_s is not None:
                    self._waits_s[at] = wait_s
        record.retried = len(self._waits_s)
        return rows

    def _is_last(self, key: bytes, identity: bytes, record: Record, row: int) -> bool:
        """Return True if a tuple has failed too often: it is rejected."""
        failures = 1 + self._failed.failures(key, identity)
        if not self._failed.is_last(failures):
            return False
        self._give_up(key, failures, record.reasons[row])
        record.reasons[row] = f"failed {failures} times: {record.reasons[row]}"
        record.verdicts[row] = Reject(record.reasons[row])
        return True

    def _give_up(self, key: bytes, failures: int, reason: str) -> None:
        log.warning(
            "%s[%d]: a tuple failed %d times (%s) and is rejected; the other tuples of its key "
            "(%s) go on without it",
            self.component, self._task, failures, reason, key.hex()[:8],
            extra={"event": "order_given_up"},
        )  # fmt: skip

    def noted(self, shares: Sequence[Share], done: Done) -> Done:
        record = done.record
        self.fresh.clear()
        if self._failed or record.reasons:
            for row in range(record.held):
                if _comes_again(done, row) and (known := self._held.get(done, row)):
                    self._failed.comes_again(*known)
            again = set(done.again)
            for at, (entry, number) in enumerate(islice(places_of(shares), done.executed)):
                self._note(entry, number, done, record.held + at, tried_again=at in again)
            self.waiting = self._failed.waiting
        if self._held or record.open_rows:
            self._hold(list(places_of(shares)), done)
        kept = self._dump()
        if kept == self._kept and done.snapshot is None:
            return done
        self._kept = kept
        self._copy = self._copy if done.snapshot is None else done.snapshot
        return replace(done, snapshot=joined(self._kept, self._copy))

    def conflicted(self, shares: Sequence[Share], done: Done) -> bytes:
        for at, (entry, number) in enumerate(islice(places_of(shares), done.executed)):
            key = self._keys_of(entry)[number]
            if key is not None and done.lineage.counts[done.record.held + at]:
                identity = self._keys.identity_in(entry.chunk, number)
                self._failed.comes_again(key, identity, doubtful=True)
        self._kept = self._dump()
        return joined(self._kept, self._copy)

    def _hold(self, places: Sequence[tuple[OpenEntry, int]], done: Done) -> None:
        """Note the tuples of a step that the bolt still holds."""
        new = {}
        for row in done.record.open_rows:
            at = row - done.record.held
            if 0 <= at < len(places):
                entry, number = places[at]
                if (key := self._keys_of(entry)[number]) is not None:
                    new[row] = key, self._keys.identity_in(entry.chunk, number)
        self._held.note(done, new)

    def _dump(self) -> bytes:
        failed, held = self._failed.dump(), self._held.dump()
        return joined(held, failed) if held else failed

    def _note(
        self, entry: OpenEntry, number: int, done: Done, row: int, *, tried_again: bool
    ) -> None:
        """Note the outcome of one tuple, row ``number`` of its entry and ``row`` of its step."""
        key = self._keys_of(entry)[number]
        comes_again = _comes_again(done, row)
        if key is None or not (tried_again or comes_again or self._failed.first(key)):
            return
        identity = self._keys.identity_in(entry.chunk, number)
        if tried_again:
            wait_s = self._waits_s.get(row - done.record.held)
            alone = done.record.aborted
            self._failed.tries_again(key, identity, entry, number, alone=alone, wait_s=wait_s)
            self.fresh.append((entry, number))
        elif comes_again:
            self._failed.comes_again(key, identity)
        else:
            self._failed.done(key, identity)

    def _rows_of(self, share: Share) -> Iterator[tuple[int, bytes | None]]:
        keys = self._keys_of(share.entry)
        return ((row, keys[row]) for row in share.rows.tolist())

    def _keys_of(self, entry: OpenEntry) -> Sequence[bytes | None]:
        if entry.keys is None:
            entry.keys = self._keys.keys_in(entry.chunk)
        return entry.keys


class MayBegin(Protocol):
    """Decides which tuples of a backlog may begin."""

    def alone(self) -> Share | None:
        """Return the tuple that needs the next step for itself; None if there is none."""

    def ready(self, backlog: Backlog) -> list[Share]:
        """Return the tuples that the next step may take."""


class OrderedBacklog(Backlog):
    """``Backlog`` that only offers steps the tuples that may begin."""

    def __init__(self, done: Mapping[str, bytes], order: MayBegin) -> None:
        super().__init__(done)
        self._order = order

    def first(self, most: int) -> list[Share]:
        alone = self._order.alone() if most > 0 else None
        return first_of(self._ready(), most) if alone is None else [alone]

    def one_of(self, identities: AbstractSet[int]) -> Share | None:
        found = super().one_of(identities)
        if found is None or not any(_has(share, found) for share in self._ready()):
            return None
        return found

    def _ready(self) -> Sequence[Share]:
        return self._order.ready(self)


class ReadyBacklog(OrderedBacklog):
    """``OrderedBacklog`` that counts only tuples that may begin; for bolts with single calls."""

    def __init__(self, done: Mapping[str, bytes], order: MayBegin) -> None:
        super().__init__(done, order)
        # Number of all waiting tuples.
        self._all = 0
        self._shares: Sequence[Share] = ()

    @property
    def held_back(self) -> int:
        """Number of tuples that must wait for a predecessor."""
        return self._all - self.tuples

    def add(self, entries: Iterable[Entry], read: Reader) -> list[int]:
        self.tuples = self._all
        strange = super().add(entries, read)
        self.counted()
        return strange

    def counted(self) -> None:
        """Note that ``tuples`` is the number of all waiting tuples now; update the others."""
        self._all = self.tuples
        self.refresh()

    def refresh(self) -> None:
        """Update the tuples that may begin."""
        self._shares = self._order.ready(self)
        self.tuples = sum(len(share.rows) for share in self._shares)

    def take_out(self, shares: Sequence[Share], step: int, ticks: int) -> Covered:
        self.tuples = self._all
        covered = super().take_out(shares, step, ticks)
        self.counted()
        return covered

    def _ready(self) -> Sequence[Share]:
        return self._shares


def _has(share: Share, one: Share) -> bool:
    return share.entry is one.entry and one.rows[0] in share.rows


class SetApart:
    """Reports a task's waiting tuples to the spouts, which set them apart.

    Their messages then do not time out and do not count as in flight. One thread only; times are
    in seconds on ``clock``.
    """

    def __init__(
        self, ledger: Ledger | None, clock: Callable[[], float], timeout_s: float | None
    ) -> None:
        """``timeout_s`` is None if messages never time out."""
        self._ledger = ledger
        self._clock = clock
        self._tells_s = None if timeout_s is None else timeout_s / _TELLS_PER_TIMEOUT
        # Roots of reported tuples that still wait.
        self._told: set[int] = set()
        # True if unreported tuples may be waiting.
        self._unsure = False
        self._look_at = float("-inf")
        self._tell_all_at = float("-inf")

    @property
    def waits(self) -> bool:
        """True if tuples may be waiting."""
        return self._unsure or bool(self._told)

    def earlier(self, moment: float | None) -> float | None:
        """Return ``moment``, or the time at which to call ``look`` again if that is earlier."""
        if not self.waits:
            return moment
        at = self._look_at if self._unsure else max(self._look_at, self._tell_all_at)
        return at if moment is None else min(moment, at)

    def look(self, waiting: Callable[[], Iterable[int]]) -> None:
        """Report new waiting tuples, and report all of them again before they time out.

        Call this in every turn while the task has a failed tuple.
        """
        now = self._clock()
        if self._ledger is None:
            return
        self._unsure = True
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        roots = set(waiting())
        everything = now >= self._tell_all_at
        news = roots if everything else roots - self._told
        try:
            if news:
                self._ledger.reset_timeout(sorted(news), waiting=True)
        except RedisUnavailableError as error:
            log.debug(
                "could not report waiting tuples, will retry: %s",
                error,
                extra={"event": "redis_away"},
            )
            return
        self._told = roots
        self._unsure = False
        if everything and self._tells_s is not None:
            self._tell_all_at = now + self._tells_s


def places_of(shares: Sequence[Share]) -> Iterator[tuple[OpenEntry, int]]:
    return ((share.entry, row) for share in shares for row in share.rows.tolist())


def _comes_again(done: Done, row: int) -> bool:
    """Return True if a tuple failed and its message is redelivered."""
    return row in done.record.reasons and _would_come_again(done.record, done.lineage, row)


def _would_come_again(record: Record, lineage: Lineage, row: int) -> bool:
    """Return True if the message of a failed tuple is redelivered and keeps its place.

    ``RetryLater`` lets its successors go first, and a rejected message never comes back.
    """
    verdict = record.verdicts.get(row)
    return not isinstance(verdict, (Reject, RetryLater)) and bool(lineage.counts[row])


def policy_of(topology: Topology) -> tuple[RetryPolicy, int]:
    """Return the back-off and the delivery limit for retries.

    A tuple may come from any spout, so the most patient spout counts.
    """
    spouts = [habits_of(spec.spout) for spec in topology.spouts.values()]
    retries = [spout.retry for spout in spouts]
    first = max(retry.first for retry in retries)
    longest = max(retry.longest for retry in retries)
    limit = max(spout.delivery_limit for spout in spouts)
    return RetryPolicy(first=first, longest=longest), limit


class OrderGate:
    """``FlightGate`` of one bolt task."""

    def __init__(self, order: TaskOrder) -> None:
        self._order = order
        # Keys of calls that have begun and whose step is not committed.
        self.busy: set[bytes] = set()
        # Keys of the calls that were held back in this round.
        self._passed: set[bytes] = set()
        # Keys of calls that have ended since the last step was committed.
        self._over: list[bytes] = []

    @property
    def next_at(self) -> float | None:
        return self._order.next_at

    def look(self, waiting: Sequence[Call]) -> None:  # noqa: ARG002 - may_begin sees each call
        self._passed.clear()

    def may_begin(self, call: Call) -> bool:
        key = self._key(call)
        if key is None:
            return True
        free = key not in self.busy and key not in self._passed
        return free and self._order.comes_next(key, call)

    def began(self, call: Call) -> None:
        if (key := self._key(call)) is not None:
            self.busy.add(key)

    def passed_over(self, call: Call) -> None:
        key = self._key(call)
        # If the key awaits a failed tuple, that tuple may be behind this one and comes first.
        if key is not None and not self._order.awaits(key):
            self._passed.add(key)

    def over(self, call: Call) -> None:
        """Note the end of a call. Its key stays busy, as its outcome is open until the commit."""
        if (key := self._key(call)) is not None:
            self._over.append(key)

    def comes_first(self, call: Call) -> bool:
        """Return True if other tuples wait for this one."""
        order = self._order
        key = self._key(call)
        return key is not None and order.awaits(key) and order.comes_next(key, call)

    def in_turn(self, calls: Sequence[Call]) -> tuple[list[Call], list[Call]]:
        """Split calls into the ones that may run concurrently and the others."""
        keys: set[bytes] = set()
        chosen: list[Call] = []
        others: list[Call] = []
        for call in calls:
            key = self._key(call)
            may = key is None or (key not in keys and self._order.comes_next(key, call))
            (chosen if may else others).append(call)
            keys |= set() if key is None else {key}
        return chosen, others

    def _key(self, call: Call) -> bytes | None:
        """Return the key of a tuple, computed once: it may have to wait for many others."""
        call.key = call.key or self._order.key(call.tup)
        return call.key

    def left(self) -> None:
        """Free the keys of ended calls: their step is committed."""
        self.busy.difference_update(self._over)
        self._over.clear()
