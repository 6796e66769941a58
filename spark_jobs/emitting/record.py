"""The record of what one bolt task did in one step.

Its effect on the trees is computed when the step ends.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import Any, Protocol

from tiercel.acker.inbox.chunk import Chunk, Rows
from tiercel.acker.ledger import Failure, Ids
from tiercel.acker.metrics.contract import ERRORS_A_WINDOW
from tiercel.spark_jobs.bolts.tuples import ACKED, FAILED, OPEN, Tuple, tuples_of
from tiercel.spark_jobs.bolts.verdicts import Failing, Reject, RetryLater, Verdict, verdict_of
from tiercel.spark_jobs.emitting.outputs import Outputs
from tiercel.spark_jobs.errors import OutputLimitError
from tiercel.spark_jobs.reasons import RAISED, reason_at, reason_in

_TELL_RESETS_S = 1.0
_NO_ROOM = "other tuples of its step have emitted max_output_bytes"


class Item(Protocol):
    """One tuple of a task's input, or one row."""

    row: int
    seed: int
    state: int


class Once(Protocol):
    """Executes each tuple that has a key once, over all its deliveries."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Counts of its special cases, see ``running.counting``."""
        ...

    def collector(self, record: Record) -> Any:
        """The ``BasicRecorder`` of the step."""
        ...

    def guarded(self, execute: Callable[..., None]) -> Callable[..., None]:
        """Return ``execute``, for tuples that were not applied before."""
        ...


class Record:
    """Record of what one bolt task did in one step."""

    # Notes what the bolt raised, and its reason; returns the counter that counts it.
    tell_raised: Callable[[BaseException, str], str] | None = None
    # True if the bolt has an order: an emission whose anchors all failed stays behind.
    in_order = False
    # Rows of the open tuples that it has given up.
    open_rows: Sequence[int] = ()
    # Answers to tuples of the copy that wait for a step, where the bolt may hold tuples.
    answers: object = None
    # Number of answers that took effect in this step.
    answered = 0
    # The thread that executes the step of such a bolt; 0 before and afterwards.
    thread = 0
    # Bytes that were emitted; a tuple for several tasks counts once.
    size = 0
    # Time in ``execute`` and ``flush``.
    execute_ns = 0
    # The beginning of ``execute``, 0 before; and how much of the time since was reported already.
    began_ns = told_ns = 0
    # Of a ``BasicBolt``: time of the calls that acked their tuple by returning.
    returned_ns = 0

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
        # None of its effects counts: it is as it was before the step.
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
        # The size at which the call under way has emitted as much as it may.
        self.most = outputs.limit

    def receive(self, chunks: Sequence[Chunk], seeds: Ids, held: Sequence[Tuple]) -> None:
        """Take the input in: what the task holds, then these chunks, in the order of ``seeds``."""
        identities: list[int] = seeds.tolist()
        self.held = row = len(held)
        for at, tup in enumerate(held):
            tup.row = at
            tup.seed = identities[at]
            tup.record = self
        self.tuples = list(held)
        for chunk in chunks:
            self.tuples += tuples_of(chunk, row, identities, self)
            row += chunk.values.num_rows

    @property
    def process_ns(self) -> int:
        """Time from the beginning of ``execute`` to the ack, summed over the acked tuples."""
        return self.returned_ns or sum(tup.process_ns for tup in self.tuples if tup.state == ACKED)

    @property
    def fresh(self) -> list[Tuple]:
        """The task's input."""
        return self.tuples[self.held :] if self.held else self.tuples

    def abort(self, reason: str, verdict: Verdict | None = None) -> None:
        """Fail the input; the task still holds the tuples that it held before."""
        self.aborted = True
        for row in range(self.held):
            self.reasons.pop(row, None)
            self.verdicts.pop(row, None)
        self.resets.clear()
        self.outputs.clear()
        self.emitted = self.transferred = self.returned_ns = 0
        for tup in self.tuples:
            if tup.row < self.held:
                tup.state = OPEN
            elif tup.state != FAILED:
                self.fail(tup, reason, verdict)
        for row in self.open_rows:
            if row >= self.held:
                self.note(row, reason, verdict)

    def give_up(self, left: Sequence[Tuple]) -> None:
        """Keep the rows of the open tuples ``left`` alone: a tuple that nothing else refers to is
        gone when the caller lets go of it.
        """
        self.open_rows = [tup.row for tup in left]
        self.tuples = [tup for tup in self.tuples if tup.state != OPEN]

    def call(self) -> None:
        """A call of the bolt begins, which may emit as much as any other."""
        self.most = self.size + self.outputs.limit

    def begin_call(self) -> None:
        """Begin a call of a bolt whose steps are not cut; raises RetryLater where the calls before
        it have emitted as much as may be kept.
        """
        if self.size >= self.outputs.limit:
            raise RetryLater(0, _NO_ROOM, blame=False)

    def add(self, size: int) -> None:
        """Count what the call emits; raises OutputLimitError before it is recorded."""
        if self.size + size > self.most:
            raise self.too_much()
        self.size += size

    def too_much(self) -> OutputLimitError:
        """Return the error for a call that emits more than it may."""
        return OutputLimitError.of(self.component, self.outputs.limit)

    def flush(self, flush: Callable[[], None]) -> bool:
        """Flush the bolt; if that raises, everything fails that has not failed yet.

        Returns whether the bolt's state can still be trusted.
        """
        self.call()
        try:
            flush()
        except RAISED as error:
            self.abort(*self.blame(error, "flush"))
            return False
        return True

    def fail(self, tup: Item, reason: str, verdict: Verdict | None = None) -> None:
        """Mark the tuple as failed, in any state."""
        tup.state = FAILED
        self.note(tup.row, reason, verdict)

    def note(self, row: int, reason: str, verdict: Verdict | None = None) -> None:
        """Keep why a row fails, and what the bolt orders with it; the first reason counts."""
        if row not in self.reasons:
            self.reasons[row] = reason
            if verdict is not None:
                self.verdicts[row] = verdict

    def failure(self, row: int, root: int, task: int) -> Failure:
        """Tell the ledger why a row fails, one of whose roots this is."""
        verdict = self.verdicts.get(row)
        return Failure(
            root=root,
            component=self.component,
            task=task,
            reason=self.reasons[row],
            reject=isinstance(verdict, Reject),
            retry_after_s=verdict.seconds if isinstance(verdict, RetryLater) else None,
            blame=_is_to_blame(verdict),
        )

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

    def let_go(self) -> None:
        """Forget the tuples, which know this record, and whom it tells, once all is committed.

        They would be garbage that only the collector finds. It looked after every 100,000 objects,
        for a tenth of a second in which nothing else ran.
        """
        self.tuples = []
        self.tell_resets = None
        self.tell_raised = None

    @cached_property
    def executed(self) -> int:
        """Number of tuples in the input. To be asked for when the work is over."""
        return len(self.tuples) + len(self.open_rows) - self.held

    @cached_property
    def acked(self) -> Sequence[int] | Rows:
        """The rows of the acked tuples. To be asked for when the work is over."""
        return [tup.row for tup in self.tuples if tup.state == ACKED]

    @cached_property
    def verdicts(self) -> dict[int, Verdict]:
        """The order that the bolt gave with a failed row, by row; of most there is none."""
        return {}

    @cached_property
    def replayed(self) -> set[int]:
        """The rows that are never tried again where they are: their messages have failed, or an
        emission leaves that is anchored to them.
        """
        return set()

    @cached_property
    def raised(self) -> Counter[str]:
        """Number of errors of each kind that the bolt raised, by the counter's name."""
        return Counter()

    def blame(self, error: BaseException, where: str = "") -> Failing:
        """Note what the bolt raised, in ``where`` if that was not ``execute``; returns the reason,
        and the order of the bolt's that goes with it.

        Operators are shown it, unless no message is to blame.
        """
        verdict = verdict_of(error, where)
        if verdict is None:
            reason = reason_at(error, where)
            if self.tell_raised is not None:
                self.raised[self.tell_raised(error, reason)] += 1
        else:
            # Meant so, and no bug of the line that raises it.
            reason = reason_in(error, where)
        if _is_to_blame(verdict):
            self.report(reason)
        return reason, verdict

    def report(self, message: str) -> bool:
        """Show an error to the topology's operators; False if there are enough of them already."""
        if len(self.errors) >= ERRORS_A_WINDOW:
            return False
        self.errors.append(message)
        return True


def _is_to_blame(verdict: Verdict | None) -> bool:
    """Return False if the bolt says that the message did nothing wrong."""
    return not isinstance(verdict, RetryLater) or verdict.blame
