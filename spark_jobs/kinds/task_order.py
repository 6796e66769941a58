"""The order of the tuples of one bolt task: which may begin, and what a step did to it.

A step never has two tuples of one key, and none of a key begins before the step of the one before
it has left. So the outcome of that one is known, and kept. ``OrderGate`` does the same for calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import islice

import numpy as np

from tiercel.acker.errors import RedisUnavailableError
from tiercel.acker.inbox.contract import Entry
from tiercel.acker.ledger import Ledger
from tiercel.queues.habits import habits_of
from tiercel.spark_jobs.bolts.tuples import Tuple
from tiercel.spark_jobs.emitting.fold import roots_of
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.kinds.awaited import DOUBTFUL_HOLDS, Awaited, TupleKeys
from tiercel.spark_jobs.kinds.calls.call import Call
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.backlog import Backlog, OpenEntry, Reader, Share, first_of
from tiercel.spark_jobs.running.copy import joined, parted
from tiercel.spark_jobs.running.step import Done
from tiercel.spark_jobs.topology.bolt_settings import ordered_by_of
from tiercel.spark_jobs.topology.graph import Topology

log = logging.getLogger(__name__)

# Successors make room for what they wait for after this time, or this part of their timeout.
_HOLD_S = 2.0
_HOLD_PART = 0.25
# A tuple is awaited for so many timeouts and at least for this time: a spout worker that died has
# begun again by then, and the messages that it had have come once more.
_TIMEOUTS = 2.0
_PATIENCE_S = 60.0
# Where a user's own spout replays, it is this many timeouts: its successors are held.
_PATIENCE_PART = 0.5
# Shorter waits are not worth reporting.
_LOOK_S = 0.1
# Fractions of a message's timeout, so that one call may fail.
_TELLS_PER_TIMEOUT = 3


class TaskOrder:
    """``Order`` of one bolt task. One thread only."""

    def __init__(self, around: Around, task: int, waiting: Callable[..., OrderedBacklog]) -> None:
        """``waiting`` makes the backlog that its tuples wait in."""
        topology = around.topology
        self.component = topology.component_of(task)
        self._task = task
        self._waiting = waiting
        timeout_s = topology.config.message_timeout_secs
        self._apart = SetApart(around.ledger, around.loop.time, timeout_s)
        self._keys = TupleKeys(topology, self.component)
        self._awaited = Awaited(around.loop.time, around.wall, *_times(topology, self.component))
        # As the newest step left it, and the part of the copy in the newest snapshot.
        self._kept = b""
        self._copy = b""
        # Keys of tuples that are held back, by what is awaited.
        self.held: set[bytes] = set()

    def __bool__(self) -> bool:
        """True if a tuple is awaited."""
        return bool(self._awaited)

    @property
    def next_at(self) -> float | None:
        """Time of the next change that needs no new tuple."""
        return self._awaited.next_at(self.held) if self._awaited else None

    def tell_at(self, moment: float | None) -> float | None:
        """Return that moment, or an earlier one at which to tell the spouts of what waits."""
        if not self.held:
            return moment
        return self._apart.next_at if moment is None else min(moment, self._apart.next_at)

    def tell(self, backlog: Backlog, busy: Container[bytes] = ()) -> None:
        """Report waiting tuples to the spouts, unless the key that they wait for is ``busy``."""
        if self._awaited:
            self._apart.look(lambda: self._waiting_in(backlog, busy))

    def opened(self, snapshot: bytes | None) -> bytes | None:
        kept, self._copy = parted(snapshot or b"")
        try:
            self._awaited.load(kept)
            self._kept = kept
        except ValueError as error:
            log.warning(
                "%s[%d]: %s; tuples that failed before are delivered out of order",
                self.component, self._task, error, extra={"event": "order_unreadable"},
            )  # fmt: skip
        return self._copy or None

    def backlog(self, done: Mapping[str, bytes]) -> Backlog:
        return self._waiting(done, self)

    # -- which tuples may begin ------------------------------------------------------------------

    def key(self, tup: Tuple) -> bytes | None:
        """Return the key of a tuple; None for a tick."""
        return self._keys.key(tup)

    def awaits(self, key: bytes) -> bool:
        """Return True if something of this key was given back and comes before all else."""
        return key in self._awaited

    def comes_next(self, key: bytes, tup: Tuple) -> bool:
        """Return True if the tuple is what is awaited of its key, or nothing is."""
        first = self._awaited.first(key)
        return first is None or first == self._keys.identity(tup)

    def ready(self, backlog: Backlog) -> list[Share]:
        """Return what the next step may take: of each key what comes next, if it is there."""
        self.held.clear()
        taken: set[bytes] = set()
        shares = []
        for entry in backlog:
            rows = [
                row
                for row, key in self._rows_of(Share(entry, entry.rows))
                if self._may_go(entry, row, key, taken)
            ]
            if rows:
                shares.append(Share(entry, np.array(rows)))
        self.held -= taken
        return shares

    def _may_go(self, entry: OpenEntry, row: int, key: bytes | None, taken: set[bytes]) -> bool:
        if key is None:
            return True
        if key in taken:
            return False
        first = self._awaited.first(key)
        if first is not None and first != self._keys.identity_in(entry.chunk, row):
            self.held.add(key)
            return False
        taken.add(key)
        return True

    # -- while they wait -------------------------------------------------------------------------

    def _waiting_in(self, backlog: Backlog, busy: Container[bytes]) -> Iterator[int]:
        """The roots of what waits there for what is awaited of its key, unless that is ``busy``."""
        for entry in backlog:
            for row, key in self._rows_of(Share(entry, entry.rows)):
                if key is not None and key in self._awaited and key not in busy:
                    yield from roots_of(entry.chunk.lineage, row)

    def lapse(self, backlog: Backlog) -> bool:
        """Wait no longer for what should be in the backlog by now; True if there was any."""
        if not self._awaited or not (late := set(self._awaited.late())):
            return False
        # Under way for long, or without a place or a permit: it has come nevertheless.
        waiting = self._places_in([Share(entry, entry.rows) for entry in backlog], late)
        for key, those in waiting.items():
            if self._awaited.first(key) in [identity for *_, identity in those]:
                self._awaited.is_here(key)
        given_up = self._awaited.lapse()
        self.held.difference_update(key for key in given_up if key not in self._awaited)
        for key in given_up:
            log.warning(
                "%s[%d]: a failed tuple was not delivered again; the other tuples of its key (%s) "
                "go on without it",
                self.component, self._task, key.hex()[:8], extra={"event": "order_given_up"},
            )  # fmt: skip
        return bool(given_up)

    def too_long_in(
        self, backlog: Backlog, busy: Container[bytes] = (), *, full: bool = False
    ) -> Sequence[Share]:
        """Return what is to be given back of what waits there, and note that it is: tuples that
        have waited for too long for what is awaited of their key, unless that is ``busy``.

        ``full``: no more of them can be held, and what they wait for may be behind them.
        """
        overdue = {key for key in self._awaited.overdue(full=full) if key not in busy}
        if not overdue:
            return ()
        return self._parted([Share(entry, entry.rows) for entry in backlog], overdue)[1]

    def parted(self, shares: Sequence[Share]) -> tuple[Sequence[Share], Sequence[Share]]:
        return self._parted(shares, self._awaited.keys) if self._awaited else (shares, ())

    def _parted(
        self, shares: Sequence[Share], keys: Container[bytes]
    ) -> tuple[list[Share], list[Share]]:
        gone: dict[str, list[int]] = {}
        for key, those in self._places_in(shares, keys).items():
            identities = [identity for *_, identity in those]
            if self._awaited.first(key) in identities:
                self._awaited.is_here(key)
                continue
            self._awaited.given_back(key, identities)
            self.held.discard(key)
            for entry, row, _ in those:
                # What is in no tree would not come again: it waits where it is.
                if entry.chunk.lineage.counts[row]:
                    gone.setdefault(entry.position, []).append(row)
        kept: list[Share] = []
        given_back: list[Share] = []
        for share in shares:
            mask = np.isin(share.rows, gone.get(share.entry.position, ()))
            kept += share.only(~mask)
            given_back += share.only(mask)
        return kept, given_back

    def _places_in(
        self, shares: Sequence[Share], keys: Container[bytes]
    ) -> dict[bytes, list[tuple[OpenEntry, int, bytes]]]:
        """Return where the tuples of these keys are, and what they are known again by."""
        places: dict[bytes, list[tuple[OpenEntry, int, bytes]]] = {}
        for share in shares:
            for row, key in self._rows_of(share):
                if key is not None and key in keys:
                    identity = self._keys.identity_in(share.entry.chunk, row)
                    places.setdefault(key, []).append((share.entry, row, identity))
        return places

    # -- what became of them ---------------------------------------------------------------------

    def noted(self, shares: Sequence[Share], done: Done) -> Done:
        record = done.record
        if self._awaited or record.reasons:
            for tup in _held_and_failed(record):
                if (key := self._keys.key(tup)) is not None and _comes_again(done, tup.row):
                    self._awaited.failed(key, self._keys.identity(tup))
            for at, (entry, row) in enumerate(islice(_places_of(shares), done.executed)):
                self._note(entry, row, comes_again=_comes_again(done, record.held + at))
        kept = self._awaited.dump() if self._awaited else b""
        if kept == self._kept and done.snapshot is None:
            return done
        self._kept = kept
        self._copy = self._copy if done.snapshot is None else done.snapshot
        return replace(done, snapshot=joined(self._kept, self._copy))

    def conflicted(self, shares: Sequence[Share], done: Done) -> bytes:
        for at, (entry, row) in enumerate(islice(_places_of(shares), done.executed)):
            if done.lineage.counts[done.record.held + at]:
                self._note(entry, row, comes_again=True, doubtful=True)
        self._kept = self._awaited.dump()
        return joined(self._kept, self._copy)

    def _note(
        self, entry: OpenEntry, row: int, *, comes_again: bool, doubtful: bool = False
    ) -> None:
        key = self._keys_of(entry)[row]
        if key is None or not (comes_again or key in self._awaited):
            return
        identity = self._keys.identity_in(entry.chunk, row)
        if comes_again:
            self._awaited.failed(key, identity, doubtful=doubtful)
        else:
            self._awaited.done(key, identity)

    def _rows_of(self, share: Share) -> Iterator[tuple[int, bytes | None]]:
        keys = self._keys_of(share.entry)
        return ((row, keys[row]) for row in share.rows.tolist())

    def _keys_of(self, entry: OpenEntry) -> Sequence[bytes | None]:
        if entry.keys is None:
            entry.keys = self._keys.keys_in(entry.chunk)
        return entry.keys


class OrderedBacklog(Backlog):
    """``Backlog`` from which steps take only tuples that may begin."""

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


class SetApart:
    """Of one bolt task. One thread only; times are seconds on ``clock``."""

    def __init__(
        self, ledger: Ledger | None, clock: Callable[[], float], timeout_s: float | None
    ) -> None:
        """``timeout_s`` of None: messages never time out."""
        self._ledger = ledger
        self._clock = clock
        self._tells_s = None if timeout_s is None else timeout_s / _TELLS_PER_TIMEOUT
        # Reported tuples that still wait.
        self._told: set[int] = set()
        self._look_at = float("-inf")
        self._tell_all_at = float("-inf")

    @property
    def next_at(self) -> float:
        """Time at which to look again, as long as tuples wait."""
        return self._look_at

    def look(self, waiting: Callable[[], Iterable[int]]) -> None:
        """Tell of the roots of what waits now: of each once soon, and of all before they time out.

        Call it in every turn in which something is awaited.
        """
        now = self._clock()
        if self._ledger is None or now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        roots = set(waiting())
        everything = now >= self._tell_all_at
        news = roots if everything else roots - self._told
        try:
            if news:
                self._ledger.reset_timeout(sorted(news), waiting=True)
        except RedisUnavailableError as error:
            log.debug("told later that tuples wait: %s", error, extra={"event": "redis_away"})
            return
        self._told = roots
        if everything and self._tells_s is not None:
            self._tell_all_at = now + self._tells_s


def _places_of(shares: Sequence[Share]) -> Iterator[tuple[OpenEntry, int]]:
    return ((share.entry, row) for share in shares for row in share.rows.tolist())


def _held_and_failed(record: Record) -> Iterator[Tuple]:
    """The tuples of earlier steps that failed in this one."""
    return (tup for tup in record.tuples if tup.row < record.held and tup.row in record.reasons)


def _comes_again(done: Done, row: int) -> bool:
    """Return True if a tuple failed and its message is delivered again, in its place.

    Who raises ``RetryLater`` has it come later than its successors, and what is rejected never
    comes.
    """
    record = done.record
    return row in record.reasons and row not in record.verdicts and bool(done.lineage.counts[row])


def _times(topology: Topology, component: str) -> tuple[float, float | None, float | None]:
    """Return for how long a tuple is awaited, for how long its successors are held, and for how
    long what may never come is awaited.

    A queue has a message again after its back-off. Other spouts may never emit it again, and what
    they are given back fails: so their tuples are held, and not until they time out. What a bolt
    awaits may be held back by an ordered one before it, which gives up first.
    """
    config = topology.config
    timeout_s = config.message_timeout_secs
    spouts = [habits_of(spec.spout) for spec in topology.spouts.values()]
    if not all(spout.takes_back for spout in spouts):
        return _PATIENCE_PART * timeout_s, None, None
    back_off_s = max((spout.back_off_s for spout in spouts), default=0.0)
    patience_s = max(_PATIENCE_S, _TIMEOUTS * timeout_s) + back_off_s
    hold_s = min(_HOLD_S, _HOLD_PART * timeout_s)
    times = 1 + _ordered_before(topology, component)
    return times * patience_s, hold_s, times * DOUBTFUL_HOLDS * hold_s


def _ordered_before(topology: Topology, component: str) -> int:
    """Number of ordered bolts that a tuple of this one may have passed."""
    before: set[str] = set()
    ahead = [component]
    while ahead:
        for source in topology.bolts[ahead.pop()].subscriptions:
            if source.component in topology.bolts and source.component not in before:
                before.add(source.component)
                ahead.append(source.component)
    return sum(bool(ordered_by_of(topology.bolts[bolt])) for bolt in before - {component})


class OrderGate:
    """``FlightGate`` of one bolt task."""

    def __init__(self, order: TaskOrder) -> None:
        self._order = order
        # Keys of calls that have begun and whose step has not left.
        self.busy: set[bytes] = set()
        # Keys of the calls that were passed over in this look.
        self._passed: set[bytes] = set()
        # Keys of calls that have ended since a step left.
        self._over: list[bytes] = []

    @property
    def next_at(self) -> float | None:
        return self._order.next_at

    def look(self, waiting: Sequence[Call]) -> None:  # noqa: ARG002 - each is asked about
        self._order.held.clear()
        self._passed.clear()

    def may_begin(self, call: Call) -> bool:
        key = self._order.key(call.tup)
        if key is None:
            return True
        free = key not in self.busy and key not in self._passed
        return free and self._order.comes_next(key, call.tup)

    def began(self, call: Call) -> None:
        if (key := self._order.key(call.tup)) is not None:
            self.busy.add(key)
            self._order.held.discard(key)

    def passed_over(self, call: Call) -> None:
        key = self._order.key(call.tup)
        if key is None:
            return
        if not self._order.awaits(key):
            self._passed.add(key)
        elif key not in self.busy:
            # What is awaited may stand behind it.
            self._order.held.add(key)

    def over(self, call: Call) -> None:
        """Its key stays busy until its step has left: what becomes of it is not known before."""
        if (key := self._order.key(call.tup)) is not None:
            self._over.append(key)

    def comes_first(self, call: Call) -> bool:
        """Return True if other tuples wait for this one."""
        order = self._order
        key = order.key(call.tup)
        return key is not None and order.awaits(key) and order.comes_next(key, call.tup)

    def in_turn(self, calls: Sequence[Call]) -> tuple[list[Call], list[Call]]:
        """Split calls into the ones that may be under way at once, and the others."""
        keys: set[bytes] = set()
        chosen: list[Call] = []
        others: list[Call] = []
        for call in calls:
            key = self._order.key(call.tup)
            may = key is None or (key not in keys and self._order.comes_next(key, call.tup))
            (chosen if may else others).append(call)
            keys |= set() if key is None else {key}
        return chosen, others

    def left(self) -> None:
        """The step of those that are over has left."""
        self.busy.difference_update(self._over)
        self._over.clear()
