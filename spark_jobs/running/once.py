"""A step's side of ``StatefulBolt.once``: what becomes of tuples that were applied before."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tiercel.acker.keys import said_of
from tiercel.queues.errors import SchemaError
from tiercel.queues.inbox.chunk import Lineage
from tiercel.queues.schema import Schema
from tiercel.spark_jobs.bolts.collecting import BasicCollector
from tiercel.spark_jobs.bolts.stateful_bolt import StatefulBolt
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM
from tiercel.spark_jobs.bolts.tuples import Tuple
from tiercel.spark_jobs.emitting.collectors import BasicRecorder
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.errors import BadValuesError, OtherMessageError
from tiercel.spark_jobs.state.emissions import Emitted, pack_emissions, unpack_emissions
from tiercel.spark_jobs.state.key_value import KeyValueState

# The counters: tuples that were applied before; that have no key; that were not found, and whose
# messages may be older than what is remembered.
REPEATED = "once_repeated"
UNKEYED = "once_unkeyed"
UNSURE = "once_unsure"
# Of a record: a digest of what the message says. What was emitted follows.
_CONTENT_BYTES = 4


class NotingRecorder(BasicRecorder, BasicCollector):
    """Notes what the tuple in ``execute`` emits."""

    def __init__(self, record: Record) -> None:
        super().__init__(record)
        self.noted: list[Emitted] = []

    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> list[int]:
        tasks = super().emit(values, stream)
        self.noted.append(Emitted(stream, self._kept(stream, values)))
        return tasks

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        super().emit_direct(task, values, stream)
        self.noted.append(Emitted(stream, self._kept(stream, values), task))

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
                Emitted(stream, _plain(self._streams[stream].schema, values), task)
                for stream, values, task in self.noted
            ]
            return pack_emissions(plain)

    def _kept(self, stream: str, values: Sequence[Any]) -> Sequence[Any]:
        output_stream = self._streams[stream]
        return output_stream.keep(values) if output_stream.mutable else tuple(values)


class OnceStep:
    """``Once`` of one step of one bolt task. One thread only."""

    def __init__(
        self, bolt: StatefulBolt, state: KeyValueState, record: Record, lineage: Lineage
    ) -> None:
        """Look for the tuples of the step; raises as ``StateTurn.recall`` does."""
        self.counts: Counter[str] = Counter()
        self._state = state
        self._record = record
        state.retention_s = max(1, int(bolt.once_retention.total_seconds()))
        keys = [] if lineage.keys is None else [tup.key for tup in record.fresh if tup.key]
        self._known = state.recall(list(dict.fromkeys(keys))) if keys else {}
        # Of each row; asked for where there are keys.
        self._content: list[int] = []
        self._since: list[int] = []
        if lineage.keys is not None:
            content, since = said_of(lineage.keys)
            self._content = content.tolist()
            self._since = since.tolist()
        self._oldest = time.time() - state.retention_s
        self._collector = NotingRecorder(record)

    def collector(self) -> NotingRecorder:
        return self._collector

    def guarded(self, execute: Callable[..., None]) -> Callable[..., None]:
        def apply(tup: Tuple, collector: NotingRecorder) -> None:
            """Execute, and remember it: if one of the two raises, neither has taken place."""
            collector.noted = []
            execute(tup, collector)
            key = tup.key
            if key is not None:
                content = self._content[tup.row].to_bytes(_CONTENT_BYTES)
                record = content + collector.packed()
                self._state.marks[key] = self._known[key] = record

        applying = self._state.guarded(apply)

        def once(tup: Tuple, collector: NotingRecorder) -> None:
            key = tup.key
            if key is None:
                self.counts[UNKEYED] += not tup.is_tick
            elif (known := self._known.get(key)) is not None:
                self._repeat(tup, collector, known)
                return
            elif 0 < self._since[tup.row] < self._oldest:
                self._doubt()
            applying(tup, collector)

        return once

    def _repeat(self, tup: Tuple, collector: NotingRecorder, record: bytes) -> None:
        """Emit what the tuple emitted when it was applied."""
        content = self._content[tup.row]
        then = int.from_bytes(record[:_CONTENT_BYTES])
        if content and then and content != then:
            raise OtherMessageError(
                "another message with the same identity, which says something else, was processed "
                "before: give each message an identity of its own"
            )
        self.counts[REPEATED] += 1
        for stream, values, task in unpack_emissions(record[_CONTENT_BYTES:]):
            if task is None:
                collector.emit(values, stream)
            else:
                collector.emit_direct(task, values, stream)

    def _doubt(self) -> None:
        if not self.counts[UNSURE]:
            self._record.report(
                "a message that is older than what is remembered (once_retention = "
                f"{self._state.retention_s} s) was processed: it may have been processed before"
            )
        self.counts[UNSURE] += 1


def _plain(schema: Schema, values: Sequence[Any]) -> list[Any]:
    """Return the values as the stream has them: numpy's and others' become Python's."""
    [row] = schema.batch([values]).to_pylist()
    return list(row.values())
