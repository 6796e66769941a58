"""The records that travel through inboxes: see ``contract``."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


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
    """What one sender appends to one inbox in one call: encoded chunks, see ``queues.inbox.chunk``."""

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
    snapshot: bytes | None
    """The newest one that came with a finished step; None if none did."""


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
