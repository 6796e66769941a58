"""``BatchBolt``: a step is a batch, and a batch that is not full waits for company."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tiercel.acker.inbox.contract import Claims
from tiercel.spark_jobs.bolts.bolt import BatchBolt
from tiercel.spark_jobs.bolts.tuples import Tuple
from tiercel.spark_jobs.bolts.verdicts import Failing, Reject
from tiercel.spark_jobs.emitting.collectors import BatchRecorder
from tiercel.spark_jobs.emitting.fold import departures
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.errors import OutputLimitError
from tiercel.spark_jobs.kinds.plain import by_halves
from tiercel.spark_jobs.reasons import RAISED
from tiercel.spark_jobs.running.attempt import Attempt, copy_for
from tiercel.spark_jobs.running.kind import StepInput
from tiercel.spark_jobs.running.step import Execution, May, Slices, Step
from tiercel.spark_jobs.suspects.notes import Watch
from tiercel.spark_jobs.topology.bolt_settings import Batching

log = logging.getLogger(__name__)

# Between two looks into the inbox while a batch comes together: tuples that come one by one must
# not cost a round trip each.
_LOOK_S = 0.01


@dataclass(frozen=True, slots=True)
class Batch:
    """Tuples of one call."""

    tuples: Sequence[Tuple]

    def __len__(self) -> int:
        return len(self.tuples)

    def halves(self) -> tuple[Batch, Batch]:
        middle = len(self.tuples) // 2
        return Batch(self.tuples[:middle]), Batch(self.tuples[middle:])


def _execute_batches(bolt: BatchBolt, step: Step, may: May | None, noting: Watch | None) -> bool:
    """Execute the input, tuple by tuple where each one is noted, then flush.

    Where each tuple is a call of its own the step is cut as others are.
    """
    record = step.record
    began = time.perf_counter_ns()
    calls = _Calls(bolt, record)
    flush = partial(_flush, bolt, record)
    if noting is None:
        for batch in _batches(record.fresh):
            calls.execute(batch)
    else:
        for tup in step.input(may, noting, flush):
            calls.execute(Batch([tup]))
    record.doing = None
    trusted = not record.aborted and flush()
    record.execute_ns += time.perf_counter_ns() - began
    return trusted


class _Calls:
    """The calls of ``execute_batch`` in one step."""

    def __init__(self, bolt: BatchBolt, record: Record) -> None:
        self._bolt = bolt
        self._record = record
        # Failures that the bolt reported in the call that raised: more than the exception can say.
        self._said: Mapping[int, Failing] = {}

    def execute(self, batch: Batch) -> None:
        if self._bolt.on_error == "split":
            by_halves(batch, self._call, self._refuse)
            return
        try:
            self._call(batch)
        except OutputLimitError as error:
            if len(batch) == 1:
                self._refuse(batch, error)
                return
            # None of them may be to blame: two halves emit half each.
            for half in batch.halves():
                self.execute(half)
        except RAISED as error:
            self._refuse(batch, error)

    def _call(self, batch: Batch) -> None:
        record = self._record
        record.begin_call()
        record.signs += 1
        # The watchdog can name a tuple that hangs only where it is alone.
        record.doing = batch.tuples[0] if len(batch) == 1 else None
        collector = BatchRecorder(record, batch.tuples)
        began = time.perf_counter_ns()
        try:
            # A separate list: the bolt may sort it.
            self._bolt.execute_batch(list(batch.tuples), collector)
        except BaseException:
            collector.undo()
            self._said = collector.failed
            raise
        collector.commit(time.perf_counter_ns() - began)

    def _refuse(self, batch: Batch, error: BaseException) -> None:
        record = self._record
        reason, verdict = record.blame(error)
        if len(batch) > 1 and isinstance(verdict, Reject):
            # One of them is meant, and which one is not said: the others may be good.
            verdict = None
        log.debug(
            "%s: a batch of %d failed",
            record.component,
            len(batch),
            extra={"event": "tuple_failed"},
        )
        for tup in batch.tuples:
            record.fail(tup, *self._said.get(tup.row, (reason, verdict)))


def _batches(tuples: Sequence[Tuple]) -> Iterator[Batch]:
    """All tuples together, then each tick."""
    ticks = [tup for tup in tuples if tup.is_tick]
    others = [tup for tup in tuples if not tup.is_tick] if ticks else tuples
    if others:
        yield Batch(others)
    for tick in ticks:
        yield Batch([tick])


def _flush(bolt: BatchBolt, record: Record) -> bool:
    collector = BatchRecorder(record, ())
    trusted = record.flush(lambda: bolt.flush(collector))
    collector.commit(0)
    return trusted


BATCH = Execution(
    record=Record,
    execute=_execute_batches,
    departures=partial(departures, basic=False, batch=True),
    at_once=True,
)


class BatchSlices(Slices):
    """``Slices`` of a task whose step is one batch."""

    def __init__(self, clock: Callable[[], float], batching: Batching) -> None:
        super().__init__(clock, arrow=True)
        self.size = batching.size
        self._wait_s = batching.wait_s
        # The tuples that wait, as (arrival, number) in their order.
        self._waiting: deque[tuple[float, int]] = deque()
        self._looked_at = self._arrival = clock()
        # True if there was a step since the last look into the inbox.
        self._worked = False

    def wanted(self, waiting: int) -> int:
        self._follow(waiting)
        return max(0, self.size - waiting)

    def patience_s(self, waiting: int, longest_s: float) -> float:
        """Return how long the look into the inbox may wait, where this many tuples wait already."""
        if waiting:
            return min(longest_s, self._left_s())
        # What came while the task was at work has waited already. A look that waits could not tell
        # it from what comes now.
        return 0.0 if self._worked else longest_s

    def rest_s(self) -> float:
        if not self._waiting:
            return 0.0
        return min(max(0.0, self._looked_at + _LOOK_S - self._clock()), self._left_s())

    def took(self, entries: int) -> None:  # noqa: ARG002 - others count them
        now = self._clock()
        # At the earliest: between the last look and this one it may have come at any time.
        self._arrival = self._looked_at if self._worked else now
        self._looked_at = now
        self._worked = False

    def allowed(self, waiting: int) -> int:
        """Return how many of the tuples that wait the next step may take; 0: none yet."""
        self._follow(waiting)
        return self.size if waiting >= self.size or not self._left_s() else 0

    def ended(self, executed: int, offered: int) -> None:  # noqa: ARG002 - the size stays
        self._executed = self._clock()
        self._worked = True

    def _left_s(self) -> float:
        """Time that the oldest tuple still waits; 0 where none does."""
        if not self._waiting:
            return 0.0
        left_s = self._waiting[0][0] + self._wait_s - self._clock()
        return left_s if left_s > 0 else 0.0

    def _follow(self, waiting: int) -> None:
        """Note the tuples executed since the last call, or arrived with the last look."""
        known = sum(number for _, number in self._waiting)
        if waiting > known:
            self._waiting.append((self._arrival, waiting - known))
        gone = known - waiting
        while gone > 0:
            arrival, number = self._waiting.popleft()
            if number > gone:
                self._waiting.appendleft((arrival, number - gone))
            gone -= number


class InBatches:
    """``BoltKind`` whose steps take as much as a batch."""

    execution = BATCH
    gives_back = True
    next_at = None

    def __init__(self, attempt: Attempt, snapshot: bytes | None, batching: Batching) -> None:
        self._attempt = attempt
        self.copy = copy_for(attempt, snapshot)
        self.slices = BatchSlices(attempt.around.clock, batching)

    def takes(self, wait_s: float) -> StepInput | None:
        attempt = self._attempt
        backlog = attempt.backlog
        slices = self.slices
        wanted = slices.wanted(backlog.tuples)
        if wanted:
            if slices.patience_s(backlog.tuples, wait_s):
                attempt.stop.wait(slices.rest_s())
            attempt.fetch(wanted, slices.patience_s(backlog.tuples, wait_s), Claims(wanted))
        return attempt.first(slices.allowed(backlog.tuples) if backlog else 0)

    def hanging(self) -> None:
        """Nothing: no call is under way between two steps."""

    def wake(self) -> None:
        """Nothing else waits than the look into the inbox."""

    def close(self) -> None:
        self.copy.drop()
