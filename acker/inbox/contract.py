"""The contract of the inboxes: the chunks that wait for each bolt task, and for each bolt; with the
records that travel through them, ids of lines, and the checks that both backends share.

Every bolt task has one inbox. Spout workers and other bolt tasks *append* to it; the task *takes*
from it, works, and commits in *steps*: it seals the set of tuples that a step covers, lets the
step's effects leave, and finishes it, which forgets the tuples. ``MemoryInboxes`` and
``RedisInboxes`` both fulfil this contract and pass one suite.

* **Nothing is lost within a run.** A tuple that was appended stays until a finished
  step covered it.
* **Once.** A sender numbers its appends, and the parts of each from 0 on; each inbox remembers
  the last part that it took from each sender. So the client may repeat a call whose reply was
  lost, and a repeated step appends nothing twice, even if it ended between two parts. A sender
  appends to one inbox in the order of its numbers and parts: a lower one is a repeat.
* **Fencing.** An inbox belongs to one run (``adopt``) and to the latest attempt at its task
  (``open``). A call of another run or an older attempt is refused by the server, and so is an
  append of a sender that a newer attempt of the same task has fenced off.
* **Bounded.** An append that would go over the bounds of the inbox is refused as FULL and may be
  repeated until there is room. An inbox that holds nothing takes any append, however large. Large
  output comes in parts (``parcels_of``), so that each waits for room by itself.
* A server that is out of memory takes output of a bolt only into an empty inbox; others are FULL.
  So the last bolts go on, then the bolts before them. It refuses emissions of spouts.
* **Lines.** Tuples for any task of a bolt are appended to the bolt's line (``line_of``), and
  a task *claims* as many from its head as it can execute now: in the same call they move into the
  task's own inbox, and from then on they are the task's. An entry of more tuples than one task
  claims is shared by rows. A task may return claimed tuples that it has not begun to the head of
  the line. Tasks whose inboxes are on one server (in a cluster: have one hash tag) share a
  part of the line; a parcel goes to one part, chosen by its sender and number. Adopting, draining,
  fencing, looking at and appending to a line are as for an inbox, with the line's id.
* **Every call may be repeated** as it is, at any later time: a repeat has no effect of its own.
  Only ``draw`` draws another number.
* Attempts, steps and numbers are above 0 and at most ``LARGEST``.
* A server raises RedisUnavailableError (the call may have taken effect; repeat it) or
  RedisRefusedError (an operator must act).

Losing everything is safe: the roots of lost tuples time out, and their messages are requeued. After
a server restarts empty its inboxes belong to no run, and every call of the old run reports that:

    append              STALE
    seal, finish        False
    take, read          StaleAttemptError
    draw, fence, open   StaleAttemptError
    discard             StaleAttemptError
    drain               leaves the inboxes of that server out
    beat                returns the tasks
    figures             an inbox with ``adopted`` False, by which the driver notices

The driver begins a new run: it adopts the inboxes anew, and drains the other servers.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import NamedTuple, Protocol

from tiercel.acker.effects import Effect
from tiercel.acker.inbox.chunk import Appended, Parcel, is_line, task_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Sender:
    """One attempt at a task that appends: a bolt task, or a spout task of one worker process, which
    has its own number: see ``Inboxes.draw_sender``.
    """

    # Below -1 for a drawn sender, and below all that were drawn before.
    task: int
    # Grows from attempt to attempt at one task.
    attempt: int


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
    """Bounds on the tuples that one ``take`` claims from a line."""

    # Tuples in all, including the ones in the task's own inbox.
    tuples: int
    # Tuples beyond these: in all no more than the task's share of the line.
    more: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Rest:
    """The tuples of a claimed entry that have not been begun."""

    position: str
    # Number of the first one in the entry: the rest runs from there to the end of the entry.
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
    # False: the inbox belongs to no run, because its server lost it or it was never adopted.
    adopted: bool
    # Seconds since the oldest entry that is still there was appended; 0 if there is none.
    oldest_s: float
    # Number of attempts at the task in this run.
    attempts: int
    # Seconds since the last heartbeat of the task's process; None: none in this run.
    seen_s: float | None
    # Seconds for which the process has been in one call of the bolt; None: it reported no call.
    doing_s: float | None = None
    # Where the process runs, as it reported; empty: not reported.
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


class StaleAttemptError(Exception):
    """Another attempt, or another run, owns the inbox now: end at once and change nothing more."""


class StepOrderError(ValueError):
    """A step cannot be sealed or finished after the steps that the inbox knows.

    Its server has lost its last writes, or the caller has broken the contract.
    """


class Inbox(Protocol):
    """The inbox of one bolt task, as one attempt at the task sees it.

    Not thread-safe, except for ``wake``.
    """

    # The state that the attempt found.
    opened: Opened

    def take(
        self, tuples: int, size: int, wait: timedelta, finishing: int | None, claims: Claims
    ) -> list[Entry]:
        """Return entries that this attempt has not taken yet, in order.

        Where these have fewer tuples than ``claims`` says, and no others are in the inbox, claims
        the rest from the line, and returns it behind them. One entry that comes to a line wakes
        one task; a task that leaves something there wakes another.

        Finishes the step ``finishing`` first, in the same round trip; see ``finish``.

        Takes at least one entry if there is one, and ends before more than ``tuples`` tuples or
        ``size`` bytes. Waits at most ``wait`` for the first one; with a ``wait`` of 0 it does not.
        The position of the last one is kept on the server before this returns (see
        ``Opened.taken``). Finish a step that was found sealed first, else its entries come too;
        entries that it leaves done in part do come, also after ``read``. Raises StaleAttemptError.
        """

    def read(self, positions: Sequence[str]) -> list[Entry]:
        """Return the entries at these positions that are still there, in the order given.

        For a sealed step that must be repeated. Raises StaleAttemptError.
        """

    def seal(self, covered: Covered, snapshot: bytes | None = None) -> Effect[bool]:
        """Note the tuples that a step covers, before its first effect leaves. False: the attempt is
        stale.

        ``snapshot`` is the bolt after the step; it takes effect when the step is finished, and None
        keeps the one before. A repeat replaces only the snapshot, and changes nothing once the step
        is finished. Raises StepOrderError if an earlier step is sealed and not finished.
        """

    def finish(self, step: int) -> Effect[bool]:
        """Forget the tuples that the sealed step covers.

        False: the attempt is stale. A repeat changes nothing.

        Raises StepOrderError if the step was never sealed.
        """

    def give_back(self, rests: Sequence[Rest]) -> Effect[bool]:
        """Give claimed tuples back to the head of the line, in their order.

        False: the attempt is stale. Only when no sealed step of the task is unfinished.
        """

    def wake(self) -> None:
        """End the ``take`` that waits, or else the next one that would, soon. Thread-safe.

        If the server is unreachable, ``take`` ends by itself within some seconds.
        """

    def close(self) -> None:
        """Release the connection that ``take`` waits with. Idempotent."""


class Inboxes(Protocol):
    """All inboxes of one topology. Thread-safe."""

    # -- the driver ---------------------------------------------------------------------------

    def adopt(self, run: str, tasks: Sequence[int]) -> None:
        """Give the inboxes of ``tasks`` to a run: from now on every call of another run is refused.

        Inboxes of tasks that the topology no longer has are adopted too, so that they can be
        drained; entries stay until then. Senders and steps begin anew, the numbers of attempts go
        on. Adopting again for the same run changes nothing, except for tasks that are new to it.
        An empty inbox of a task that the topology no longer has is forgotten.

        The name of a run begins with its number (``Lease.draw``); one without counts as 0. Raises
        StaleAttemptError where a run with a higher number has an inbox: an older driver that comes
        late takes nothing away from its successor.
        """

    def drain(self, run: str) -> list[tuple[int, list[Entry]]]:
        """Return the first entries of inboxes that hold some, some MB in all: (task, entries).

        Changes nothing; empty when nothing is left. Release the roots of the entries, discard them,
        and drain again. A driver that dies in between leaves the rest, and the entries that it did
        not discard, to the next one. Drain before anything is appended in the new run. Raises
        StaleAttemptError.
        """

    def discard(self, run: str, task: int, positions: Sequence[str]) -> None:
        """Delete drained entries, once their roots were released. Raises StaleAttemptError."""

    def figures(self, tasks: Sequence[int]) -> dict[int, InboxFigures]:
        """Look at the inboxes of these tasks."""

    def snapshots(self, run: str) -> list[tuple[int, bytes]]:
        """Return the newest snapshot that earlier runs left in each inbox, as (task, snapshot),
        until ``forget_snapshot``. Changes nothing.
        """

    def forget_snapshot(self, run: str, task: int) -> None:
        """Delete the snapshot, once the roots of the tuples that the bolt held were released."""

    # -- a process that runs bolt tasks ----------------------------------------------------------

    def draw(self, run: str, task: int) -> int:
        """Draw the number of a new attempt. Raises StaleAttemptError if the run is over."""

    def fence(self, run: str, sender: Sender, targets: Sequence[int]) -> None:
        """Refuse from now on appends of older attempts of the sender to these inboxes.

        Raises StaleAttemptError if a newer attempt has fenced this one off, or the run is over, at
        any of them; the others are fenced nevertheless. An append does the same for its own inbox.
        """

    def open(self, run: str, task: int, attempt: int, line: int | None = None) -> Inbox:
        """Take the inbox over, to claim from ``line`` too. Fence off the older attempts everywhere
        else first.

        Raises StaleAttemptError if a newer attempt has opened it, or the run is over.
        """

    def beat(
        self, run: str, attempts: Mapping[int, int], doing_s: Mapping[int, float], place: str
    ) -> list[int]:
        """Report that the process is alive and runs these tasks, {task: attempt}. ``doing_s`` has
        the seconds for which tasks have been in one call of their bolt; ``place`` tells monitors
        where the process runs.

        Return the tasks that by now belong to another attempt or run.
        """

    # -- senders ---------------------------------------------------------------------------------

    def draw_sender(self) -> Sender:
        """Draw a sender for a process that is not a bolt task; its numbers begin at 1.

        An inbox knows a bounded number of drawn senders (``Bounds.senders``) and then forgets
        the oldest. A forgotten sender is STALE there from then on, because its append might be a
        repeat: draw another one, and emit the tuples of the call anew.
        """

    def append(
        self, run: str, sender: Sender, number: int, parcels: Sequence[Parcel]
    ) -> list[Effect[Appended]]:
        """Prepare one append per parcel. Register the roots of the tuples first.

        ``number`` grows from call to call of one sender task, over its attempts too; a call that is
        repeated has the same number and the same parcels. At most one parcel per target and call,
        none without chunks, else ValueError. A parcel that was FULL must be in before the next part
        or number goes to the same inbox; see ``next_parcels``.
        """

    def close(self) -> None:
        """Release the connections. Idempotent."""


# Bounds on the entries of one inbox that one ``drain`` returns: tuples, and bytes of payload.
DRAINED_TUPLES = 10_000


DRAINED_BYTES = 4 * 1024 * 1024


def drawn_sender(number: int) -> Sender:
    """Make a sender of a drawn number of at most 31 bits.

    It gets random bits too, in case a failover of Redis loses the last draw: inboxes would take the
    appends of two processes with one number for repeats.
    """
    return Sender(task=-(number << 22 | secrets.randbits(22)), attempt=1)


def is_drawn(sender: Sender) -> bool:
    """Return True for a spout worker, False for a bolt task."""
    return sender.task < -1


def name_of(target: int) -> str:
    """Return the readable name of an inbox."""
    return f"{'the line of task' if is_line(target) else 'task'} {task_of(target)}"


def stale(task: int) -> StaleAttemptError:
    """Return the error for a caller that another attempt or run has replaced at a task."""
    return StaleAttemptError(
        f"{name_of(task)} belongs to a newer attempt or another run; this one ends"
    )


def number_of_run(run: str) -> int:
    """Return the number that a run's name begins with, 0 if it begins with none.

    >>> number_of_run("17-ended"), number_of_run("run")
    (17, 0)
    """
    digits = re.match(r"[0-9]+", run)
    return int(digits[0]) if digits else 0


def superseded(run: str) -> StaleAttemptError:
    """Return the error for a run that comes after one with a higher number."""
    return StaleAttemptError(f"run {run} is over: a later one has the inboxes")


def unfinished(step: int) -> StepOrderError:
    """Return the error for a seal that would overwrite another one."""
    return StepOrderError(f"cannot seal step {step}: another step is sealed and not finished")


def unsealed(step: int) -> StepOrderError:
    """Return the error for finishing a step that is not sealed."""
    return StepOrderError(f"cannot finish step {step}: it was never sealed")
