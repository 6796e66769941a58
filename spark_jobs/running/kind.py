"""Contracts between an attempt and its kind of bolt: ``BoltKind``, and an optional ``Order``."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tiercel.acker.inbox.chunk import Chunk, Lineage
from tiercel.acker.inbox.contract import Claims, Covered
from tiercel.spark_jobs.bolts.verdicts import RetriedErrors
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.running.backlog import Backlog, Share
from tiercel.spark_jobs.running.copy import WorkingCopy
from tiercel.spark_jobs.running.step import Done, Execution, Slices
from tiercel.spark_jobs.suspects.watchdog import WatchedStep

# Takes a number of tuples from the inbox, waits for them, and claims some from the line.
Fetch = Callable[[int, float, Claims], None]
# No snapshot of a copy alone begins with this mark: it begins with a signature.
_ORDER_MARK = b"tiercel\0order\0\0\0"
_ORDER_LENGTH = struct.Struct(">I")
_HEAD_BYTES = len(_ORDER_MARK) + _ORDER_LENGTH.size


@dataclass(frozen=True, kw_only=True, slots=True)
class StepInput:
    """The input of the next step."""

    shares: Sequence[Share] = ()
    ticks: Sequence[Chunk] = ()
    # True if the clock must not cut the step: its calls are over, or are made concurrently.
    together: bool = False


class BoltKind(Protocol):
    """A kind of bolt in one attempt: takes tuples, and chooses the input of each step.

    ``kinds.choice`` chooses the kind once per attempt, based on the bolt. The attempt does
    everything else: it opens the inbox, repeats a sealed step, executes and commits steps, and
    gives tuples back to the line during a long call. A kind uses the attempt's ``backlog``,
    ``fetch`` and ``first``.

    Any thread may call ``under_way`` and ``wake``; only the task's thread uses the rest.
    """

    @property
    def execution(self) -> Execution:
        """Runs the bolt over the input of a step."""

    @property
    def copy(self) -> WorkingCopy:
        """The task's copy of the bolt."""

    @property
    def slices(self) -> Slices:
        """Size of the steps, and the time between them."""

    @property
    def gives_back(self) -> bool:
        """True if claimed tuples that have not begun may be given back to the line."""

    @property
    def next_at(self) -> float | None:
        """Time on the loop's clock of the next action that needs no new input; None if none."""

    @property
    def at_work(self) -> bool:
        """True if tuples have begun that are not part of a step yet."""

    def takes(self, wait_s: float) -> StepInput | None:
        """Return the input of one step; None if there is none after ``wait_s``.

        The attempt executes the step before it calls this again.
        """

    def ends(self, wait_s: float) -> StepInput | None:
        """Return the input of one step with what the bolt has begun and ended, and begin nothing;
        None if nothing has ended after ``wait_s``. Called in place of ``takes`` while the bolt is
        paused, or the task leaves.
        """

    def under_way(self) -> WatchedStep | None:
        """Return a call that is under way between two steps: one that may hang, or else the oldest
        one. Any thread.
        """

    def wake(self) -> None:
        """End a wait. Any thread."""

    def close(self) -> None:
        """Clean up the bolt. Tuples that are taken but not committed stay in the inbox."""


class Order(Protocol):
    """Decides which tuples of one task have to wait: for their predecessor, or for a retry.

    The task's snapshots may contain the order, beside the bolt's copy.
    """

    # True if steps use tuples that they do not cover: the order is a ``HoldingOrder``.
    holds: bool

    @property
    def retry(self) -> RetriedErrors | None:
        """The bolt's ``Retry``; None if it has none."""

    @property
    def waiting(self) -> int:
        """Number of failed tuples that wait for their next attempt. Any thread."""

    def opened(self, snapshot: bytes | None) -> bytes | None:
        """Load the order from an earlier attempt's snapshot; return the copy's part of it."""

    def backlog(self, done: Mapping[str, bytes]) -> Backlog:
        """Return an empty backlog that gives steps only tuples whose turn it is."""

    def again(
        self, shares: Sequence[Share], record: Record, lineage: Lineage, *, repeated: bool
    ) -> list[int]:
        """Return the failed rows of the step to retry in place: they stay in the backlog. Tuples
        that have failed too often are rejected instead.

        A ``repeated`` step retries none: it was sealed with all its tuples.
        """

    def noted(self, shares: Sequence[Share], done: Done) -> Done:
        """Note the effects of a step; return them with a joint snapshot of order and copy if either
        has changed.
        """

    def conflicted(self, shares: Sequence[Share], done: Done) -> bytes | None:
        """Note that an earlier attempt at this step did different work: all its messages are
        redelivered.

        Return the snapshot to reseal the step with; None: the seal stays.
        """


class HoldingOrder(Order, Protocol):
    """An ``Order`` whose steps use tuples that stay in the inbox for later steps."""

    def repeat(self, covered: Covered, fetch: Fetch) -> StepInput:
        """Return the input of a sealed step, and ``fetch`` the entries that it knew."""

    def repeated(self, covered: Covered) -> None:
        """Note that the sealed step is repeated and finished."""


def joined(order: bytes, copy: bytes) -> bytes:
    """Join the order's part and the copy's part of a snapshot; each may be empty."""
    return _ORDER_MARK + _ORDER_LENGTH.pack(len(order)) + order + copy


def parted(snapshot: bytes) -> tuple[bytes, bytes]:
    """Split a snapshot into order and copy; a snapshot that was not joined is the copy's."""
    if not snapshot.startswith(_ORDER_MARK) or len(snapshot) < _HEAD_BYTES:
        return b"", snapshot
    (length,) = _ORDER_LENGTH.unpack_from(snapshot, len(_ORDER_MARK))
    return snapshot[_HEAD_BYTES : _HEAD_BYTES + length], snapshot[_HEAD_BYTES + length :]
