"""The order of the tuples of one bolt task: which may begin, and what a step did to it.

A step never has two tuples of one key, and none of a key begins before the step of the one before
it has left. So what became of that one is known, and kept.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterator, Sequence
from itertools import islice

import numpy as np

from tiercel.queues.habits import habits_of
from tiercel.spark_jobs.bolts.tuples import Tuple
from tiercel.spark_jobs.emitting.fold import roots_of
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.backlog import Backlog, OpenEntry, Share
from tiercel.spark_jobs.running.order.awaited import DOUBTFUL_HOLDS, Awaited
from tiercel.spark_jobs.running.order.keys import TupleKeys
from tiercel.spark_jobs.running.step import Done
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.spark_jobs.topology.ordering import ordered_by_of

log = logging.getLogger(__name__)

# Successors make room for what they wait for after this time, or this part of their timeout.
_HOLD_S = 2.0
_HOLD_PART = 0.25
# A tuple is awaited for so many timeouts and at least for this time: a spout worker that died has
# begun again by then, and the messages that it had have come once more.
_TIMEOUTS = 2.0
_PATIENCE_S = 60.0
# Where a spout of the user's own replays, it is so many of them: its successors are held.
_PATIENCE_PART = 0.5


class TaskOrder:
    """Of one bolt task. One thread only."""

    def __init__(self, around: Around, task: int) -> None:
        topology = around.topology
        self.component = topology.component_of(task)
        self._task = task
        self._keys = TupleKeys(topology, self.component)
        self._awaited = Awaited(around.loop.time, around.wall, *_times(topology, self.component))
        # As the newest step that was sealed has it.
        self._kept = b""
        # What the step at work is to keep; None: what the one before kept.
        self.part: bytes | None = None
        # Keys of tuples that are held back, by what is awaited.
        self.held: set[bytes] = set()

    def __bool__(self) -> bool:
        """True if something is awaited."""
        return bool(self._awaited)

    @property
    def next_at(self) -> float | None:
        """Time at which something changes although no tuple comes."""
        return self._awaited.next_at(self.held) if self._awaited else None

    def load(self, kept: bytes) -> None:
        """Go on from what an earlier attempt kept."""
        try:
            self._awaited.load(kept)
            self._kept = kept
        except ValueError as error:
            log.warning(
                "%s[%d]: %s; what failed before comes again out of order",
                self.component, self._task, error, extra={"event": "order_unreadable"},
            )  # fmt: skip

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

    def waiting_in(self, backlog: Backlog, busy: Container[bytes] = ()) -> Iterator[int]:
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
                "%s[%d]: a tuple that failed has not come again; the other tuples of its key (%s) "
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
        """Part what a step covers, that is to be repeated, into what it executed and what it gave
        back: tuples whose turn it was not.
        """
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

    def note(self, shares: Sequence[Share], done: Done) -> None:
        """Note what a step did, before it leaves; ``part`` is then what it must keep."""
        record = done.record
        if self._awaited or record.reasons:
            for tup in _held_and_failed(record):
                if (key := self._keys.key(tup)) is not None and _comes_again(done, tup.row):
                    self._awaited.failed(key, self._keys.identity(tup))
            for at, (entry, row) in enumerate(islice(_places_of(shares), done.executed)):
                self._note(entry, row, comes_again=_comes_again(done, record.held + at))
        self._keep()

    def note_conflict(self, shares: Sequence[Share], done: Done) -> None:
        """An earlier attempt at the step did other work: all messages of the step come again that
        were not acked before, which must be kept before it is finished.
        """
        for at, (entry, row) in enumerate(islice(_places_of(shares), done.executed)):
            if done.lineage.counts[done.record.held + at]:
                self._note(entry, row, comes_again=True, doubtful=True)
        # The step is sealed again, which takes the place of its first seal.
        self.part = self._kept = self._awaited.dump()

    def _keep(self) -> None:
        dumped = self._awaited.dump() if self._awaited else b""
        self.part = dumped if dumped != self._kept else None
        self._kept = dumped

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


def _places_of(shares: Sequence[Share]) -> Iterator[tuple[OpenEntry, int]]:
    return ((share.entry, row) for share in shares for row in share.rows.tolist())


def _held_and_failed(record: Record) -> Iterator[Tuple]:
    """The tuples of earlier steps that failed in this one."""
    return (tup for tup in record.tuples if tup.row < record.held and tup.row in record.reasons)


def _comes_again(done: Done, row: int) -> bool:
    """Return True if a tuple failed and its message comes again, in its place.

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
