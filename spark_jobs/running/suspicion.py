"""Suspicion: executes input with care after a process died, to find the tuple that killed it; and
the watch for tuples that hang.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from tiercel.acker.inbox.contract import Opened
from tiercel.acker.ledger import Ledger, Token
from tiercel.spark_jobs.running.backlog import Backlog, Share
from tiercel.spark_jobs.running.step import Done, Step, TimeLimit
from tiercel.spark_jobs.suspects.book import REASON
from tiercel.spark_jobs.suspects.notes import ExecutionNotes
from tiercel.spark_jobs.suspects.redis_book import RedisCaseBook
from tiercel.spark_jobs.suspects.watchdog import CallLimit, Lookout, WatchedStep


class Turns:
    """Lock that steps hold together or alone. Thread-safe.

    A step that waits to be alone goes before all steps that come later.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._alone = False
        self._waiting = 0

    @contextmanager
    def together(self) -> Iterator[None]:
        """Hold the lock together with other steps."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone and not self._waiting)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock alone."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._alone and not self._inside)
            finally:
                self._waiting -= 1
            self._alone = True
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()


class Suspicion:
    """Finds the tuples that kill processes, for the bolt tasks of one process. Thread-safe.

    A process that dies takes all its bolt tasks with it, and the tuple that each was executing
    becomes a suspect. A suspect is then executed alone, without any other watched tuple: only a
    death while it is alone proves it guilty.
    """

    def __init__(self, run: str, book: RedisCaseBook | None, ledger: Ledger | None) -> None:
        self._run = run
        self._book = book
        self._ledger = ledger
        self._notes: dict[int, ExecutionNotes] = {}
        self._began: set[int] = set()
        self.turns = Turns()

    def of(self, task: int, opened: Opened) -> RetakenInput:
        """Return the input of one task that the previous attempt had taken, up to position
        ``opened.taken``.
        """
        return RetakenInput(self, task, opened)

    def begins(self, task: int, step: int) -> None:
        """Note that this process executes tuples again that an earlier one had taken, after
        ``step``.
        """
        if self._book is not None and task not in self._began:
            self._book.begins(self._token(task), step)
            self._began.add(task)

    def begun(self, task: int, step: int) -> int:
        """Return how many processes in a row have done that, and finished no step since."""
        return 0 if self._book is None else self._book.begun(self._token(task), step)

    def lookout(
        self,
        task: int,
        work: Callable[[], WatchedStep | None],
        waiting: Callable[[], Iterable[int]] = tuple,
        limit: CallLimit | None = None,
    ) -> Lookout:
        """Return the watchdog's view of one task; ``work`` returns the step being executed,
        ``waiting`` the roots in the inbox.
        """
        token = self._token(task)
        return Lookout(token, self._book, self._ledger, work, waiting=waiting, limit=limit)

    def notes(self, task: int) -> ExecutionNotes | None:
        """Return the task's notes, one object per process: another attempt in the same process is
        not another death.
        """
        if self._book is None or self._ledger is None:
            return None
        if task not in self._notes:
            self._notes[task] = ExecutionNotes(self._book, self._token(task), self._ledger)
        return self._notes[task]

    def _token(self, task: int) -> Token:
        return Token(run=self._run, task=task, step=0)


class RetakenInput:
    """The part of one task's input that an earlier attempt had taken when it ended.

    One thread only.
    """

    def __init__(self, suspicion: Suspicion, task: int, opened: Opened) -> None:
        self._suspicion = suspicion
        self._task = task
        self._step = opened.step
        # Position of the last such entry; None if all of them were executed.
        self.taken: tuple[int, int] | None = place(opened.taken or "0-0")

    @property
    def is_over(self) -> bool:
        """True once all of this part has been executed."""
        return self.taken is None

    @property
    def deaths(self) -> int:
        """Number of processes in a row that began with this part, and finished no step."""
        return self._suspicion.begun(self._task, self._step)

    def shares(self, backlog: Backlog, most: int) -> list[Share]:
        """Return the input of the next step: a tuple that was being executed when a process died
        comes first, and alone.
        """
        alone = self.suspect(backlog) if self.waits(backlog) else None
        return backlog.first(most) if alone is None else [alone]

    def suspect(self, backlog: Backlog) -> Share | None:
        """Return the first waiting tuple that was being executed when a process died."""
        notes = self._suspicion.notes(self._task) if self.taken is not None else None
        return backlog.one_of(notes.suspects) if notes is not None and notes.suspects else None

    def waits(self, backlog: Backlog) -> bool:
        """Return True if some of this part still waits."""
        first = backlog.first(1)
        if self.taken is not None and first and place(first[0].entry.position) > self.taken:
            self.taken = None
        return self.taken is not None and bool(first)

    def goes_together(self) -> bool:
        """Return True if its tuples may be executed concurrently: a guilty tuple explains every
        recorded death.
        """
        notes = self._suspicion.notes(self._task)
        return notes is None or notes.clear

    def execute_together(self, shares: Sequence[Share], step: Step) -> Done:
        """Execute a step of concurrent calls, noted as one piece of work, so that another death is
        noticed.
        """
        notes = self._notes(shares)
        if notes is None:
            return step.execute()
        noting = partial(notes.watch_together, step.record, step.roots, step.identity)
        with self._suspicion.turns.together():
            try:
                return step.execute(None, noting)
            finally:
                notes.rest()

    def execute(self, shares: Sequence[Share], step: Step, slices: TimeLimit | None) -> Done:
        """Execute a step of these shares; ``slices`` is None for a sealed step, which is repeated
        as a whole.
        """
        notes = self._notes(shares)
        if notes is None:
            return step.execute(slices)
        turns = self._suspicion.turns
        known = step.has(notes.suspects)
        with turns.alone() if known or step.identity in notes.suspects else turns.together():
            try:
                if slices is not None or known:
                    return step.execute(slices, partial(notes.watch, step.record, step.roots))
                if notes.repeats(step.record, step.identity, step.all_roots):
                    return step.execute()
                return step.refuse(REASON)
            finally:
                notes.rest()

    def _notes(self, shares: Sequence[Share]) -> ExecutionNotes | None:
        """Return the notes for a step with tuples of this part, and count that it begins."""
        taken = self.taken
        if taken is None or all(place(one.entry.position) > taken for one in shares):
            return None
        self._suspicion.begins(self._task, self._step)
        return self._suspicion.notes(self._task)


def place(position: str) -> tuple[int, int]:
    """Parse a position into a form that can be compared."""
    first, _, second = position.partition("-")
    return int(first), int(second or 0)
