"""The collector of a ``BatchBolt``: it can take back what one call emitted and failed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tiercel.spark_jobs.bolts.collecting import BatchCollector
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM
from tiercel.spark_jobs.bolts.tuples import ACKED, Tuple
from tiercel.spark_jobs.bolts.verdicts import Failing, failing_for
from tiercel.spark_jobs.emitting.collectors import OutputRecorder, Recorder
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.errors import AlreadyAckedError, ForeignTupleError


class BatchRecorder(Recorder, BatchCollector):
    """The ``BatchCollector`` of one call: ``commit`` or ``undo`` it when that has ended."""

    def __init__(self, record: Record, tuples: Sequence[Tuple]) -> None:
        """``tuples`` are the input of the call; none in ``flush``."""
        super().__init__(record)
        # Row of each tuple that the bolt failed to why.
        self.failed: dict[int, Failing] = {}
        self._output = OutputRecorder(record)
        self._tuples = tuples
        self._rows = frozenset([tup.row for tup in tuples])
        self._closed = False
        self._marks = record.outputs.mark()
        record.call()
        self._size = record.size
        self._emitted = record.emitted
        self._transferred = record.transferred

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
        self.failed.setdefault(tup.row, failing_for(reason))

    def commit(self, took_ns: int) -> None:
        """The call returned after this time: its answers count, and the other tuples are acked."""
        self._closed = True
        for tup in self._tuples:
            if tup.row in self.failed:
                self._record.fail(tup, *self.failed[tup.row])
            else:
                tup.state = ACKED
                tup.process_ns = took_ns

    def undo(self) -> None:
        """The call raised: its emissions are forgotten, and its tuples are as before."""
        self._closed = True
        record = self._record
        record.outputs.rewind(self._marks)
        record.size = self._size
        record.emitted = self._emitted
        record.transferred = self._transferred
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
        if tup.record is not self._record or tup.row not in self._rows:
            raise ForeignTupleError(f"{component!r} {verb} {tup!r}, which is not in this batch")

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyAckedError(
                f"{self._record.component!r} uses the collector of a call that has ended; its "
                "tuples are acked or failed: use the collector that execute_batch or flush is "
                "given, and do not keep it"
            )
