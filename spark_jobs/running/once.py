"""A step's side of ``StatefulBolt.once``: what becomes of tuples that were applied before."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tiercel.acker.keys import KEY_BYTES, said_by
from tiercel.queues.errors import SchemaError
from tiercel.queues.schema import Schema
from tiercel.spark_jobs.bolts.collecting import BasicCollector
from tiercel.spark_jobs.bolts.stateful_bolt import StatefulBolt
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM
from tiercel.spark_jobs.bolts.tuples import Tuple
from tiercel.spark_jobs.emitting.collectors import BasicRecorder
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.errors import BadValuesError, OtherMessageError
from tiercel.spark_jobs.running.counts import ONCE_REPEATED, ONCE_UNKEYED, ONCE_UNSURE
from tiercel.spark_jobs.running.emissions import PastEmission, pack_emissions, unpack_emissions
from tiercel.spark_jobs.state.key_value import KeyValueState

# Of a record: a digest of what the message says. What was emitted follows.
_CONTENT_BYTES = 4


class NotingRecorder(BasicRecorder, BasicCollector):
    """Notes what the tuple in ``execute`` emits."""

    def __init__(self, record: Record) -> None:
        super().__init__(record)
        self.noted: list[PastEmission] = []

    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> list[int]:
        tasks = super().emit(values, stream)
        self.noted.append(PastEmission(stream, self._kept(stream, values)))
        return tasks

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        super().emit_direct(task, values, stream)
        self.noted.append(PastEmission(stream, self._kept(stream, values), task))

    def packed(self) -> bytes:
        """Return what was noted; raises BadValuesError for a value that does not fit its stream:
        found later, it would be remembered.
        """
        try:
            for stream, values, _ in self.noted:
                self._streams[stream].schema.check(values)
        except SchemaError as error:
            raise BadValuesError(f"stream {stream!r}: {error}") from error
        try:
            return pack_emissions(self.noted)
        except TypeError:
            plain = [
                PastEmission(stream, _plain(self._streams[stream].schema, values), task)
                for stream, values, task in self.noted
            ]
            return pack_emissions(plain)

    def _kept(self, stream: str, values: Sequence[Any]) -> Sequence[Any]:
        output_stream = self._streams[stream]
        return output_stream.keep(values) if output_stream.mutable else tuple(values)


class OnceStep:
    """``Once`` of one step of one bolt task. One thread only."""

    def __init__(self, bolt: StatefulBolt, state: KeyValueState, record: Record) -> None:
        """Look for the tuples of the step; raises as ``StateTurn.recall`` does."""
        self._counts: Counter[str] = Counter()
        self._state = state
        self._record = record
        state.retention_s = max(1, int(bolt.once_retention.total_seconds()))
        keys = dict.fromkeys(tup.lanes[:KEY_BYTES] for tup in record.fresh if tup.lanes)
        self._known = state.recall(list(keys)) if keys else {}
        self._oldest = time.time() - state.retention_s
        self._collector = NotingRecorder(record)

    @property
    def counts(self) -> Counter[str]:
        return self._counts

    def collector(self) -> NotingRecorder:
        return self._collector

    def guarded(self, execute: Callable[..., None]) -> Callable[..., None]:
        def apply(tup: Tuple, collector: NotingRecorder) -> None:
            """Execute, and remember it: if one of the two raises, neither has taken place."""
            collector.noted = []
            execute(tup, collector)
            lanes = tup.lanes
            if lanes is not None:
                content, _ = said_by(lanes)
                record = content.to_bytes(_CONTENT_BYTES) + collector.packed()
                self._state.marks[lanes[:KEY_BYTES]] = record
                self._known[lanes[:KEY_BYTES]] = record

        applying = self._state.guarded(apply)

        def once(tup: Tuple, collector: NotingRecorder) -> None:
            lanes = tup.lanes
            if lanes is None:
                self._counts[ONCE_UNKEYED] += not tup.is_tick
            else:
                content, since = said_by(lanes)
                known = self._known.get(lanes[:KEY_BYTES])
                if known is not None:
                    self._repeat(content, collector, known)
                    return
                if 0 < since < self._oldest:
                    self._doubt()
            applying(tup, collector)

        return once

    def _repeat(self, content: int, collector: NotingRecorder, record: bytes) -> None:
        """Emit what the tuple emitted when it was applied."""
        then = int.from_bytes(record[:_CONTENT_BYTES])
        if content and then and content != then:
            raise OtherMessageError(
                "another message with the same identity, which says something else, was processed "
                "before: give each message an identity of its own"
            )
        self._counts[ONCE_REPEATED] += 1
        for stream, values, task in unpack_emissions(record[_CONTENT_BYTES:]):
            if task is None:
                collector.emit(values, stream)
            else:
                collector.emit_direct(task, values, stream)

    def _doubt(self) -> None:
        if not self._counts[ONCE_UNSURE]:
            self._record.report(
                "a message that is older than what is remembered (once_retention = "
                f"{self._state.retention_s} s) was processed: it may have been processed before"
            )
        self._counts[ONCE_UNSURE] += 1


def _plain(schema: Schema, values: Sequence[Any]) -> list[Any]:
    """Return the values as the stream has them: numpy's and others' become Python's."""
    [row] = schema.batch([values]).to_pylist()
    return list(row.values())
