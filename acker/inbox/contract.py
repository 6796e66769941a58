"""The contract of the inboxes: the chunks that wait for each bolt task, and for each bolt.

Every bolt task has one inbox. Spout workers and other bolt tasks *append* to it; the task *takes*
from it, works, and commits in *steps*: it seals the set of tuples that a step covers, lets the
step's effects leave, and finishes it, which forgets the tuples. ``MemoryInboxes`` and
``RedisInboxes`` both fulfil this contract and pass one suite.

* **Nothing is lost within a run.** A tuple that was appended stays until a finished
  step covered it.
* **Once.** A sender numbers its appends, and the parts of each from 0 on; each inbox remembers
  the last part that it took from each sender. So the client may repeat a call whose reply was
  lost, and a repeated step appends nothing twice, also where it ended between two parts. A sender
  appends to one inbox in the order of its numbers and parts: a lower one is a repeat.
* **Fencing.** An inbox belongs to one run (``adopt``) and to the latest attempt at its task
  (``open``). A call of another run or an older attempt is refused by the server, and so is an
  append of a sender that a newer attempt of the same task has fenced off.
* **Bounded.** An append that would go over the bounds of the inbox is refused as FULL and may be
  repeated until there is room. An inbox that holds nothing takes any append, however large. Large
  output comes in parts (``parcels_of``), so that each waits for room by itself.
* A server without memory takes the output of a bolt only into an inbox that holds nothing: else the
  inbox is full. So the last bolts go on, then the bolts before them. It refuses what spouts emit.
* **Lines.** Tuples for any task of a bolt are appended to the bolt's line (``rules.line_of``), and
  a task *claims* as many from its head as it can execute now: in the same call they move into the
  task's own inbox, and from then on they are the task's. An entry of more tuples than one task
  claims is shared by rows. Tuples that a task has claimed and not begun it may give back to the
  head of the line. Tasks whose inboxes are on one server (in a cluster: have one hash tag) share a
  part of the line; a parcel goes to one part, chosen by its sender and number. Adopting, draining,
  fencing, looking at and appending to a line are as for an inbox, with the line's id.
* **Every call may be repeated** as it is, at any later time: a repeat has no effect of its own.
  Only ``draw`` draws another number.
* Attempts, steps and numbers are above 0 and at most ``LARGEST``.
* A server raises RedisUnavailableError (the call may have taken effect; repeat it) or
  RedisRefusedError (an operator must act).

Losing everything is safe: the roots of lost tuples time out, and their messages are requeued. After
a server came back empty its inboxes belong to no run, and every call of the old run finds that out:

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

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from tiercel.acker.effects import Effect
from tiercel.acker.inbox.records import (
    NO_CALLS,
    NO_CLAIMS,
    Appended,
    Claims,
    Covered,
    Entry,
    InboxFigures,
    Opened,
    Parcel,
    Rest,
    Sender,
)

# Lua counts in floating point: larger integers would be rounded.
LARGEST = 2**53 - 1


class Inbox(Protocol):
    """The inbox of one bolt task, as one attempt at the task sees it.

    One thread only, but ``wake``.
    """

    # The state that the attempt found.
    opened: Opened

    def take(
        self,
        tuples: int,
        size: int,
        wait: timedelta,
        finishing: int | None = None,
        claims: Claims = NO_CLAIMS,
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
        ...

    def read(self, positions: Sequence[str]) -> list[Entry]:
        """Return the entries at these positions that are still there, in the order given.

        For a sealed step that must be repeated. Raises StaleAttemptError.
        """
        ...

    def seal(self, covered: Covered, snapshot: bytes | None = None) -> Effect[bool]:
        """Note the tuples that a step covers, before its first effect leaves. False: the attempt is
        stale.

        ``snapshot`` is the bolt after the step; it counts when the step is finished, and None
        leaves the one before. A repeat changes nothing but the snapshot, which the last seal
        gives; nor does a step that is finished. Raises StepOrderError where an earlier step is
        sealed and not finished.
        """
        ...

    def finish(self, step: int) -> Effect[bool]:
        """Forget the tuples that the sealed step covers.

        False: the attempt is stale. A repeat changes nothing.

        Raises StepOrderError if the step was never sealed.
        """
        ...

    def give_back(self, rests: Sequence[Rest]) -> Effect[bool]:
        """Give claimed tuples back to the head of the line, in their order.

        False: the attempt is stale. Only when no sealed step of the task is unfinished.
        """
        ...

    def wake(self) -> None:
        """End the ``take`` that waits, or else the next one that would, soon. Thread-safe.

        Should the server be away, ``take`` ends within some seconds by itself.
        """
        ...

    def close(self) -> None:
        """Release the connection that ``take`` waits with. Idempotent."""
        ...


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
        ...

    def drain(self, run: str) -> list[tuple[int, list[Entry]]]:
        """Return the first entries of inboxes that hold some, some MB in all: (task, entries).

        Changes nothing; empty when nothing is left. Release the roots of the entries, discard them,
        and drain again. A driver that dies in between leaves the rest, and the entries that it did
        not discard, to the next one. Drain before anything is appended in the new run. Raises
        StaleAttemptError.
        """
        ...

    def discard(self, run: str, task: int, positions: Sequence[str]) -> None:
        """Delete drained entries, once their roots were released. Raises StaleAttemptError."""
        ...

    def figures(self, tasks: Sequence[int]) -> dict[int, InboxFigures]:
        """Look at the inboxes of these tasks."""
        ...

    def snapshots(self, run: str) -> list[tuple[int, bytes]]:
        """Return the newest snapshot that earlier runs left in each inbox, as (task, snapshot),
        until ``forget_snapshot``. Changes nothing.
        """
        ...

    def forget_snapshot(self, run: str, task: int) -> None:
        """Delete the snapshot, once the roots of the tuples that the bolt held were released."""
        ...

    # -- a process that runs bolt tasks ----------------------------------------------------------

    def draw(self, run: str, task: int) -> int:
        """Draw the number of a new attempt. Raises StaleAttemptError if the run is over."""
        ...

    def fence(self, run: str, sender: Sender, targets: Sequence[int]) -> None:
        """Refuse from now on appends of older attempts of the sender to these inboxes.

        Raises StaleAttemptError if a newer attempt has fenced this one off, or the run is over, at
        any of them; the others are fenced nevertheless. An append does the same for its own inbox.
        """
        ...

    def open(self, run: str, task: int, attempt: int, line: int | None = None) -> Inbox:
        """Take the inbox over, to claim from ``line`` too. Fence off the older attempts everywhere
        else first.

        Raises StaleAttemptError if a newer attempt has opened it, or the run is over.
        """
        ...

    def beat(
        self,
        run: str,
        attempts: Mapping[int, int],
        doing_s: Mapping[int, float] = NO_CALLS,
        place: str = "",
    ) -> list[int]:
        """Say that the process lives and attends these tasks, {task: attempt}. ``doing_s`` has the
        seconds for which tasks have been in one call of their bolt; ``place`` says for monitors
        where the process runs.

        Returns the tasks that belong to another attempt or run by now.
        """
        ...

    # -- senders ---------------------------------------------------------------------------------

    def draw_sender(self) -> Sender:
        """Draw a sender of a process that is no bolt task; its numbers begin at 1.

        An inbox knows a bounded number of drawn senders (``Bounds.senders``) and then forgets
        the oldest. A forgotten sender is STALE there from then on, because its append might be a
        repeat: draw another one, and emit the tuples of the call anew.
        """
        ...

    def append(
        self, run: str, sender: Sender, number: int, parcels: Sequence[Parcel]
    ) -> list[Effect[Appended]]:
        """Prepare one append per parcel. Register the roots of the tuples first.

        ``number`` grows from call to call of one sender task, over its attempts too; a call that is
        repeated has the same number and the same parcels. At most one parcel per target and call,
        none without chunks, else ValueError. A parcel that was FULL must be in before the next part
        or number goes to the same inbox; see ``next_parcels``.
        """
        ...

    def close(self) -> None:
        """Release the connections. Idempotent."""
        ...
