"""Runs a ``BatchBolt`` over the input of one step, which is one batch."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tiercel.spark_jobs.bolts.batch_bolt import BatchBolt
from tiercel.spark_jobs.bolts.reject import Reject
from tiercel.spark_jobs.bolts.tuples import Tuple
from tiercel.spark_jobs.bolts.verdicts import Failing
from tiercel.spark_jobs.emitting.batch_collector import BatchRecorder
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.errors import OutputLimitError
from tiercel.spark_jobs.reasons import RAISED
from tiercel.spark_jobs.running.execution import flush_bolt
from tiercel.spark_jobs.running.halves import by_halves
from tiercel.spark_jobs.suspects.notes import Watch

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Batch:
    """Tuples of one call."""

    tuples: Sequence[Tuple]

    def __len__(self) -> int:
        return len(self.tuples)

    def halves(self) -> tuple[Batch, Batch]:
        middle = len(self.tuples) // 2
        return Batch(self.tuples[:middle]), Batch(self.tuples[middle:])


def execute_batches(bolt: BatchBolt, record: Record, watch: Watch | None = None) -> bool:
    """Execute the input, then flush; returns whether the copy can still be trusted.

    Tuple by tuple where one watches.
    """
    began = time.perf_counter_ns()
    calls = _Calls(bolt, record)
    flush = partial(_flush, bolt, record)
    if watch is None:
        for batch in _batches(record.fresh):
            calls.execute(batch)
    else:
        for tup in watch(record.fresh, flush):
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
        # What the bolt said of tuples in the call that raised: more than the exception can.
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
            # A list of its own: the bolt may sort it.
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
    trusted = flush_bolt(lambda: bolt.flush(collector), record)
    collector.commit(0)
    return trusted
