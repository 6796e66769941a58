"""The collectors that bolts are handed: they write into the step's record."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import repeat
from types import FunctionType
from typing import Any, NoReturn

from tiercel.acker.ids import mix
from tiercel.spark_jobs.bolts.collecting import BasicCollector, BatchCollector, OutputCollector
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM
from tiercel.spark_jobs.bolts.tuples import ACKED, OPEN, Tuple
from tiercel.spark_jobs.bolts.verdicts import Failing, failing_for
from tiercel.spark_jobs.emitting.outputs import TaskOutput, copy_numbers
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.errors import AlreadyAckedError, ForeignTupleError, TupleError
from tiercel.spark_jobs.reasons import reason_given

_MASK = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15
# Identities of a tuple's emissions: STEP apart and then spread, where a whole
# ``mix`` would be slow.
SPREAD = 0xBF58476D1CE4E5B9
_PLAIN = (list, tuple)


class Recorder:
    """Base of the collectors, that of an ``ArrowBolt`` too.

    Python's errors of a wrong call name the contract that one fulfils, its last base: users know
    no other class.
    """

    def __init_subclass__(cls) -> None:
        contract = cls.__bases__[-1]
        for name, member in vars(cls).items():
            if isinstance(member, FunctionType) and hasattr(contract, name):
                member.__qualname__ = f"{contract.__qualname__}.{name}"
        cls.__name__ = contract.__name__

    def __init__(self, record: Record) -> None:
        self._record = record
        self._streams = record.outputs.streams

    def report_error(self, error: BaseException | str) -> None:
        self._record.report(reason_given(error))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a collector cannot travel: name its attribute in transient")


class BasicRecorder(Recorder, BasicCollector):
    """The ``BasicCollector`` of one step."""

    def __init__(self, record: Record) -> None:
        super().__init__(record)
        # The tuple in ``execute``; None in ``flush``.
        self.current: Tuple | None = None

    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> list[int]:
        record = self._record
        tup = self.current
        output_stream = self._streams.get(stream)
        if (
            output_stream is None
            or output_stream.direct is not None
            or type(values) not in _PLAIN
            or len(values) != output_stream.width
        ):
            output_stream = record.outputs.for_emit(stream, values)
        if tup is None:
            raise self._nothing_to_anchor_to()
        position = tup.emitted
        tup.emitted = position + 1
        identity = (
            ((tup.seed + position * STEP) * SPREAD) & _MASK if output_stream.by_identity else 0
        )
        values = output_stream.keep(values) if output_stream.mutable else tuple(values)
        # All choices first: if one raises and the bolt goes on nevertheless, no task has
        # received the tuple.
        chosen: list[TaskOutput] = []
        for choose, made in output_stream.subscribers:
            for task in choose(values, identity):
                chosen.append(made[task])  # noqa: PERF401 - a comprehension is a call, until Python 3.12
        if chosen:
            size = record.size + output_stream.size(values)
            if size > record.most:
                raise record.too_much()
            record.size = size
        tasks: list[int] = []
        for task_output in chosen:
            task_output.values.append(values)
            task_output.rows.append(tup.row)
            task_output.positions.append(position)
            tasks += task_output.named
        if output_stream.to_several and tup.lanes is not None:
            for task_output, number in zip(chosen, copy_numbers(chosen), strict=True):
                task_output.positions[-1] |= number
        record.emitted += 1
        record.transferred += len(chosen)
        return tasks

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        record = self._record
        tup = self.current
        task_output = record.outputs.direct(task, stream, values)
        if tup is None:
            raise self._nothing_to_anchor_to()
        output_stream = self._streams[stream]
        record.add(output_stream.size(values))
        task_output.values.append(output_stream.keep(values))
        task_output.rows.append(tup.row)
        task_output.positions.append(tup.emitted)
        tup.emitted += 1
        record.emitted += 1
        record.transferred += 1

    def _nothing_to_anchor_to(self) -> TupleError:
        component = self._record.component
        return TupleError(
            f"{component!r} emits in flush, where there is no tuple to anchor to: use a "
            "Bolt for that"
        )


class OutputRecorder(Recorder, OutputCollector):
    """The ``OutputCollector`` of one step."""

    def emit(
        self,
        values: Sequence[Any],
        anchors: Tuple | Iterable[Tuple] = (),
        stream: str = DEFAULT_STREAM,
    ) -> list[int]:
        output_stream = self._record.outputs.for_emit(stream, values)
        anchored = self._anchors(anchors)
        identity = self._identity(anchored)
        values = output_stream.keep(values)
        chosen = [
            made[task]
            for choose, made in output_stream.subscribers
            for task in choose(values, identity)
        ]
        if chosen:
            self._record.add(output_stream.size(values))
        self._send(values, anchored, chosen)
        return [task for task_output in chosen for task in task_output.named]

    def emit_direct(
        self,
        task: int,
        values: Sequence[Any],
        anchors: Tuple | Iterable[Tuple] = (),
        stream: str = DEFAULT_STREAM,
    ) -> None:
        task_output = self._record.outputs.direct(task, stream, values)
        anchored = self._anchors(anchors)
        output_stream = self._streams[stream]
        self._record.add(output_stream.size(values))
        self._send(output_stream.keep(values), anchored, [task_output])

    def ack(self, tup: Tuple) -> None:
        self._check(tup, "acks")
        tup.state = ACKED
        # Wall-clock time: a held tuple may be acked in another process. It may be set back.
        tup.process_ns = max(0, time.time_ns() - tup.began_ns)

    def fail(self, tup: Tuple, reason: BaseException | str = "") -> None:
        self._check(tup, "fails")
        self._record.fail(tup, *failing_for(reason))

    def reset_timeout(self, tup: Tuple) -> None:
        self._check(tup, "resets the timeout of")
        self._record.reset(tup)

    def _anchors(self, anchors: Tuple | Iterable[Tuple]) -> tuple[Tuple, ...]:
        anchored = (anchors,) if isinstance(anchors, Tuple) else tuple(anchors)
        for anchor in anchored:
            self._check(anchor, "anchors to")
        return anchored

    def _identity(self, anchored: Sequence[Tuple]) -> int:
        """Of the emission, for the groupings; it rests on tracked anchors alone
        where there are any.

        Those are the same at each attempt. An untracked tuple's seed is not: it comes from the
        place in the input.
        """
        record = self._record
        tracked = (
            [anchor for anchor in anchored if anchor.row not in record.untracked]
            if record.untracked
            else anchored
        )
        if not tracked:
            return mix(record.salt + record.emitted & _MASK)
        # A sum: the order of the anchors may differ when a step is repeated, and the same anchor
        # twice must not cancel out.
        return sum(mix(anchor.seed + anchor.emitted * STEP & _MASK) for anchor in tracked) & _MASK

    def _send(
        self, values: tuple[Any, ...], anchored: Sequence[Tuple], chosen: Sequence[TaskOutput]
    ) -> None:
        """Record the emission. One position per anchor: the same anchor twice gives two edges."""
        rows = []
        positions = []
        for anchor in anchored:
            rows.append(anchor.row)
            positions.append(anchor.emitted)
            anchor.emitted += 1
        several = len(chosen) > 1 and bool(anchored) and anchored[0].lanes is not None
        numbers = copy_numbers(chosen) if several else repeat(0)
        for task_output, number in zip(chosen, numbers, strict=False):
            task_output.values.append(values)
            task_output.rows += rows
            task_output.positions += (
                [position | number for position in positions] if number else positions
            )
            task_output.anchor_counts.append(len(rows))
            task_output.numbers.append(self._record.emitted)
        self._record.emitted += 1
        self._record.transferred += len(chosen)

    def _check(self, tup: Tuple, verb: str) -> None:
        if not isinstance(tup, Tuple):
            raise ForeignTupleError(
                f"{self._record.component!r} {verb} {tup!r:.60}, which is no tuple"
            )
        if tup.record is not self._record:
            raise ForeignTupleError(
                f"{self._record.component!r} {verb} {tup!r}, which this task does not hold"
            )
        if tup.state != OPEN:
            done = "acked" if tup.state == ACKED else "failed"
            raise AlreadyAckedError(
                f"{self._record.component!r} {verb} {tup!r}, which it has {done} before"
            )


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
