"""Contracts between an attempt and its kind of bolt: ``BoltKind``, and ``Order`` if it has one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tiercel.acker.inbox.chunk import Chunk, Lineage
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.running.backlog import Backlog, Share
from tiercel.spark_jobs.running.copy import WorkingCopy
from tiercel.spark_jobs.running.step import Done, Execution, Slices
from tiercel.spark_jobs.suspects.watchdog import WatchedStep


@dataclass(frozen=True, kw_only=True, slots=True)
class StepInput:
    """The input of the next step."""

    shares: Sequence[Share] = ()
    ticks: Sequence[Chunk] = ()
    # True: the clock does not cut the step, as its calls are over, or are made at once.
    together: bool = False


class BoltKind(Protocol):
    """The kind of a bolt, in one attempt: takes tuples, and chooses the input of each step.

    Chosen once per attempt, by the bolt (``kinds.choice``). The attempt does all the rest: it opens
    the inbox, repeats a step that was sealed, executes and commits steps, and gives tuples back to
    the line while a call lasts. A kind uses its ``backlog``, ``fetch`` and ``first``.

    ``hanging`` and ``wake`` are for any thread, all else for the task's alone.
    """

    @property
    def execution(self) -> Execution:
        """Runs the bolt over the input of a step."""
        ...

    @property
    def copy(self) -> WorkingCopy:
        """The bolt of the task."""
        ...

    @property
    def slices(self) -> Slices:
        """The clock that cuts steps, and says how soon the next one may begin."""
        ...

    @property
    def gives_back(self) -> bool:
        """True if tuples that were claimed and have not begun may go back to the line."""
        ...

    @property
    def next_at(self) -> float | None:
        """Time on the loop's clock at which it goes on although nothing comes."""
        ...

    def takes(self, wait_s: float) -> StepInput | None:
        """Return the input of one step, or None; waits for it for ``wait_s`` at most.

        The attempt does the step before it asks again.
        """
        ...

    def hanging(self) -> WatchedStep | None:
        """Return the call under way between two steps that lasts too long.

        Any thread.
        """
        ...

    def wake(self) -> None:
        """End a wait. Any thread."""
        ...

    def close(self) -> None:
        """Clean the bolt up. Tuples that were taken and are not committed stay in the inbox."""
        ...


class Order(Protocol):
    """The order of the tuples of one task. It is kept in the task's snapshots, beside the copy."""

    def opened(self, snapshot: bytes | None) -> bytes | None:
        """Go on from what an earlier attempt kept; returns the part of the copy."""
        ...

    def backlog(self, done: Mapping[str, bytes]) -> Backlog:
        """Return an empty backlog, whose steps are given only tuples that may begin."""
        ...

    def again(
        self, shares: Sequence[Share], record: Record, lineage: Lineage, *, repeated: bool
    ) -> list[int]:
        """Return the rows of the step that failed and are tried again where they are: they stay in
        the backlog. None are in a ``repeated`` step, which was sealed with all its tuples.

        Rejects the ones that have failed too often.
        """
        ...

    def noted(self, shares: Sequence[Share], done: Done) -> Done:
        """Note what a step did; returns it with the snapshot of both, if there is a new one."""
        ...

    def conflicted(self, shares: Sequence[Share], done: Done) -> bytes:
        """An earlier attempt at this step did other work: all its messages come again.

        Returns the snapshot to seal it with once more.
        """
        ...
