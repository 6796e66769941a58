"""The records that travel through inboxes: see ``contract``."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from types import MappingProxyType
from typing import NamedTuple

# A parcel ends at this size: no call is large, and an inbox has room for several.
PARCEL_BYTES = 4 * 1024 * 1024
PARCEL_TUPLES = 10_000
# Parcels for several inboxes that are appended together.
TOGETHER_BYTES = 4 * PARCEL_BYTES


class Appended(enum.Enum):
    """Result of one append to one inbox."""

    DONE = "done"
    # This part came before, with the same content: nothing was appended again.
    REPEATED = "repeated"
    # This part came before with other content: nothing was appended. The sender's step was
    # repeated and did other work, so its roots must be failed.
    DIFFERENT = "different"
    # There is no room now: repeat the call later.
    FULL = "full"
    # The inbox belongs to another run, or a newer attempt of the sender has fenced this one off.
    STALE = "stale"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sender:
    """One attempt at a task that appends: a bolt task, or a spout task of one worker process, which
    has a number of its own: see ``Inboxes.draw_sender``.
    """

    # Below -1 for a drawn sender, and below all that were drawn before.
    task: int
    # Grows from attempt to attempt at one task.
    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Parcel:
    """The tuples that one sender appends to one inbox in one call: encoded chunks, see
    ``acker.inbox.chunk``.
    """

    # Task id of the inbox, or the id of a line.
    target: int
    # At least one; each becomes an entry.
    chunks: Sequence[bytes]
    # Number of tuples in each chunk.
    tuples: Sequence[int]
    # False where waiting for room could wait for itself: on the way back of a cycle.
    bounded: bool = True
    # Place among the parcels of one number for the inbox, from 0 on.
    part: int = 0
    # 16 hexadecimal digits: the digest by which a repeat is compared.
    digest: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        content = blake2b(digest_size=8)
        for chunk, tuples in zip(self.chunks, self.tuples, strict=False):
            content.update(b"%d %d " % (len(chunk), tuples))
            content.update(chunk)
        object.__setattr__(self, "digest", content.hexdigest())

    @property
    def bytes(self) -> int:
        """Size of the chunks."""
        return sum([len(chunk) for chunk in self.chunks])


def parcels_of(
    target: int, chunks: Sequence[tuple[bytes, int]], *, bounded: bool = True
) -> list[Parcel]:
    """Pack chunks, each with its number of tuples, into parcels of a bounded size.

    A chunk is never cut: one that is larger has a parcel for itself.
    """
    parcels: list[Parcel] = []
    first = size = tuples = 0
    for at, (chunk, count) in enumerate(chunks):
        size += len(chunk)
        tuples += count
        if at > first and (size > PARCEL_BYTES or tuples > PARCEL_TUPLES):
            parcels.append(_parcel(target, chunks[first:at], len(parcels), bounded=bounded))
            first, size, tuples = at, len(chunk), count
    parcels.append(_parcel(target, chunks[first:], len(parcels), bounded=bounded))
    return parcels


def _parcel(
    target: int, chunks: Sequence[tuple[bytes, int]], part: int, *, bounded: bool
) -> Parcel:
    return Parcel(
        target=target,
        chunks=[payload for payload, _ in chunks],
        tuples=[count for _, count in chunks],
        bounded=bounded,
        part=part,
    )


def next_parcels(parcels: Sequence[Parcel]) -> Sequence[Parcel]:
    """Return the parcels to append first, at most one per inbox and of a bounded total size: a part
    that is refused as FULL must be in before the next one of its inbox.
    """
    found: dict[int, Parcel] = {}
    size = 0
    for parcel in parcels:
        if parcel.target not in found:
            size += parcel.bytes
            if found and size > TOGETHER_BYTES:
                break
            found[parcel.target] = parcel
    return list(found.values())


def parcels_left(
    parcels: Sequence[Parcel], sent: Sequence[Parcel], verdicts: Iterable[Appended]
) -> Sequence[Parcel]:
    """Return the parcels that no inbox has taken yet, parcels for a full inbox last, so that others
    need not wait for it.
    """
    full = {
        parcel.target
        for parcel, verdict in zip(sent, verdicts, strict=True)
        if verdict is Appended.FULL
    }
    taken = {(one.target, one.part) for one in sent if one.target not in full}
    left = [one for one in parcels if (one.target, one.part) not in taken]
    return sorted(left, key=lambda one: one.target in full)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """Bounds on one inbox."""

    tuples: int = 20_000
    bytes: int = 64 * 1024 * 1024
    # Drawn senders that an inbox remembers. More than twice as many as there are spout tasks.
    senders: int = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One chunk in an inbox."""

    # Opaque; in the order of the appends.
    position: str
    tuples: int
    payload: bytes
    # The row of the chunk at which its tuples begin, if the entry or a part of it was claimed from
    # a line; None: the sender named this inbox.
    first: int | None = None


class Claims(NamedTuple):
    """Bounds on what one look claims from a line."""

    # Tuples in all, with those that are in the task's own inbox.
    tuples: int
    # Tuples beyond these: in all no more than the task's share of the line.
    more: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Rest:
    """The tuples of a claimed entry that nothing has begun."""

    position: str
    # Number of the first of them in the entry: they go from there to its end.
    first: int
    # As ``Covered.part``: the rows of the entry that are done, and this rest. Empty if nothing else
    # of the entry stays in the inbox.
    done: bytes = b""


@dataclass(frozen=True, kw_only=True, slots=True)
class Covered:
    """The set of tuples that one step covers."""

    # Grows from step to step of one task within a run.
    step: int
    # Positions of entries that the step completes.
    whole: Sequence[str] = ()
    # By the position of each entry that stays in part: a bitmap of *all* its rows that are done
    # when the step is finished, in earlier steps too; bit i % 8 of byte i // 8 is row i. At least
    # one byte long.
    part: Mapping[str, bytes] = field(default_factory=dict)
    # Number of ticks that the task has executed so far, including this step.
    ticks: int = 0
    # Room that ``whole`` frees: the tuples and the bytes of these entries. An inbox that holds
    # nothing has all its room, whatever is given here.
    tuples: int = 0
    bytes: int = 0
    # Hexadecimal digest of all effects of the step, by which a repeat is compared; empty: unknown.
    work: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """State that an attempt at a task finds."""

    # The last step that was finished, 0 at first.
    step: int
    # A step that an earlier attempt sealed and did not finish: repeat exactly this one first.
    sealed: Covered | None
    # Bitmaps of the entries that are done in part.
    done: Mapping[str, bytes]
    # Position up to which the last attempt that took anything in this run had taken. One of the
    # entries up to there that are still in the inbox may have ended its process.
    taken: str | None
    # Ticks that finished steps have covered.
    ticks: int
    # The newest snapshot of a finished step; None if there is none.
    snapshot: bytes | None


@dataclass(frozen=True, kw_only=True, slots=True)
class InboxFigures:
    """One inbox at one moment, for the driver and for monitors."""

    tuples: int
    bytes: int
    # False: the inbox belongs to no run, because its server lost it or it never was adopted.
    adopted: bool
    # Seconds since the oldest entry that is still there was appended; 0 if there is none.
    oldest_s: float
    # Number of attempts at the task in this run.
    attempts: int
    # Seconds since the task's process said that it lives; None: never in this run.
    seen_s: float | None
    # Seconds for which the process has been in one call of the bolt; None: it reported no call.
    doing_s: float | None = None
    # Where the process runs, as it reported; empty: it did not.
    place: str = ""


def joined_figures(parts: Sequence[InboxFigures]) -> InboxFigures:
    """Return the figures of a line from those of its parts."""
    first = parts[0]
    return replace(
        first,
        tuples=sum(part.tuples for part in parts),
        bytes=sum(part.bytes for part in parts),
        adopted=all(part.adopted for part in parts),
        oldest_s=max(part.oldest_s for part in parts),
    )


NO_CLAIMS = Claims(0)

# No task is in a call that lasts.
NO_CALLS: Mapping[int, float] = MappingProxyType({})


class StaleAttemptError(Exception):
    """Another attempt, or another run, has the inbox now: end at once, and change nothing more."""


class StepOrderError(ValueError):
    """A step cannot be sealed or finished after the steps that the inbox knows.

    Its server has lost its last writes, or the caller has broken the contract.
    """
