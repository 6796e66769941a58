"""The record of what one bolt task did in one step.

What it means for the trees is computed when the step ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import Any, Protocol

from tiercel.acker.metrics.contract import ERRORS_A_WINDOW
from tiercel.queues.inbox.chunk import Rows
from tiercel.spark_jobs.bolts.tuples import ACKED, FAILED, OPEN, Tuple
from tiercel.spark_jobs.emitting.outputs import Outputs

_TELL_RESETS_S = 1.0


class Item(Protocol):
    """One tuple of a task's input, or one row."""

    row: int
    seed: int
    state: int


class Once(Protocol):
    """Executes each tuple that has a key once, over all its deliveries."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Counts of what it came upon, see ``running.counts``."""
        ...

    def collector(self) -> Any:
        """The ``BasicRecorder`` of the step."""
        ...

    def guarded(self, execute: Callable[..., None]) -> Callable[..., None]:
        """Return ``execute``, for tuples that were not applied before."""
        ...


class Record:
    """Record of what one bolt task did in one step."""

    def __init__(
        self,
        component: str,
        outputs: Outputs,
        untracked: AbstractSet[int] = frozenset(),
        salt: int = 0,
    ) -> None:
        self.component = component
        self.outputs = outputs
        # Rows of tuples that are in no tree.
        self.untracked = untracked
        # Differs from step to step.
        self.salt = salt
        self.once: Once | None = None  # of a bolt that is to be once
        # The tuples that the task holds from before, then its input.
        self.tuples: list[Tuple] = []
        # Number of tuples held from earlier steps.
        self.held = 0
        # Nothing of what it did counts: it is again what it was before the step.
        self.aborted = False
        # Row of each failed tuple to why.
        self.reasons: dict[int, str] = {}
        # The tuple in ``execute``; None in ``flush``, and while a whole batch is executed.
        self.doing: Item | None = None
        # Of life: a task that begins a batch or resets timeouts works, however long it takes.
        self.signs = 0
        # Rows of tuples whose timeouts begin again, not reported yet.
        self.resets: list[int] = []
        # Passes rows on to the spouts at once; False if that has to wait.
        self.tell_resets: Callable[[Sequence[int]], bool] | None = None
        self._told_at = time.monotonic()
        # The first five.
        self.errors: list[str] = []
        self.emitted = 0
        self.transferred = 0
        # Time in ``execute`` and ``flush``.
        self.execute_ns = 0
        # Of a ``BasicBolt``: time of the calls that acked their tuple by returning.
        self.returned_ns = 0

    @property
    def process_ns(self) -> int:
        """Time from the beginning of ``execute`` to the ack, summed over the acked tuples."""
        return self.returned_ns or sum(tup.process_ns for tup in self.tuples if tup.state == ACKED)

    @property
    def fresh(self) -> list[Tuple]:
        """The task's input."""
        return self.tuples[self.held :] if self.held else self.tuples

    def abort(self, reason: str) -> None:
        """Fail the input; the task still holds what it held before."""
        self.aborted = True
        for tup in self.tuples[: self.held]:
            tup.state = OPEN
            self.reasons.pop(tup.row, None)
        self.resets.clear()
        self.outputs.clear()
        self.emitted = self.transferred = self.returned_ns = 0
        for tup in self.fresh:
            if tup.state != FAILED:
                self.fail(tup, reason)

    def fail(self, tup: Item, reason: str) -> None:
        """Mark the tuple as failed, whatever it was before."""
        tup.state = FAILED
        self.reasons.setdefault(tup.row, reason)

    def reset(self, tup: Tuple) -> None:
        """Start the timeout of the tuple again: reported about once a second while the bolt works,
        which may be long.
        """
        self.resets.append(tup.row)
        self.signs += 1
        now = time.monotonic()
        if self.tell_resets is not None and now - self._told_at >= _TELL_RESETS_S:
            self._told_at = now
            if self.tell_resets(self.resets):
                self.resets = []

    @property
    def executed(self) -> int:
        """Number of tuples in the input."""
        return len(self.tuples) - self.held

    @cached_property
    def acked(self) -> Sequence[int] | Rows:
        """The rows of the acked tuples. To be asked for when the work is over."""
        return [tup.row for tup in self.tuples if tup.state == ACKED]

    def report(self, message: str) -> bool:
        """Show an error to the topology's operators; False if there are enough of them already."""
        if len(self.errors) >= ERRORS_A_WINDOW:
            return False
        self.errors.append(message)
        return True
