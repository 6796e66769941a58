"""The contract of the inboxes: the chunks waiting for each bolt task, and for each bolt; with the
records of the calls and the checks that both backends share.

Every bolt task has one inbox. Spout workers and other bolt tasks *append* to it; the task *takes*
from it, works, and commits in *steps*: it seals the set of tuples that a step covers, lets the
step's effects leave, and finishes the step, which deletes the tuples. ``MemoryInboxes`` and
``RedisInboxes`` both implement this contract and pass one suite.

* **Nothing is lost within a run.** An appended tuple stays until a finished step has
  covered it.
* **Once.** A sender numbers its appends, and the parts of each append from 0 on; each inbox
  remembers the last part that it took from each sender. So a client may repeat a call whose reply
  was lost, and a repeated step appends nothing twice, even if it ended between two parts. A sender
  appends to one inbox in the order of its numbers and parts: a lower one is a repeat.
* **Fencing.** An inbox belongs to one run (``adopt``) and to the latest attempt at its task
  (``open``). The server refuses calls of another run or an older attempt, and appends of a sender
  that a newer attempt at the same task has fenced off.
* **Bounded.** An append that would exceed the bounds of the inbox is refused as FULL and may be
  repeated until there is room. An empty inbox takes any append, however large. Large output is
  split into parts (``parcels_of``), each of which waits for room by itself.
* A server that is out of memory takes a bolt's output only into empty inboxes; others are FULL. So
  the last bolts make progress first, then the bolts before them. Spouts' emissions are refused.
* **Lines.** Tuples for any task of a bolt are appended to the bolt's line (``line_of``), and
  a task *claims* as many tuples from the head of the line as it can execute now: the same call
  moves them into the task's own inbox. If an entry has more tuples than one task claims, several
  tasks share its rows. A task may return claimed tuples that it has not begun to the head of the
  line. Tasks whose inboxes are on one server (in a cluster: have one hash tag) share a part of the
  line; a parcel goes to one part, chosen by its sender and number. A line is adopted, drained,
  fenced, looked at and appended to like an inbox, with the line's id.
* **Every call may be repeated** unchanged, at any later time: a repeat has no effect of its own.
  Only ``draw`` draws a new number.
* Attempts, steps and numbers are above 0 and at most ``LARGEST``.
* A server raises RedisUnavailableError (the call may have taken effect; repeat it) or
  RedisRefusedError (an operator must act).

Losing everything is safe: the roots of lost tuples time out, and their messages are requeued. After
a server restarts empty, its inboxes belong to no run, and every call of the old run reports this:

    append              STALE
    seal, finish        False
    take, read          StaleAttemptError
    draw, fence, open   StaleAttemptError
    discard             StaleAttemptError
    drain               leaves out the inboxes of that server
    beat                returns the tasks
    figures             ``adopted`` is False, which the driver notices

The driver then begins a new run: it adopts the inboxes again, and drains the other servers.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol

from tiercel.acker.effects import Effect, Following, perform_all
from tiercel.acker.ids import is_line, task_of
from tiercel.acker.inbox.chunk import Appended, Parcel


@dataclass(frozen=True, kw_only=True, slots=True)
class Sender:
    """One attempt at a task that appends: a bolt task, or a spout worker process with a number
    from ``Inboxes.draw_sender``.
    """

    # Below -1 for a drawn sender, and below all senders drawn before it.
    task: int
    # Grows from attempt to attempt at one task.
    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """Bounds on one inbox."""

    tuples: int = 20_000
    bytes: int = 64 * 1024 * 1024
    # Number of drawn senders that an inbox remembers: more than twice the number of spout tasks.
    senders: int = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One chunk in an inbox."""

    # An opaque id; ids are in the order of the appends.
    position: str
    tuples: int
    payload: bytes
    # The row of the chunk at which the entry's tuples begin, if they were claimed from a line;
    # None if the sender named this inbox.
    first: int | None = None


class Claims(NamedTuple):
    """Bounds on the tuples that one ``take`` claims from a line."""

    # All tuples, including the tuples in the task's own inbox.
    tuples: int
    # Additional tuples, as long as the claim stays within the task's share of the line.
    more: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Rest:
    """The tuples of a claimed entry that the task has not begun."""

    position: str
    # Number of the first such tuple: the rest runs from there to the end of the entry.
    first: int
    # Bitmap as in ``Covered.part`` of the rows that are done and the rows of this rest. Empty if no
    # other tuple of the entry stays in the inbox.
    done: bytes = b""


@dataclass(frozen=True, kw_only=True, slots=True)
class Covered:
    """The set of tuples that one step covers."""

    # Grows from step to step of one task within a run.
    step: int
    # Positions of entries that the step completes.
    whole: Sequence[str] = ()
    # A bitmap by position for each entry that the step completes only in part. It has *all* rows
    # that are done once the step is finished, including rows of earlier steps; bit i % 8 of byte
    # i // 8 is row i. At least one byte long.
    part: Mapping[str, bytes] = field(default_factory=dict)
    # Number of ticks that the task has executed so far, including this step.
    ticks: int = 0
    # Room that the entries in ``whole`` free, in tuples and bytes. An empty inbox always has all
    # its room.
    tuples: int = 0
    bytes: int = 0
    # Hexadecimal digest of all effects of the step, to compare a repeat with; empty if unknown.
    work: str = ""
    # Numbers of tuples that the next bolts in a row executed in this step, see ``running.chain``;
    # empty if all emissions left the task.
    inner: Sequence[int] = ()


_UNKNOWN = "0"  # an unknown digest in the text of a seal


def encode(covered: Covered) -> str:
    """Encode a seal as text, which lua/finish.lua reads.

    STEP TICKS TUPLES BYTES WORK|POSITION POSITION …|POSITION=HEX POSITION=HEX …[|INNER INNER …]
    """
    numbers = f"{covered.step} {covered.ticks} {covered.tuples} {covered.bytes}"
    part = " ".join(f"{position}={rows.hex()}" for position, rows in covered.part.items())
    inner = f"|{' '.join(map(str, covered.inner))}" if covered.inner else ""
    return f"{numbers} {covered.work or _UNKNOWN}|{' '.join(covered.whole)}|{part}{inner}"


def decode(text: str) -> Covered:
    r"""Decode the text of a seal.

    >>> decode("3 0 12 900 d1ce|1-0 2-0|5-1=0f") == Covered(
    ...     step=3, whole=("1-0", "2-0"), part={"5-1": b"\x0f"}, tuples=12, bytes=900, work="d1ce"
    ... )
    True
    """
    numbers, whole, part, *inner = text.split("|")
    *counts, work = numbers.split()
    step, ticks, tuples, size = map(int, counts)
    return Covered(
        step=step,
        whole=tuple(whole.split()),
        part={at: bytes.fromhex(rows) for at, rows in (pair.split("=") for pair in part.split())},
        ticks=ticks,
        tuples=tuples,
        bytes=size,
        work="" if work == _UNKNOWN else work,
        inner=tuple(int(count) for counts in inner for count in counts.split()),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """The state in which an attempt finds the inbox of its task."""

    # The last finished step, 0 at first.
    step: int
    # A step that an earlier attempt sealed and did not finish: repeat exactly this one first.
    sealed: Covered | None
    # Bitmaps of the entries that are partly done, by position.
    done: Mapping[str, bytes]
    # Position of the last entry taken in this run. An earlier entry that is still in the inbox, or
    # this one, may have crashed the process that took it.
    taken: str | None
    # Number of ticks that finished steps have covered.
    ticks: int
    # The newest snapshot of a finished step; None if there is none.
    snapshot: bytes | None


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenWindows:
    """The open windows of one task of a windowed bolt."""

    number: int
    # Number of tuples that the task holds.
    tuples: int
    # The watermark in microseconds since 1970; None: the task has none.
    watermark_us: int | None = None


_1970 = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MOMENT = -62_135_596_800_000_000
_LAST_MOMENT = 253_402_300_799_999_999


def moment(time_us: int) -> datetime:
    """Return a timestamp in UTC, cut to the years that Python supports."""
    return _1970 + timedelta(microseconds=min(max(time_us, _FIRST_MOMENT), _LAST_MOMENT))


def text_of(windows: OpenWindows | None) -> str:
    """Encode as ``NUMBER TUPLES [WATERMARK]``; None as an empty text."""
    if windows is None:
        return ""
    at = "" if windows.watermark_us is None else f" {windows.watermark_us}"
    return f"{windows.number} {windows.tuples}{at}"


def windows_in(text: bytes | None) -> OpenWindows | None:
    """Decode what ``text_of`` encoded."""
    if not text:
        return None
    number, tuples, *at = map(int, text.split())
    return OpenWindows(number=number, tuples=tuples, watermark_us=at[0] if at else None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Holdings:
    """Tuples and windows that one task holds, beside the tuples that it executes."""

    # Number of failed tuples that wait for their next attempt.
    retrying: int = 0
    # None: the bolt has no windows.
    windows: OpenWindows | None = None


NOTHING_HELD = Holdings()


@dataclass(frozen=True, kw_only=True, slots=True)
class InboxFigures:
    """Figures of one inbox at one time, for the driver and monitors."""

    tuples: int
    bytes: int
    # False if the inbox belongs to no run: its server lost it, or it was never adopted.
    adopted: bool
    # Seconds since the oldest entry in the inbox was appended; 0 if the inbox is empty.
    oldest_s: float
    # Number of attempts at the task in this run.
    attempts: int
    # Seconds since the last heartbeat of the task's process; None if there was none in this run.
    seen_s: float | None
    # Seconds that the current call of the bolt has taken, the oldest of concurrent calls; None if
    # the process reported no call.
    doing_s: float | None = None
    # The place where the process runs, as it reported; empty if it did not.
    place: str = ""
    # Number of failed tuples that wait for their next attempt, as the process reported.
    retrying: int = 0
    # Its open windows, as the process reported; None if it did not.
    windows: OpenWindows | None = None


def joined_figures(parts: Sequence[InboxFigures]) -> InboxFigures:
    """Return the figures of a line from the figures of its parts."""
    first = parts[0]
    return replace(
        first,
        tuples=sum(part.tuples for part in parts),
        bytes=sum(part.bytes for part in parts),
        adopted=all(part.adopted for part in parts),
        oldest_s=max(part.oldest_s for part in parts),
    )


class StaleAttemptError(Exception):
    """Another attempt or another run owns the inbox now: end at once, and change nothing more."""


class StepOrderError(ValueError):
    """The inbox cannot seal or finish a step in this order, or has lost a finished one.

    The inbox's server has lost its last writes, or the caller has broken the contract.
    """


class Inbox(Protocol):
    """The inbox of one bolt task, as one attempt at the task sees it.

    Not thread-safe, except for ``wake``.
    """

    # The state that the attempt found.
    opened: Opened

    def take(  # noqa: PLR0913 - all go in one round trip
        self, tuples: int, size: int, wait: timedelta, finishing: int | None, claims: Claims,
        *, then: Following[Any] | None = None,
    ) -> list[Entry]:  # fmt: skip
        """Return entries that this attempt has not taken yet, in order.

        If these entries have fewer tuples than ``claims`` allows, and the inbox has no more, claims
        the missing tuples from the line and returns them last. An entry that is appended to a line
        wakes one task; a task that leaves entries in the line wakes another.

        Finishes the step ``finishing`` first, in the same round trip; see ``finish``. If there are
        entries, makes the call ``then`` after taking them, unless that is a call of another server.

        Takes at least one entry if there is one, and no more than ``tuples`` tuples or ``size``
        bytes otherwise. Waits at most ``wait`` for the first entry, and not at all if ``wait`` is
        0. The server keeps the position of the last entry before this returns (see
        ``Opened.taken``). First finish a step that ``open`` found sealed, else its entries are
        returned too; entries that it leaves partly done are returned even after ``read``. Raises
        StaleAttemptError, and StepOrderError if the server has lost a step that this attempt
        finished, or entries that it took, as one that comes back with older data: tuples of that
        step may be back, and the senders and lines of these entries have them again.
        """

    def read(self, positions: Sequence[str]) -> list[Entry]:
        """Return the entries at these positions that are still there, in the order given.

        Call this to repeat a sealed step. Raises StaleAttemptError.
        """

    def seal(self, covered: Covered, snapshot: bytes | None = None) -> Effect[bool]:
        """Record the tuples that a step covers, before its first effect leaves. False if the
        attempt is stale.

        ``snapshot`` is the bolt after the step; it takes effect when the step is finished, and None
        keeps the snapshot before it. A repeat replaces only the snapshot, and changes nothing once
        the step is finished. Raises StepOrderError if an earlier step is sealed and not finished,
        or if the server has lost something, as ``take`` does.
        """

    def finish(self, step: int) -> Effect[bool]:
        """Delete the tuples that the sealed step covers. False if the attempt is stale.

        A repeat changes nothing. Raises StepOrderError if the step was never sealed.
        """

    def give_back(self, rests: Sequence[Rest]) -> Effect[bool]:
        """Return claimed tuples to the head of the line, in their order. False if the attempt is
        stale.

        Call this only when no sealed step of the task is unfinished.
        """

    def wake(self) -> None:
        """End the waiting ``take`` soon, or else the next one that would wait. Thread-safe.

        If the server is unreachable, ``take`` ends by itself within a few seconds.
        """

    def close(self) -> None:
        """Release the connection on which ``take`` waits. Idempotent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Heard:
    """Reply to the heartbeat of a process."""

    # Tasks that now belong to another attempt or run.
    stale: Sequence[int] = ()
    # Tasks that are asked to leave: to take nothing new, and to end.
    leaving: Sequence[int] = ()


class Inboxes(Protocol):
    """All inboxes of one topology. Thread-safe."""

    # -- the driver ---------------------------------------------------------------------------

    def adopt(self, run: str, tasks: Sequence[int]) -> None:
        """Give the inboxes of ``tasks`` to a run: from now on calls of all other runs are refused.

        Inboxes of tasks that the topology no longer has are adopted too, so that their entries can
        be drained; if they are empty, they are deleted. Senders and steps start over, the numbers
        of attempts go on. Adopting again for the same run changes nothing, except for tasks that
        are new to the run.

        The name of a run begins with its number (``Lease.draw``); a name without one counts as 0.
        Raises StaleAttemptError if a run with a higher number owns an inbox, so that a late call of
        an older driver takes nothing from its successor.
        """

    def drain(self, run: str, only: Sequence[int] | None = None) -> list[tuple[int, list[Entry]]]:
        """Return the first entries of inboxes that are not empty, a few MB in all: (task, entries);
        ``only`` of these tasks and lines, in this order, without looking at the other inboxes.

        Changes nothing; empty when all inboxes are. Release the roots of the entries, discard the
        entries, and drain again. If a driver dies in between, the next one drains all entries that
        it did not discard. Drain before anything is appended in the new run. Raises
        StaleAttemptError.
        """

    def discard(self, run: str, task: int, positions: Sequence[str]) -> None:
        """Delete drained entries once their roots are released. Raises StaleAttemptError."""

    def figures(self, tasks: Sequence[int], *, extra: bool = False) -> dict[int, InboxFigures]:
        """Return the figures of the inboxes of these tasks, and with ``extra`` of all extra tasks,
        some of which may have no process any more.
        """

    def snapshots(self, run: str) -> list[tuple[int, bytes]]:
        """Return the newest snapshots that earlier runs left in the inboxes, as (task, snapshot),
        until ``forget_snapshot`` deletes them. Changes nothing.
        """

    def forget_snapshot(self, run: str, task: int) -> None:
        """Delete a task's snapshots of earlier runs once the roots of their tuples are released."""

    def leave(self, run: str, tasks: Sequence[int]) -> None:
        """Ask the newest attempts at these tasks to leave, which the next ``beat`` tells them.

        Changes nothing for later attempts, and at inboxes of other runs. May be repeated.
        """

    # -- a process that runs bolt tasks ----------------------------------------------------------

    def draw(self, run: str, task: int) -> int:
        """Draw the number of a new attempt. Raises StaleAttemptError if the run is over."""

    def fence(self, run: str, sender: Sender, targets: Sequence[int]) -> None:
        """Refuse appends of older attempts of the sender to these inboxes from now on.

        Raises StaleAttemptError if, at any inbox, a newer attempt has fenced this one off or the
        run is over; the other inboxes are fenced all the same. An append does this for its own
        inbox.
        """

    def open(self, run: str, task: int, attempt: int, line: int | None = None) -> Inbox:
        """Take over the inbox, to claim from ``line`` too. Fence off the older attempts at all
        other inboxes first.

        Raises StaleAttemptError if a newer attempt has opened it, or the run is over.
        """

    def beat(
        self,
        run: str,
        attempts: Mapping[int, int],
        doing_s: Mapping[int, float],
        place: str,
        held: Mapping[int, Holdings] | None = None,
    ) -> Heard:
        """Report that the process is alive and runs these tasks, {task: attempt}.

        ``doing_s`` has the seconds that tasks have spent in their current call of the bolt, the
        oldest of concurrent calls; ``place`` tells monitors where the process runs, and ``held``
        what tasks hold.
        """

    # -- senders ---------------------------------------------------------------------------------

    def draw_sender(self) -> Sender:
        """Draw a sender for a process that is not a bolt task; its appends are numbered from 1.

        An inbox remembers a bounded number of drawn senders (``Bounds.senders``) and forgets the
        oldest. It answers a forgotten sender with STALE, because the append might be a repeat: draw
        another sender, and emit the tuples of the call again.
        """

    def append(
        self, run: str, sender: Sender, number: int, parcels: Sequence[Parcel]
    ) -> list[Effect[Appended]]:
        """Prepare one append per parcel. The roots of the tuples must be registered before it.

        ``number`` grows from call to call of one sender task, across its attempts too; a repeated
        call has the same number and the same parcels. Raises ValueError for two parcels with one
        target, or a parcel without chunks. A parcel that was FULL must be taken before the next
        part or number is sent to the same inbox; see ``next_parcels``.
        """

    def lacks(self, sender: Sender, number: int, parcel: Parcel) -> Effect[bool]:
        """Prepare a check before ``append``: False if this parcel, or a later one of the sender,
        was appended to its inbox.
        """

    def has_room(self, run: str, sender: Sender, number: int, parcel: Parcel) -> Effect[bool]:
        """Prepare a check before ``append``: False while this parcel would be FULL. Unlike an
        append, it does not send the parcel.
        """

    def close(self) -> None:
        """Release the connections. Idempotent."""


def append_again(  # noqa: PLR0913, PLR0917 - those of ``append``, and the full targets
    inboxes: Inboxes,
    run: str,
    sender: Sender,
    number: int,
    parcels: Sequence[Parcel],
    full: AbstractSet[int],
) -> list[Appended]:
    """Append parcels; return the verdict on each.

    A parcel for one of the ``full`` targets, which had no room before, is sent only if there is
    room now: a sender may wait for long, and its parcels may have some MB each.
    """
    waiting = [parcel for parcel in parcels if parcel.target in full]
    rooms = perform_all([inboxes.has_room(run, sender, number, parcel) for parcel in waiting])
    left = {parcel.target for parcel, room in zip(waiting, rooms, strict=True) if not room}
    sent = [parcel for parcel in parcels if parcel.target not in left]
    verdicts = iter(perform_all(inboxes.append(run, sender, number, sent)) if sent else ())
    return [Appended.FULL if one.target in left else next(verdicts) for one in parcels]


# Bounds on the entries of one inbox that one ``drain`` returns, in tuples and bytes of payload.
DRAINED_TUPLES = 10_000


DRAINED_BYTES = 4 * 1024 * 1024


def drawn_sender(number: int) -> Sender:
    """Make a sender from a drawn number.

    The sender's id gets random bits too, in case a failover of Redis loses the last draw: inboxes
    would mistake the appends of two processes with one number for repeats.
    """
    return Sender(task=-(number << 22 | secrets.randbits(22)), attempt=1)


def is_drawn(sender: Sender) -> bool:
    """Return True for a spout worker, False for a bolt task."""
    return sender.task < -1


def name_of(target: int) -> str:
    """Return the readable name of an inbox."""
    return f"the line of task {task_of(target)}" if is_line(target) else f"task {target}"


def stale(task: int) -> StaleAttemptError:
    """Return the error for a caller that another attempt or run has replaced."""
    return StaleAttemptError(
        f"{name_of(task)} belongs to a newer attempt or another run; this one ends"
    )


def number_of_run(run: str) -> int:
    """Return the number that a run's name begins with, 0 if there is none.

    >>> number_of_run("17-ended"), number_of_run("run")
    (17, 0)
    """
    digits = re.match(r"[0-9]+", run)
    return int(digits[0]) if digits else 0


def superseded(run: str) -> StaleAttemptError:
    """Return the error for a run that a run with a higher number has replaced."""
    return StaleAttemptError(f"run {run} is over: a later one has the inboxes")


def unfinished(step: int) -> StepOrderError:
    """Return the error for a seal that would overwrite another one."""
    return StepOrderError(f"cannot seal step {step}: another step is sealed and not finished")


def unsealed(step: int) -> StepOrderError:
    """Return the error for finishing a step that is not sealed."""
    return StepOrderError(f"cannot finish step {step}: it was never sealed")


def lost() -> StepOrderError:
    """Return the error for a finished step that the server has forgotten."""
    return StepOrderError("Redis came back with older data")
