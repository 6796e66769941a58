"""``BatchBolt``: a step is one batch, and a batch that is not full waits for more tuples."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from tiercel.acker.inbox.chunk import Chunk
from tiercel.acker.inbox.contract import Claims
from tiercel.acker.ledger import Ids
from tiercel.spark_jobs.bolts.bolt import BatchBolt
from tiercel.spark_jobs.bolts.collecting import BatchCollector
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM
from tiercel.spark_jobs.bolts.tuples import ACKED, Originals, Tuple
from tiercel.spark_jobs.bolts.verdicts import Failing, Reject
from tiercel.spark_jobs.emitting.fold import departures
from tiercel.spark_jobs.emitting.record import OutputRecorder, Record, Recorder
from tiercel.spark_jobs.errors import (
    AlreadyAckedError,
    ForeignTupleError,
    OutputLimitError,
    check_result,
)
from tiercel.spark_jobs.kinds.plain import by_halves
from tiercel.spark_jobs.reasons import raised
from tiercel.spark_jobs.running.attempt import Attempt, copy_for
from tiercel.spark_jobs.running.kind import StepInput
from tiercel.spark_jobs.running.step import Execution, Slices, Step
from tiercel.spark_jobs.topology.bolt_settings import Batching

log = logging.getLogger(__name__)

# Interval between polls of the inbox while a batch fills, so that tuples that arrive one by one do
# not cost a round trip each.
_LOOK_S = 0.01


@dataclass(frozen=True, slots=True)
class Batch:
    """The tuples of one call."""

    tuples: Sequence[Tuple]

    def __len__(self) -> int:
        return len(self.tuples)

    def halves(self) -> tuple[Batch, Batch]:
        middle = len(self.tuples) // 2
        return Batch(self.tuples[:middle]), Batch(self.tuples[middle:])


def _execute_batches(bolt: BatchBolt, step: Step) -> bool:
    """Execute the input in one batch, then flush.

    A step that notes each tuple executes them one by one, and the clock may then cut it.
    """
    record = cast("BatchRecord", step.record)
    began = time.perf_counter_ns()
    calls = _Calls(bolt, record)
    flush = partial(_flush, bolt, record)
    if step.noting is None:
        for batch in _batches(record.fresh):
            calls.execute(batch)
    else:
        tuples, _ = step.input(flush)
        for tup in tuples:
            calls.execute(Batch([tup]))
    record.doing = None
    trusted = not record.aborted and flush()
    record.execute_ns += time.perf_counter_ns() - began
    return trusted


class BatchRecord(Record):
    """Record of one step of a ``BatchBolt``, which holds no tuples from earlier steps."""

    def receive(self, chunks: Sequence[Chunk], seeds: Ids, held: Sequence[Tuple]) -> None:
        super().receive(chunks, seeds, held)
        self._chunks = chunks

    def restore(self, tuples: Iterable[Tuple]) -> None:
        """Undo what a call has changed in these tuples."""
        Originals(self._chunks).restore(tuples)

    def let_go(self) -> None:
        super().let_go()
        self._chunks = ()


class _Calls:
    """The calls of ``execute_batch`` in one step."""

    def __init__(self, bolt: BatchBolt, record: BatchRecord) -> None:
        self._bolt = bolt
        self._record = record
        # Failures that the bolt reported before the call raised; they override the exception.
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
            # Perhaps no single tuple is to blame: each half emits less.
            for half in batch.halves():
                self.execute(half)
        except raised() as error:
            self._refuse(batch, error)

    def _call(self, batch: Batch) -> None:
        record = self._record
        record.begin_call()
        record.signs += 1
        # The watchdog can only name a hanging tuple if it is alone in the batch.
        record.doing = batch.tuples[0] if len(batch) == 1 else None
        collector = BatchRecorder(record, batch.tuples)
        began = time.perf_counter_ns()
        execute: Callable[..., object] = self._bolt.execute_batch
        try:
            # Pass a copy, as the bolt may sort the list.
            if (result := execute(list(batch.tuples), collector)) is not None:
                check_result(result, execute)
        except BaseException:
            collector.undo()
            self._said = collector.failed
            record.restore(batch.tuples)
            raise
        collector.commit(time.perf_counter_ns() - began)

    def _refuse(self, batch: Batch, error: BaseException) -> None:
        record = self._record
        reason, verdict = record.blame(error)
        if len(batch) > 1 and isinstance(verdict, Reject):
            # The bolt rejects an unknown one of these tuples, and the others may be good.
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
    """Yield one batch of all tuples, then each tick by itself."""
    ticks = [tup for tup in tuples if tup.is_tick]
    others = [tup for tup in tuples if not tup.is_tick] if ticks else tuples
    if others:
        yield Batch(others)
    for tick in ticks:
        yield Batch([tick])


def _flush(bolt: BatchBolt, record: Record) -> bool:
    collector = BatchRecorder(record, ())
    trusted = record.flush(partial(bolt.flush, collector))
    collector.commit(0)
    return trusted


BATCH = Execution(
    record=BatchRecord,
    execute=_execute_batches,
    departures=partial(departures, basic=False, batch=True),
    at_once=True,
)


class BatchRecorder(Recorder, BatchCollector):
    """The ``BatchCollector`` of one call. When the call ends, ``commit`` it or ``undo`` it."""

    def __init__(self, record: Record, tuples: Sequence[Tuple]) -> None:
        """``tuples`` are the input of the call, empty for ``flush``."""
        super().__init__(record)
        # Reason and verdict of each tuple that the bolt failed, by row.
        self.failed: dict[int, Failing] = {}
        self._output = OutputRecorder(record)
        self._tuples = tuples
        self._rows = frozenset([tup.row for tup in tuples])
        self._closed = False
        self._mark = record.mark()
        record.call()

    def emit(
        self,
        values: Sequence[Any],
        anchors: Tuple | Iterable[Tuple],
        stream: str = DEFAULT_STREAM,
    ) -> list[int]:
        return self._output.emit(values, self._anchors(anchors), stream)

    def emit_direct(
        self,
        task: int,
        values: Sequence[Any],
        anchors: Tuple | Iterable[Tuple],
        stream: str = DEFAULT_STREAM,
    ) -> None:
        self._output.emit_direct(task, values, self._anchors(anchors), stream)

    def fail(self, tup: Tuple, reason: BaseException | str = "") -> None:
        self._check_open()
        self._check_mine(tup, "fails")
        self.failed.setdefault(tup.row, self._record.failing(reason))

    def commit(self, took_ns: int) -> None:
        """Apply the failures of a call that returned, and ack its other tuples."""
        self._closed = True
        for tup in self._tuples:
            if tup.row in self.failed:
                self._record.fail(tup, *self.failed[tup.row])
            else:
                tup.state = ACKED
                self._record.took_ns[tup.row] = took_ns

    def undo(self) -> None:
        """Discard the emissions of a call that raised, and reset its tuples."""
        self._closed = True
        self._record.rewind(self._mark)
        for tup in self._tuples:
            tup.emitted = 0

    def _anchors(self, anchors: Tuple | Iterable[Tuple]) -> tuple[Tuple, ...]:
        self._check_open()
        anchored = (anchors,) if isinstance(anchors, Tuple) else tuple(anchors)
        for anchor in anchored:
            self._check_mine(anchor, "anchors to")
        return anchored

    def _check_mine(self, tup: Tuple, verb: str) -> None:
        component = self._record.component
        if not isinstance(tup, Tuple):
            raise ForeignTupleError(f"{component!r} {verb} {tup!r:.60}, which is no tuple")
        if tup.origin.record is not self._record or tup.row not in self._rows:
            raise ForeignTupleError(f"{component!r} {verb} {tup!r}, which is not in this batch")

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyAckedError(
                f"{self._record.component!r} uses the collector of a call that has ended; its "
                "tuples are acked or failed: use the collector that execute_batch or flush is "
                "given, and do not keep it"
            )


class BatchSlices(Slices):
    """``Slices`` of a task whose steps are batches."""

    def __init__(self, clock: Callable[[], float], batching: Batching) -> None:
        super().__init__(clock, arrow=True)
        self.size = batching.size
        self._wait_s = batching.wait_s
        # The waiting tuples as pairs (time of arrival, number of tuples), oldest first.
        self._waiting: deque[tuple[float, int]] = deque()
        self._looked_at = self._arrival = clock()
        # True if a step was executed since the last poll of the inbox.
        self._worked = False

    def wanted(self, waiting: int) -> int:
        self._follow(waiting)
        return max(0, self.size - waiting)

    def patience_s(self, waiting: int, longest_s: float) -> float:
        """Return how long the next poll of the inbox may block."""
        if waiting:
            return min(longest_s, self._left_s())
        # Do not block right after a step: tuples that arrived during the step have waited already,
        # and after a blocking poll they look like new ones.
        return 0.0 if self._worked else longest_s

    def rest_s(self) -> float:
        if not self._waiting:
            return 0.0
        return min(max(0.0, self._looked_at + _LOOK_S - self.clock()), self._left_s())

    def polled(self) -> None:
        """Note that the inbox was polled."""
        now = self.clock()
        # After a step, assume that the tuples arrived right after the previous poll.
        self._arrival = self._looked_at if self._worked else now
        self._looked_at = now
        self._worked = False

    def allowed(self, waiting: int) -> int:
        """Return how many waiting tuples the next step may take; 0 if the batch must wait."""
        self._follow(waiting)
        return self.size if waiting >= self.size or not self._left_s() else 0

    def ended(self, executed: int, offered: int, at: float, *, committed: bool) -> None:  # noqa: ARG002 - the size stays
        self._worked = True

    def _left_s(self) -> float:
        """Return how much longer the oldest tuple may wait; 0 if no tuple waits."""
        if not self._waiting:
            return 0.0
        left_s = self._waiting[0][0] + self._wait_s - self.clock()
        return left_s if left_s > 0 else 0.0

    def _follow(self, waiting: int) -> None:
        """Account for tuples that were executed or arrived since the last call."""
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
    """``BoltKind`` whose steps are batches."""

    gives_back = True
    next_at = None
    at_work = False

    def __init__(self, attempt: Attempt, snapshot: bytes | None, batching: Batching) -> None:
        self._attempt = attempt
        self.execution = attempt.around.traced(BATCH, attempt.task)
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
            slices.polled()
        return attempt.first(slices.allowed(backlog.tuples) if backlog else 0)

    def ends(self, wait_s: float) -> StepInput | None:
        return self._attempt.answered(wait_s)

    def under_way(self) -> None:
        """Return None: no call runs between two steps."""

    def wake(self) -> None:
        """Do nothing: only the poll of the inbox blocks, and the attempt wakes it."""

    def close(self) -> None:
        self.copy.drop()
