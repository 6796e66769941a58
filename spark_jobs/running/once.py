"""A step's side of ``StatefulBolt.once``: what becomes of tuples that were applied before."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from tiercel.acker.ids import KEY_BYTES, NO_KEY, said_by
from tiercel.queues.errors import SchemaError
from tiercel.queues.values.schema import Schema
from tiercel.spark_jobs.bolts.collecting import BasicCollector
from tiercel.spark_jobs.bolts.stateful_bolt import StatefulBolt
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM
from tiercel.spark_jobs.bolts.tuples import Tuple
from tiercel.spark_jobs.emitting.collectors import BasicRecorder
from tiercel.spark_jobs.emitting.record import Record
from tiercel.spark_jobs.errors import BadValuesError, OtherMessageError
from tiercel.spark_jobs.running.counts import ONCE_REPEATED, ONCE_UNKEYED, ONCE_UNSURE
from tiercel.spark_jobs.running.emissions import Noted, pack_emissions, unpack_emissions
from tiercel.spark_jobs.state.key_value import KeyValueState

# Of a record: the digest of the body. The emissions follow.
_CONTENT_BYTES = 16
# Of a tuple's lanes: see ``acker.ids.said_by``.
_SINCE = slice(KEY_BYTES, KEY_BYTES + 4)
_CONTENT = slice(KEY_BYTES + 8, KEY_BYTES + 8 + _CONTENT_BYTES)
_AS_OLD_AS_ITS_DELIVERY = bytes(4)
_LONG = 1 << 63
# Types of columns whose values have one type in Python, and need no look but at their size.
_PLAIN = {
    pa.string(): str,
    pa.binary(): bytes,
    pa.bool_(): bool,
    pa.int64(): int,
    pa.float64(): float,
}


class NotingRecorder(BasicRecorder, BasicCollector):
    """Notes what the tuple in ``execute`` emits on streams that a bolt receives."""

    def __init__(self, record: Record) -> None:
        super().__init__(record)
        # As a ``PastEmission``, and plain: there are many.
        self.noted: list[Noted] = []
        self._received = _received_streams(record)
        # Of each stream, the types of values that leave no doubt but for the size of whole numbers,
        # and where these are.
        self._types = {name: _types_of(one.schema) for name, one in self._streams.items()}

    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> list[int]:
        tasks = super().emit(values, stream)
        if stream in self._received:
            self._note(stream, values, None)
        return tasks

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        super().emit_direct(task, values, stream)
        self._note(stream, values, task)

    def packed(self) -> bytes:
        """Return the noted emissions; raises BadValuesError for a value that does not fit its
        stream: found later, it would be remembered.
        """
        noted = self.noted
        if not noted:
            return b""
        if self._fits(noted):
            try:
                return pack_emissions(noted)
            except UnicodeEncodeError:
                pass  # the look at each value says which one
        try:
            for stream, values, *_ in noted:
                self._streams[stream].schema.check(values)
        except SchemaError as error:
            raise BadValuesError(f"stream {stream!r}: {error}") from error
        try:
            return pack_emissions(noted)
        except TypeError:
            plain = [
                (stream, _plain(self._streams[stream].schema, values), task, position)
                for stream, values, task, position in noted
            ]
            return pack_emissions(plain)

    def _fits(self, noted: list[Noted]) -> bool:
        """Return True if all fit without a doubt. No comprehension: most often there is one."""
        for stream, values, *_ in noted:
            types, whole = self._types[stream]
            if types != list(map(type, values)):
                return False
            for at in whole:
                if not -_LONG <= values[at] < _LONG:
                    return False
        return True

    def _note(self, stream: str, values: Sequence[Any], task: int | None) -> None:
        output_stream = self._streams[stream]
        kept = output_stream.keep(values) if output_stream.mutable else tuple(values)
        # The one that emits: without it there was an error.
        emitted = self.current.emitted if self.current else 0
        self.noted.append((stream, kept, task, emitted - 1))


class OnceStep:
    """``Once`` of one step of one bolt task. One thread only."""

    def __init__(self, bolt: StatefulBolt, state: KeyValueState, record: Record) -> None:
        """Look for the tuples of the step; raises as ``StateTurn.recall`` does."""
        self._counts: Counter[str] = Counter()
        self._state = state
        self._record = record
        self._retention_s = int(bolt.once_retention.total_seconds())
        keys = dict.fromkeys([tup.lanes[:KEY_BYTES] for tup in record.fresh if tup.lanes])
        self._known = state.recall(list(keys)) if keys else {}
        self._oldest = time.time() - self._retention_s
        # Where no bolt receives anything, there is nothing to emit again.
        self._noting = NotingRecorder(record) if _received_streams(record) else None

    @property
    def counts(self) -> Counter[str]:
        return self._counts

    def collector(self, record: Record) -> BasicRecorder:
        return self._noting or BasicRecorder(record)

    def guarded(self, execute: Callable[..., None]) -> Callable[..., None]:
        marks = self._state.marks
        known = self._known
        noting = self._noting

        def apply(tup: Tuple, collector: BasicRecorder) -> None:
            """Execute, and remember it: if one of the two raises, neither has taken place."""
            if noting is not None:
                noting.noted.clear()
            execute(tup, collector)
            lanes = tup.lanes
            if lanes is not None:
                emitted = b"" if noting is None else noting.packed()
                # The digest of the body, as it stands in the lanes.
                key = lanes[:KEY_BYTES]
                marks[key] = known[key] = lanes[_CONTENT] + emitted

        guarded = self._state.guarded(apply)

        def once(tup: Tuple, collector: BasicRecorder) -> None:
            lanes = tup.lanes
            if lanes is not None and lanes[:KEY_BYTES] in known:
                self._repeat(tup, collector)
                return
            if lanes is None or lanes[_SINCE] != _AS_OLD_AS_ITS_DELIVERY:
                self._look_at(tup)
            guarded(tup, collector)

        return once

    def _repeat(self, tup: Tuple, collector: BasicRecorder) -> None:
        """Emit what the tuple emitted when it was applied."""
        lanes = tup.lanes or NO_KEY
        record = self._known[lanes[:KEY_BYTES]]
        if said_by(lanes).contradicts(int.from_bytes(record[:_CONTENT_BYTES], "little")):
            raise OtherMessageError(
                "another message with the same identity, which says something else, was processed "
                "before: give each message an identity of its own"
            )
        self._counts[ONCE_REPEATED] += 1
        for stream, values, task, position in unpack_emissions(record[_CONTENT_BYTES:]):
            # As it was then: what no bolt receives is not kept, and was counted.
            tup.emitted = position
            if task is None:
                collector.emit(values, stream)
            else:
                collector.emit_direct(self._there(stream, task), values, stream)

    def _there(self, stream: str, task: int) -> int:
        """Return a task that was emitted to directly or, if a rebalance took it, another one."""
        output_stream = self._record.outputs.streams.get(stream)
        receivers = list(output_stream.direct or ()) if output_stream else []
        if not receivers or task in receivers:
            return task
        return receivers[task % len(receivers)]

    def _look_at(self, tup: Tuple) -> None:
        """Count a tuple that may have been applied before."""
        if tup.lanes is None:
            self._counts[ONCE_UNKEYED] += not tup.is_tick
        elif said_by(tup.lanes).since < self._oldest:
            if not self._counts[ONCE_UNSURE]:
                self._record.report(
                    "a message that is older than what is remembered (once_retention = "
                    f"{self._retention_s} s) was processed: it may have been processed before"
                )
            self._counts[ONCE_UNSURE] += 1


def _received_streams(record: Record) -> frozenset[str]:
    """The streams that a bolt receives: only their emissions need to come again."""
    streams = record.outputs.streams.items()
    return frozenset(name for name, one in streams if one.subscribers or one.direct)


def _types_of(schema: Schema) -> tuple[list[type | None], list[int]]:
    types = [_PLAIN.get(column.arrow) for column in schema.fields]
    return types, [at for at, one in enumerate(types) if one is int]


def _plain(schema: Schema, values: Sequence[Any]) -> list[Any]:
    """Return the values as the stream has them: numpy's and others' become Python's."""
    [row] = schema.batch([values]).to_pylist()
    return list(row.values())
