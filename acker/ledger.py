"""The contract of the ledger: the state of every pending tuple tree, one 64-bit ack-val per root.

``MemoryLedger`` and ``RedisLedger`` both fulfil it and pass one suite; the memory one is the oracle
of the property tests. Behind the contract stand the canonical form of the work of one call, and the
joining of replies of several servers; both are pure.

Ids, everywhere in tiercel, are unsigned 64-bit integers. A *root* id names one emitted spout tuple;
an *edge* id names one copy of a tuple on its way to one task. The *owner* of a root is the task id
(1 .. owners) of the spout task that emitted it.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tiercel.acker.effects import Effect, perform_all

# Characters of a failure's reason that are kept.
REASON_LENGTH = 500
# Number of message timeouts for which entries and feeds are kept.
LIFETIMES = 4
# The component under which the ledger itself fails roots; Storm's name for it.
LEDGER_COMPONENT = "__acker"
OTHER_WORK = "a repeated step did other work"
Ids = NDArray[np.uint64]


class Applied(enum.Enum):
    """Result of one ``apply``."""

    # The updates took effect now.
    FRESH = "fresh"
    # This step had the same updates before: nothing was applied again.
    REPEATED = "repeated"
    # This step had other updates before: the roots of these updates were failed instead.
    CONFLICTING = "conflicting"
    # A later step, attempt or run has taken over: nothing was applied. The caller must stop.
    STALE = "stale"


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """Names the work of one step of one bolt task.

    All attempts at the step have the same, except for ``attempt``.
    """

    # Drawn by the driver at each start, so that steps of two runs never meet.
    run: str
    task: int
    # Grows from step to step of the task within a run; below 2 to the power of 53.
    step: int
    # Grows from attempt to attempt at the task within a run; below 2 to the power of 32.
    attempt: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A root that a bolt failed, and why."""

    root: int
    component: str
    task: int
    # One line; the ledger keeps the first 500 characters.
    reason: str
    # The message can never be processed and must not be retried.
    reject: bool = False
    # The message must be retried after this many seconds, not before; None: no such order.
    retry_after_s: float | None = None
    # False: the message is not to blame, and the failure counts towards no limit.
    blame: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Updates:
    """Updates of one step to the trees of its input: parallel arrays, one entry per
    root, sorted by root.

    ``roots`` names *every* root of the step's input, also those whose ``xors`` entry is 0 (tuples
    held, nothing emitted): a repeat that does other work must be able to fail all of them.
    """

    roots: Ids
    xors: Ids


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """Effect of one ``apply``. The counts are of this call; a repeated call counts nothing."""

    applied: Applied
    completed: int = 0
    failed: int = 0
    # Roots of the call that are not in the ledger: completed, failed, expired or never registered.
    late: int = 0

    def __bool__(self) -> bool:
        """True if the call went well, see ``acker.effects.perform_in_turn``."""
        return self.applied in (Applied.FRESH, Applied.REPEATED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcomes:
    """Outcomes from one read of the feed, each list in the order in which the ledger decided."""

    acked: Sequence[int] = ()
    failed: Sequence[Failure] = ()
    # Given back (a restarted driver): requeue, but do not count a failed delivery.
    released: Sequence[int] = ()
    # Roots whose timeout restarts.
    reset: Sequence[int] = ()
    # The same, for trees that wait for a rate limit, which more capacity in bolts would not help.
    waiting: Sequence[int] = ()
    # A server lost some or all of its memory since the last read (restarted empty or with an old
    # snapshot, failed over to a lagging replica): roots and updates are unknown to it, and all
    # roots registered before must be given back. Reported once per loss, to every owner.
    ledger_lost: bool = False

    def __bool__(self) -> bool:
        begun = self.reset or self.waiting
        return bool(self.acked or self.failed or self.released or begun or self.ledger_lost)


@dataclass(frozen=True, kw_only=True, slots=True)
class Census:
    """Contents of a ledger at one moment."""

    # Pending roots.
    pending: int
    # Memory of their entries, as far as the servers report it.
    memory_bytes: int
    # Entries of the outcome feeds that no spout task has taken yet; one may have many outcomes.
    feed_entries: int
    # Age of the oldest feed entry; 0 if there is none.
    feed_lag_s: float


class OutcomeFeed(Protocol):
    """The outcomes of one owner's roots, for the reader that opened the feed last.

    An earlier reader may go on, in a worker whose task was taken over. It takes nothing away from
    the later one.
    """

    def read(self, timeout: timedelta) -> Outcomes:
        """Wait at most ``timeout`` for outcomes and return all that are there; falsy if none came.

        Every outcome appended since this feed was opened is returned exactly once; outcomes for an
        earlier reader of the same owner are skipped (its roots belonged to a closed channel).
        Raises RedisUnavailableError; the next read then continues after the last successful one, so
        nothing is skipped.
        """

    def close(self) -> None:
        """Release the connection, waking a blocked ``read`` within a second. Idempotent."""


class Ledger(Protocol):
    """The state of all pending tuple trees of one topology.

    * Every call is safe to repeat unchanged: a client that lost the reply may send it again
      (redis-py does, by itself).
    * Each call is atomic for each root. A call of many roots takes effect in slices of a few
    thousand; a call that broke off may have taken effect in part, and is completed by repeating it.
    * A root is *pending* from ``register`` until exactly one outcome: it is removed and the
      outcome appended to its owner's feed in one step. Later calls for it are late: ignored and
      counted.
    * Everything may vanish at any moment: a root whose entry was lost gets no outcome, and its
      spout times it out.
    * Raises RedisUnavailableError (may be repeated), RedisRefusedError (a person must act).
    """

    def register(self, owner: int, roots: Sequence[int], ack_vals: Sequence[int]) -> list[int]:
        """Make ``roots`` pending with their initial ack-vals (XOR of the edges of the spout
        tuple's copies).

        A root that is pending with this owner and this ack-val, and was registered by this ledger
        object, and not by an earlier worker's, is a repeat and changes nothing: this call never
        XORs into an entry, or a repeat would complete it. (Repeat it only while none of its tuples
        has left, so that no update has changed the entry or removed it.) Returns the roots that
        collide with another pending entry; they were not registered. The caller draws others, and
        must not ``forget`` them, because they belong to another spout. An ack-val of 0 (a tuple
        without receivers) completes at once, and only once however often this call is repeated.
        One thread makes all calls of an owner. Raises ValueError for an unknown owner.
        """

    def registering(
        self, owner: int, roots: Sequence[int], ack_vals: Sequence[int]
    ) -> Sequence[Effect[bool]]:
        """Prepare ``register``, to leave together with appends; see ``acker.effects``.

        False if a root collides: ``register`` then says which ones.
        """

    def apply(self, token: Token, updates: Updates, failures: Sequence[Failure] = ()) -> Reply:
        """XOR each update into its root; a root whose ack-val becomes 0 is acked; each failed root
        fails at once.

        Takes effect once per step, however often it is called. The digest covers the whole call:
        the updates and the failed roots in any order, but not the reasons.

        * Same step, same digest: slices that took effect before are not applied again; slices that
          an attempt left undone when it died halfway are applied now.
        * Same step, another digest: all roots named in this call are failed, as component
          "__acker", with the reason "a repeated step did other work", even if the earlier attempt
          died halfway.
        * A step older than the task's last applied one, an attempt older than the last one that the
          ledger knows (from here or ``fence``), another run than the current one (see ``begin``):
          STALE, nothing is applied.

        The last step of each task is remembered until the task's next one comes, never by a clock:
        Spark may repeat a step hours after it was applied. With several shards each decides for its
        own roots; the reply is STALE if one shard replies so. A root in both updates and failures
        is failed; if a root has several failures the first counts. A call that names no root does
        nothing.
        """
        return total(perform_all(self.applying(token, updates, failures)))

    def applying(
        self, token: Token, updates: Updates, failures: Sequence[Failure] = ()
    ) -> list[Effect[Reply]]:
        """Prepare ``apply``, to leave together with calls of other stores; see ``acker.effects``.

        One effect per shard and slice, in any order; ``apply`` returns the ``total`` of their
        replies.
        """

    def begin(self, run: str) -> bool:
        """Make ``run`` the current run, and forget the steps and attempts of all others.

        From now on tokens of other runs are STALE. False: a later run than ``run`` has begun;
        nothing was changed, and the caller must stop. So a late repeat of an older driver takes
        nothing away from its successor. (The last 64 runs are remembered.) If the names of runs
        begin with numbers, a run with a lower number than the current one is over too.

        If no run has begun, tokens of any run are applied. So the run goes on after a server has
        restarted empty. That is safe: a call of an older run or attempt names only roots that were
        registered before the restart, and these are unknown.
        """

    def fence(self, run: str, task: int, attempt: int) -> bool:
        """Make older attempts at the task STALE from now on; its last step stays known.

        False: the ledger knows a newer attempt, or the run is not the current one; nothing was
        changed, and the caller must stop.
        """

    def fail(self, failures: Sequence[Failure]) -> int:
        """Fail roots at once, outside any token. Return the number that was pending."""

    def release(self, roots: Sequence[int]) -> int:
        """Give roots back without counting failures. Return the number that was pending."""

    def reset_timeout(self, roots: Sequence[int], *, waiting: bool = False) -> None:
        """Have the owners of the pending roots restart their timeouts, and keep the entries as
        long. ``waiting``: the trees wait for a limit, and are counted separately.
        """

    def forget(self, roots: Sequence[int]) -> None:
        """Drop entries without an outcome: their spout has given up on them
        (timeout, lost channel).
        """

    def pending(self) -> int:
        """Count the pending roots.

        Reads every bucket: for tests, benchmarks and monitors.
        """
        return self.census().pending

    def census(self) -> Census:
        """Count all entries; costs as much as ``pending``.

        Several servers are not counted at the same moment.
        """

    def feed(self, owner: int) -> OutcomeFeed:
        """Open the feed of one spout task, which returns all outcomes from now on."""

    def close(self) -> None:
        """Release the connections. Idempotent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RootUpdates:
    """The work of one call in canonical form: each root once, ascending.

    ``reasons[i]`` is the index of the failure of root i; -1: none, it is updated.
    """

    roots: Ids
    xors: Ids
    reasons: NDArray[np.int64]
    failures: Sequence[Failure]

    def at(self, part: Any) -> RootUpdates:
        """Return the work at these positions: indices, or a slice of them."""
        return RootUpdates(
            roots=self.roots[part],
            xors=self.xors[part],
            reasons=self.reasons[part],
            failures=self.failures,
        )

    @property
    def digest(self) -> bytes:
        """16 bytes; equal for equal work.

        The set of failed roots is part of the work, their reasons are not: a reason with an address
        or a time differs between two attempts that did the same work.
        """
        failed = np.packbits(self.reasons >= 0).tobytes()
        # As in ``Parcel``.
        content = hashlib.sha1(self.roots.astype("<u8").tobytes(), usedforsecurity=False)
        content.update(self.xors.astype("<u8").tobytes())
        content.update(failed)
        return content.digest()[:16]


def canonical(updates: Updates, failures: Sequence[Failure] = ()) -> RootUpdates:
    """Sort, fold entries of one root, and let failing win over updating.

    Raises ValueError for arrays of unequal length.
    """
    roots = np.asarray(updates.roots, np.uint64)
    xors = np.asarray(updates.xors, np.uint64)
    if roots.shape != xors.shape or roots.ndim != 1:
        raise ValueError(f"updates need as many xors as roots, not {xors.shape} and {roots.shape}")
    failed = np.array([failure.root for failure in failures], np.uint64) if failures else None
    if failed is not None:
        xors = np.concatenate((xors, np.zeros(failed.size, np.uint64)))
        roots = np.concatenate((roots, failed))
    if not _ascending(roots):
        order = np.argsort(roots, kind="stable")
        roots, first = np.unique(roots[order], return_index=True)
        xors = np.bitwise_xor.reduceat(xors[order], first) if roots.size else xors
    reasons = np.full(roots.size, -1, np.int64)
    if failed is not None:
        # Reversed, so that the first of several failures of one root wins.
        reasons[np.searchsorted(roots, failed[::-1])] = np.arange(failed.size)[::-1]
        xors = np.where(reasons >= 0, np.uint64(0), xors)
    return RootUpdates(roots=roots, xors=xors, reasons=reasons, failures=failures)


def _ascending(roots: Ids) -> bool:
    return bool((roots[1:] > roots[:-1]).all())


def conflict_of(root: int) -> Failure:
    """Return the failure of a root whose task did other work than its earlier attempt."""
    return Failure(root=root, component=LEDGER_COMPONENT, task=0, reason=OTHER_WORK)


def joined(parts: Sequence[Outcomes]) -> Outcomes:
    """Join outcomes, in their order."""
    if len(parts) == 1:
        return parts[0]
    return Outcomes(
        acked=[root for part in parts for root in part.acked],
        failed=[failure for part in parts for failure in part.failed],
        released=[root for part in parts for root in part.released],
        reset=[root for part in parts for root in part.reset],
        waiting=[root for part in parts for root in part.waiting],
        ledger_lost=any(part.ledger_lost for part in parts),
    )


def total(replies: Sequence[Reply]) -> Reply:
    """Return the reply to a whole ``apply`` from the replies to its parts."""
    verdicts = {reply.applied for reply in replies} or {Applied.FRESH}
    # The first of these that any part has is the result of the whole.
    ranking = (Applied.STALE, Applied.CONFLICTING, Applied.FRESH, Applied.REPEATED)
    return Reply(
        applied=next(verdict for verdict in ranking if verdict in verdicts),
        completed=sum(reply.completed for reply in replies),
        failed=sum(reply.failed for reply in replies),
        late=sum(reply.late for reply in replies),
    )
