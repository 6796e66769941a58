"""``ArrowBolt``: bolts that receive rows instead of tuples."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property, partial
from typing import cast

import numpy as np
import pyarrow as pa

from tiercel.acker.inbox.chunk import Chunk, Lineage, Rows
from tiercel.acker.ledger import Ids
from tiercel.spark_jobs.bolts.bolt import ArrowBolt
from tiercel.spark_jobs.bolts.streams import is_system
from tiercel.spark_jobs.bolts.tuples import OPEN, Tuple
from tiercel.spark_jobs.bolts.verdicts import Verdict
from tiercel.spark_jobs.emitting.arrow_collector import ArrowRecorder, ArrowTaskOutput, Portion
from tiercel.spark_jobs.emitting.fold import Departure, child_lineage, join_anchors, join_keys
from tiercel.spark_jobs.emitting.outputs import Anchors, Outputs
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.errors import check_result
from tiercel.spark_jobs.kinds.plain import by_halves
from tiercel.spark_jobs.running.step import Execution, Step

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Received:
    chunk: Chunk
    # Row of the chunk's first tuple in the step's input.
    first: int

    @property
    def rows(self) -> Rows:
        return np.arange(self.first, self.first + self.chunk.values.num_rows)


class ArrowRecord(Record):
    """Record of one step of an ``ArrowBolt`` task; it has rows instead of tuples."""

    def __init__(
        self, component: str, outputs: Outputs, untracked: AbstractSet[int], salt: int
    ) -> None:
        super().__init__(component, outputs, untracked, salt)
        # Identities of the tuples in the step's input.
        self.seeds: Ids = np.zeros(0, np.uint64)
        self.sent: list[ArrowTaskOutput] = []
        self.emissions: list[Anchors] = []
        self._received: list[_Received] = []
        self._calls: list[tuple[Rows, int]] = []

    def receive(self, chunks: Sequence[Chunk], seeds: Ids, held: Sequence[Tuple]) -> None:  # noqa: ARG002 - rows are never held
        self.seeds = seeds
        row = 0
        for chunk in chunks:
            self._received.append(_Received(chunk=chunk, first=row))
            row += chunk.values.num_rows

    def portions(self) -> Iterator[Portion]:
        """Yield the input grouped by source, with ticks last.

        The order does not depend on the order of the chunks, which differs in a repeated step.
        """
        sources: dict[tuple[str, str], list[_Received]] = {}
        for received in sorted(self._received, key=lambda one: one.chunk.route.source_task):
            route = received.chunk.route
            sources.setdefault((route.component, route.stream), []).append(received)
        for (component, stream), parts in sorted(
            sources.items(), key=lambda one: (is_system(one[0][0]), one[0])
        ):
            tasks = np.array([part.chunk.route.source_task for part in parts], np.int32)
            yield Portion(
                component=component,
                stream=stream,
                batch=pa.concat_batches([part.chunk.values for part in parts]),
                tasks=np.repeat(tasks, [part.chunk.values.num_rows for part in parts]),
                rows=np.concatenate([part.rows for part in parts]),
                keys=join_keys([part.chunk.lineage for part in parts]),
            )

    def returned(self, rows: Rows, took_ns: int) -> None:
        """Note that a call returned: its rows are acked unless they failed."""
        self._calls.append((rows, took_ns))

    @property
    def process_ns(self) -> int:
        failed = list(self.reasons)
        return sum(
            took_ns * int(np.isin(rows, failed, invert=True).sum()) for rows, took_ns in self._calls
        )

    def commit(self, collector: ArrowRecorder) -> None:
        """Add the emissions and failures of a call that returned."""
        self.sent += collector.sent
        self.emissions += collector.emissions
        self.emitted += collector.emitted
        self.transferred += collector.transferred
        self.size += collector.size
        for row, failing in collector.failed.items():
            self.note(row, *failing)

    def abort(self, reason: str, verdict: Verdict | None = None) -> None:
        super().abort(reason, verdict)
        self.sent.clear()
        self.emissions.clear()
        for received in self._received:
            for row in received.rows.tolist():
                self.note(row, reason, verdict)

    @property
    def executed(self) -> int:
        return sum(received.chunk.values.num_rows for received in self._received)

    @cached_property
    def acked(self) -> Rows:
        rows = np.concatenate(
            [np.zeros(0, np.int64), *(received.rows for received in self._received)]
        )
        return rows[~np.isin(rows, list(self.reasons))] if self.reasons else rows


@dataclass(slots=True)
class _Row:
    """A single row, for an attempt that searches for the row that kills the process."""

    portion: Portion
    row: int
    seed: int
    state: int = OPEN


def _execute_rows(bolt: ArrowBolt, step: Step) -> bool:
    """Execute the input in one call per source, which the clock cannot cut, then flush.

    A step that notes each row executes them one by one.
    """
    record = cast("ArrowRecord", step.record)
    began = time.perf_counter_ns()
    if step.noting is None:
        for portion in record.portions():
            _execute(bolt, record, portion)
    else:
        rows = [
            _Row(portion=one, row=int(one.rows[0]), seed=int(record.seeds[one.rows[0]]))
            for portion in record.portions()
            for one in portion.single_rows()
        ]
        for row in step.noting(rows, lambda: _flush(bolt, record)):
            record.doing = row
            _execute(bolt, record, row.portion)
    record.doing = None
    trusted = not record.aborted and _flush(bolt, record)
    record.execute_ns += time.perf_counter_ns() - began
    return trusted


def _flush(bolt: ArrowBolt, record: ArrowRecord) -> bool:
    no_rows = np.zeros(0, np.int64)
    nothing = Portion(
        component="", stream="", batch=None, tasks=no_rows.astype(np.int32), rows=no_rows
    )
    collector = ArrowRecorder(record, record.seeds, nothing)
    trusted = record.flush(partial(bolt.flush, collector))
    collector.closed = True
    if trusted:
        record.commit(collector)
    return trusted


def _departures(record: ArrowRecord, lineage: Lineage, seeds: Ids) -> Sequence[Departure]:
    """Return the emissions that leave after a step.

    ``lineage`` and ``seeds`` are those of the step's input. An emission is dropped if all its
    anchors failed, as for a ``BasicBolt``. It leaves if any anchor did not fail, as for a ``Bolt``,
    because the tree of that anchor counts on it. The record's counters only include the emissions
    that leave.
    """
    failed = np.zeros(len(seeds), bool)
    failed[list(record.reasons)] = True
    if record.reasons:
        record.emitted = sum(int(anchors.go(failed).sum()) for anchors in record.emissions)
        if record.in_order:
            record.replayed.update(row for one in record.emissions for row in one.tied(failed))
    leaving: list[Departure] = []
    parts: dict[tuple[str, int], list[ArrowTaskOutput]] = {}
    for sent in record.sent:
        parts.setdefault((sent.stream, sent.target), []).append(sent)
    for (stream, target), together in parts.items():
        anchors = join_anchors([sent.anchors for sent in together])
        values = pa.concat_batches([sent.values for sent in together])
        if record.reasons:
            goes = anchors.go(failed)
            values = values.filter(pa.array(goes))
            anchors = anchors.select(np.flatnonzero(goes))
            record.transferred -= int((~goes).sum())
        if values.num_rows:
            child = child_lineage(lineage, seeds, anchors, target, together[0].bolt)
            leaving.append(Departure(stream=stream, target=target, values=values, lineage=child))
    return leaving


def _execute(bolt: ArrowBolt, record: ArrowRecord, portion: Portion) -> None:
    """Call the bolt; if it raises, call it again with each half, down to single rows."""
    by_halves(portion, partial(_call, bolt, record), partial(_fail_rows, record))


def _call(bolt: ArrowBolt, record: ArrowRecord, portion: Portion) -> None:
    record.begin_call()
    record.signs += 1
    collector = ArrowRecorder(record, record.seeds, portion)
    began = time.perf_counter_ns()
    try:
        execute: Callable[..., object] = bolt.execute
        if (result := execute(portion.batch, collector)) is not None:
            check_result(result, execute)
    finally:
        collector.closed = True
    record.returned(portion.rows, time.perf_counter_ns() - began)
    record.commit(collector)


def _fail_rows(record: ArrowRecord, portion: Portion, error: BaseException) -> None:
    failing = record.blame(error)
    source = f"{portion.component}:{portion.stream}"
    for row in portion.rows.tolist():
        record.note(row, *failing)
        log.debug(
            "%s: a row of %s failed", record.component, source, extra={"event": "tuple_failed"}
        )


ARROW = Execution(record=ArrowRecord, execute=_execute_rows, departures=_departures, at_once=True)
