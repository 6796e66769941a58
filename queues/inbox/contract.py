"""The contract of the inboxes: the chunks that wait for each bolt task.

Every bolt task has one inbox. Spout workers and other bolt tasks *append* to it; the task *takes* from
it, works, and commits in *steps*: it seals the set of tuples that a step covers, lets the step's effects
leave, and finishes it, which forgets the tuples. ``MemoryInboxes`` and ``RedisInboxes`` both fulfil
this contract and pass one suite.

* **Nothing is lost within a run.** A tuple that was appended stays until a finished step covered it.
* **Once.** A sender numbers its appends; each inbox remembers the last number that it took from each
  sender. So the client may repeat a call whose reply was lost, and a repeated step appends nothing
  twice. A sender appends to one inbox in the order of its numbers: a lower one is a repeat.
* **Fencing.** An inbox belongs to one run (``adopt``) and to the latest attempt at its task
  (``open``). Whatever another run or an older attempt writes or takes is refused where it is written,
  and so is an append of a sender that a newer attempt of the same task has fenced off.
* **Bounded.** An append that would go over the bounds of the inbox is refused as FULL and may be
  repeated until there is room. An inbox that holds nothing takes any append, however large.
* **Every call may be repeated** as it is, at any time after: a repeat has no effect of its own.
  But ``draw`` draws another number.
* Attempts, steps and numbers are above 0 and at most ``LARGEST``.
* Errors of the server are raised as the server's owner raises them: LedgerUnavailableError (the call
  may have taken effect; repeat it) and LedgerRefusedError (an operator must act).

Losing everything is safe: the roots of lost tuples time out, and their messages are requeued. After a
server came back empty its inboxes belong to no run, and every call of the old run finds that out:

    append              STALE
    seal, finish        False
    take, read          StaleAttemptError
    draw, fence, open   StaleAttemptError
    discard             StaleAttemptError
    drain               leaves the inboxes of that server out
    beat                returns the tasks
    figures             an inbox with ``adopted`` False, by which the driver notices

The driver begins a new run: ``adopt`` makes the inboxes anew, and drains what other servers still hold.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)

# Lua counts in floating point: larger integers would be rounded.
LARGEST = 2**53 - 1


class Effect(Protocol[T_co]):
    """One prepared call, to be made alone or together with others: see ``acker.effects``."""

    def perform(self) -> T_co:
        """Make the call and return its reply."""
        ...


class Appended(enum.Enum):
    """What became of one append to one inbox."""

    DONE = "done"
    REPEATED = "repeated"
    """This number came before, with the same content: nothing was appended again."""
    DIFFERENT = "different"
    """This number came before with other content: nothing was appended. The sender's step was
    repeated and did other work, so its roots must be failed."""
    FULL = "full"
    """There is no room now: repeat the call later."""
    STALE = "stale"
    """The inbox belongs to another run, or a newer attempt of the sender has fenced this one off."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sender:
    """One attempt at a task that appends: a bolt task, or a spout task of one worker process."""

    task: int
    attempt: int
    """Grows from attempt to attempt at one task."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parcel:
    """What one sender appends to one inbox in one call: encoded chunks, see ``queues.chunk``."""

    target: int
    """Task id of the inbox."""
    chunks: Sequence[bytes]
    """At least one; each becomes an entry."""
    tuples: Sequence[int]
    """How many each chunk holds."""
    bounded: bool = True
    """False where waiting for room could wait for itself: on the way back of a cycle."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """How much one inbox holds."""

    tuples: int = 20_000
    bytes: int = 64 * 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One chunk in an inbox."""

    position: str
    """Opaque; in the order of the appends."""
    tuples: int
    payload: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Covered:
    """The set of tuples that one step covers."""

    step: int
    """Grows from step to step of one task within a run."""
    whole: Sequence[str] = ()
    """Positions of entries that are done with when the step is finished."""
    part: Mapping[str, bytes] = field(default_factory=dict)
    """Position of each entry that is done with in part: a bitmap of *all* of its rows that are done
    when the step is finished, those of earlier steps too; bit i % 8 of byte i // 8 is row i. At least
    one byte long."""
    ticks: int = 0
    """How many of the task's ticks the task has executed so far, this step's too."""
    tuples: int = 0
    """How many tuples ``whole`` frees room for, with ``bytes`` of their chunks: the sums over these
    entries. An inbox that holds nothing has all its room, whatever was given here."""
    bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """What an attempt at a task finds."""

    step: int
    """The last step that was finished, 0 at first."""
    sealed: Covered | None
    """A step that an earlier attempt sealed and did not finish: repeat exactly this one first."""
    done: Mapping[str, bytes]
    """Bitmaps of the entries that are done with in part."""
    taken: str | None
    """Position up to which the last attempt that took anything in this run had taken. Entries up to
    there that are still in the inbox may be what ended its process."""
    ticks: int
    """Ticks that finished steps have covered."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InboxFigures:
    """One inbox at one moment, for the driver and for monitors."""

    tuples: int
    bytes: int
    adopted: bool
    """False: the inbox belongs to no run, because its server lost it or it never was adopted."""
    oldest_s: float
    """Seconds since the oldest entry that is still there was appended; 0 if there is none."""
    attempts: int
    """How many attempts at the task were drawn in this run."""
    seen_s: float | None
    """Seconds since the task's process said that it lives; None: never in this run."""


class StaleAttemptError(Exception):
    """Another attempt, or another run, has the inbox now: end at once, and change nothing more."""


class Inbox(Protocol):
    """The inbox of one bolt task, as one attempt at the task sees it. One thread only, but ``wake``."""

    @property
    def opened(self) -> Opened:
        """What the attempt found."""
        ...

    def take(self, tuples: int, size: int, wait: timedelta) -> list[Entry]:
        """Return entries that this attempt has not taken yet, in order.

        Takes at least one entry if there is one, and ends before more than ``tuples`` tuples or
        ``size`` bytes. Waits at most ``wait`` for the first one; with a ``wait`` of 0 it does not. The
        position of the last one is kept on the server before this returns (see ``Opened.taken``).
        Finish a step that was found sealed first, else its entries come too; those that it leaves done
        in part do come, after ``read`` as well. Raises StaleAttemptError.
        """
        ...

    def read(self, positions: Sequence[str]) -> list[Entry]:
        """Return the entries at these positions, without those that are gone, in the order given.

        For a sealed step that must be repeated. Raises StaleAttemptError.
        """
        ...

    def seal(self, covered: Covered) -> Effect[bool]:
        """Note what a step covers, before its first effect leaves. False: the attempt is stale.

        A repeat changes nothing, nor does a step that is finished. Raises ValueError where an earlier
        step is sealed and not finished.
        """
        ...

    def finish(self, step: int) -> Effect[bool]:
        """Forget what the sealed step covers. False: the attempt is stale. A repeat changes nothing.

        Raises ValueError if the step was never sealed.
        """
        ...

    def wake(self) -> None:
        """Make the ``take`` that waits, or else the next one that would, return soon. Thread-safe.

        Should the server be away, ``take`` ends within some seconds by itself.
        """
        ...

    def close(self) -> None:
        """Release what ``take`` waits with. Idempotent."""
        ...


class Inboxes(Protocol):
    """All inboxes of one topology. Thread-safe."""

    # -- the driver ---------------------------------------------------------------------------

    def adopt(self, run: str, tasks: Sequence[int]) -> None:
        """Give the inboxes of ``tasks`` to a run: from now on every call of another run is refused.

        Inboxes of tasks that the topology no longer has are adopted too, so that they can be drained;
        what was there stays until it is drained. Senders and steps begin anew, attempts go on.
        Adopting again for the same run changes nothing, but for tasks that it did not have yet. An empty
        inbox of a task that the topology no longer has is forgotten.
        """
        ...

    def drain(self, run: str) -> list[tuple[int, list[Entry]]]:
        """Return the first entries of inboxes that hold some, some MB in all: (task, entries).

        Changes nothing; empty when nothing is left. Release the roots of the entries, discard them, and
        drain again. A driver that dies in between leaves the rest, and what it did not discard, to the
        next one. Drain before anything is appended in the new run. Raises StaleAttemptError.
        """
        ...

    def discard(self, run: str, task: int, positions: Sequence[str]) -> None:
        """Delete drained entries, once their roots were released. Raises StaleAttemptError."""
        ...

    def figures(self, tasks: Sequence[int]) -> dict[int, InboxFigures]:
        """Look at the inboxes of these tasks."""
        ...

    # -- a process that runs bolt tasks ----------------------------------------------------------

    def draw(self, run: str, task: int) -> int:
        """Draw the number of a new attempt. Raises StaleAttemptError if the run is over."""
        ...

    def fence(self, run: str, sender: Sender, targets: Sequence[int]) -> None:
        """Refuse from now on what older attempts of the sender append to these inboxes.

        Raises StaleAttemptError if a newer attempt has fenced this one off, or the run is over. An append
        does the same for its own inbox.
        """
        ...

    def open(self, run: str, task: int, attempt: int) -> Inbox:
        """Take the inbox over. Fence off the older attempts everywhere else first.

        Raises StaleAttemptError if a newer attempt has opened it, or the run is over.
        """
        ...

    def beat(self, run: str, attempts: Mapping[int, int]) -> list[int]:
        """Say that the process lives and attends these tasks, {task: attempt}.

        Returns those that belong to another attempt or run by now.
        """
        ...

    # -- senders ---------------------------------------------------------------------------------

    def append(self, run: str, sender: Sender, number: int, parcels: Sequence[Parcel]) -> list[Effect[Appended]]:
        """Prepare one append per parcel. Register the roots of the tuples first.

        ``number`` grows from call to call of one sender task, over its attempts too; a call that is
        repeated has the same number and the same parcels. At most one parcel per target and call, none
        without chunks, else ValueError. A parcel that was FULL must be in before the next number goes to the same inbox.
        """
        ...

    def close(self) -> None:
        """Release the connections. Idempotent."""
        ...
