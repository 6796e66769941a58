"""``StatefulBolt.once`` in a step: tuples that were already applied only repeat their emissions.

The emissions of an applied tuple are kept in a compact encoding. Each value contains its type, so
that a later version of the topology can read it. Supported are Python's plain types and the types
of stream columns; nothing is ever unpickled.

The encoding is a sequence of emissions. The head of an emission is a number: bit 0 is set if the
emission was direct, bit 1 if its stream is not the default one, the other bits are the number of
values. The task, the stream's name and the values follow. Numbers are zigzag varints. A value
begins with a byte for its type, which also contains small numbers and the lengths of short texts. A
negative number before an emission is the count of omitted emissions before it: the keys of tuples
downstream depend on an emission's position among all emissions of its tuple.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from tiercel.acker.ids import KEY_BYTES, NO_KEY, said_by
from tiercel.acker.metrics.contract import ONCE_REPEATED, ONCE_UNKEYED, ONCE_UNSURE
from tiercel.queues.errors import SchemaError
from tiercel.queues.nouns import with_article
from tiercel.queues.values.python_values import python_value
from tiercel.queues.values.schema import Schema
from tiercel.spark_jobs.bolts.collecting import BasicCollector
from tiercel.spark_jobs.bolts.stateful_bolt import StatefulBolt
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM
from tiercel.spark_jobs.bolts.tuples import Tuple
from tiercel.spark_jobs.emitting.record import BasicRecorder, Record
from tiercel.spark_jobs.errors import (
    NAME_IDENTITY,
    BadValuesError,
    OtherMessageError,
    check_result,
)
from tiercel.spark_jobs.state.key_value import KeyValueState

_NONE, _FALSE, _TRUE, _INT, _FLOAT, _TEXT, _BYTES, _LIST, _MAP, _DECIMAL = range(10)
_DATE, _MOMENT, _UTC_MOMENT = range(10, 13)
# From ``_SMALL`` on, the numbers 0 to 63; from ``_SHORT`` on, texts of 0 to 127 bytes.
_SMALL = 0x40
_SHORT = 0x80
# An emission with fewer values than this has a head of one byte.
_FEW = 16
_DIRECT = 1
_NAMED = 2
_DOUBLE = struct.Struct("<d")
_1970 = datetime(1970, 1, 1)  # noqa: DTZ001 - for datetimes without a time zone
_UTC_1970 = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


# The fields of a ``PastEmission`` as a plain tuple.
Noted = tuple[str, Sequence[Any], int | None, int]


class PastEmission(NamedTuple):
    """One emission of a tuple."""

    stream: str
    values: Sequence[Any]
    # Receiving task of a direct emission.
    task: int | None = None
    # Index among the emissions of the tuple.
    position: int = 0


def pack_emissions(emissions: Iterable[Noted]) -> bytes:
    """Encode emissions, in ascending order of position. Raises TypeError for a value of an unknown
    type.
    """
    out = bytearray()
    writers = _WRITERS
    following = 0
    for stream, values, task, position in emissions:
        if position != following:
            _put_number(out, following - position)
        following = position + 1
        if task is None and stream == DEFAULT_STREAM and len(values) < _FEW:
            out.append(len(values) << 3)
        else:
            _put_head(out, stream, len(values), task)
        for value in values:
            writers.get(type(value), _refuse)(out, value)
    return bytes(out)


def _put_head(out: bytearray, stream: str, width: int, task: int | None) -> None:
    named = stream != DEFAULT_STREAM
    _put_number(out, width << 2 | (_NAMED if named else 0) | (task is not None))
    if task is not None:
        _put_number(out, task)
    if named:
        _put_text(out, stream)


def unpack_emissions(packed: bytes) -> list[PastEmission]:
    """Decode emissions; raises ValueError for bytes that ``pack_emissions`` did not write."""
    reader = _Reader(packed)
    emissions = []
    position = 0
    try:
        while reader.at < len(packed):
            head = reader.number()
            if head < 0:
                position -= head
                head = reader.number()
            task = reader.number() if head & _DIRECT else None
            stream = reader.text() if head & _NAMED else DEFAULT_STREAM
            values = [reader.value() for _ in range(head >> 2)]
            emissions.append(PastEmission(stream, values, task, position))
            position += 1
    except (LookupError, struct.error, ArithmeticError, RecursionError, TypeError) as error:
        raise ValueError(f"not what a tuple emitted: {error!r}") from error
    return emissions


def _put_number(out: bytearray, number: int) -> None:
    left = number << 1 if number >= 0 else ~(number << 1)
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)


def _put_int(out: bytearray, value: int) -> None:
    if 0 <= value < _SHORT - _SMALL:
        out.append(_SMALL + value)
    else:
        out.append(_INT)
        _put_number(out, value)


def _put_text(out: bytearray, value: str) -> None:
    encoded = value.encode()
    if len(encoded) < _SHORT:
        out.append(_SHORT + len(encoded))
    else:
        out.append(_TEXT)
        _put_number(out, len(encoded))
    out += encoded


def _put_bytes(out: bytearray, value: bytes, kind: int = _BYTES) -> None:
    out.append(kind)
    _put_number(out, len(value))
    out += value


def _put_list(out: bytearray, value: Sequence[Any]) -> None:
    out.append(_LIST)
    _put_number(out, len(value))
    for one in value:
        _WRITERS.get(type(one), _refuse)(out, one)


def _put_map(out: bytearray, value: dict[Any, Any]) -> None:
    out.append(_MAP)
    _put_number(out, len(value))
    for pair in value.items():
        for one in pair:
            _WRITERS.get(type(one), _refuse)(out, one)


def _put_moment(out: bytearray, value: datetime) -> None:
    if value.tzinfo is None:
        out.append(_MOMENT)
        _put_number(out, (value - _1970) // _MICROSECOND)
    else:
        out.append(_UTC_MOMENT)
        _put_number(out, (value - _UTC_1970) // _MICROSECOND)


def _put_date(out: bytearray, value: date) -> None:
    out.append(_DATE)
    _put_number(out, value.toordinal())


def _put_float(out: bytearray, value: float) -> None:
    out.append(_FLOAT)
    out += _DOUBLE.pack(value)


def _refuse(_out: bytearray, value: Any) -> None:
    raise TypeError(f"{with_article(type(value).__name__)} cannot be kept")


_WRITERS: dict[type, Callable[[bytearray, Any], None]] = {
    type(None): lambda out, _: out.append(_NONE),
    bool: lambda out, value: out.append(_TRUE if value else _FALSE),
    int: _put_int,
    float: _put_float,
    str: _put_text,
    bytes: _put_bytes,
    list: _put_list,
    tuple: _put_list,
    dict: _put_map,
    Decimal: lambda out, value: _put_bytes(out, str(value).encode(), _DECIMAL),
    date: _put_date,
    datetime: _put_moment,
}


class _Reader:
    """Reads encoded values in sequence."""

    def __init__(self, packed: bytes) -> None:
        self._packed = packed
        self.at = 0

    def number(self) -> int:
        found = shift = 0
        while True:
            byte = self._packed[self.at]
            self.at += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found >> 1 ^ -(found & 1)
            shift += 7

    def value(self) -> Any:
        kind = self._packed[self.at]
        self.at += 1
        if kind >= _SHORT:
            return self._bytes(kind - _SHORT).decode()
        if kind >= _SMALL:
            return kind - _SMALL
        return _READERS[kind](self)

    def text(self) -> str:
        found = self.value()
        if not isinstance(found, str):
            raise TypeError(f"{with_article(type(found).__name__)} in the place of a text")
        return found

    def raw(self) -> bytes:
        return self._bytes(self.number())

    def values(self) -> list[Any]:
        return [self.value() for _ in range(self.number())]

    def pairs(self) -> dict[Any, Any]:
        return {self.value(): self.value() for _ in range(self.number())}

    def double(self) -> float:
        found: float = _DOUBLE.unpack(self._bytes(_DOUBLE.size))[0]
        return found

    def _bytes(self, count: int) -> bytes:
        found = self._packed[self.at : self.at + count]
        self.at += count
        if count < 0 or len(found) < count:
            raise IndexError("it ends too early")
        return found


_READERS: dict[int, Callable[[_Reader], Any]] = {
    _NONE: lambda _: None,
    _FALSE: lambda _: False,
    _TRUE: lambda _: True,
    _INT: _Reader.number,
    _FLOAT: _Reader.double,
    _TEXT: lambda reader: reader.raw().decode(),
    _BYTES: _Reader.raw,
    _LIST: _Reader.values,
    _MAP: _Reader.pairs,
    _DECIMAL: lambda reader: Decimal(reader.raw().decode()),
    _DATE: lambda reader: date.fromordinal(reader.number()),
    _MOMENT: lambda reader: _1970 + reader.number() * _MICROSECOND,
    _UTC_MOMENT: lambda reader: _UTC_1970 + reader.number() * _MICROSECOND,
}


# A record begins with the digest of the message body; the emissions follow.
_CONTENT_BYTES = 16
# Parts of a tuple's lanes, see ``acker.ids.said_by``.
_SINCE = slice(KEY_BYTES, KEY_BYTES + 4)
_CONTENT = slice(KEY_BYTES + 8, KEY_BYTES + 8 + _CONTENT_BYTES)
_AS_OLD_AS_ITS_DELIVERY = bytes(4)
UNKEYED = (
    "a message without an identity was applied, and will be applied again if it is delivered "
    f"again: {NAME_IDENTITY}"
)
OTHER_MESSAGE = (
    "a message with the same identity but a different body was already processed: give each "
    "message its own identity"
)
_LONG = 1 << 63
# Column types with a single Python type, whose values need no check except the size of integers.
_PLAIN = {
    pa.string(): str,
    pa.binary(): bytes,
    pa.bool_(): bool,
    pa.int64(): int,
    pa.float64(): float,
}


class NotingRecorder(BasicRecorder, BasicCollector):
    """Notes the emissions of the tuple in ``execute`` on streams that have receivers."""

    def __init__(self, record: Record) -> None:
        super().__init__(record)
        # Plain tuples instead of ``PastEmission``, for speed: there are many.
        self.noted: list[Noted] = []
        self._received = received_streams(record)
        # Per stream, the Python types whose values fit their column, apart from the size of
        # integers, and the positions of the integers.
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
        """Return the noted emissions, encoded. Raises BadValuesError for a value that does not fit
        its stream: if it were found later, the emission would already be remembered.
        """
        noted = self.noted
        if not noted:
            return b""
        if self._fits(noted):
            try:
                return pack_emissions(noted)
            except UnicodeEncodeError:
                pass  # the check below names the value
        try:
            for stream, values, *_ in noted:
                self._streams[stream].schema.check(values)
        except SchemaError as error:
            raise BadValuesError(f"stream {stream!r}: {error}") from error
        return packed_as_plain(self._record, noted)

    def _fits(self, noted: list[Noted]) -> bool:
        """Return True if all values certainly fit. A plain loop is fastest for one emission."""
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
        # ``current`` is set here: ``emit`` raises without it.
        emitted = self.current.emitted if self.current else 0
        self.noted.append((stream, kept, task, emitted - 1))


class OnceStep:
    """``Once`` of one step of one bolt task. One thread only."""

    def __init__(self, bolt: StatefulBolt, state: KeyValueState, record: Record) -> None:
        """Look up the step's tuples among the applied ones; raises like ``StateTurn.recall``."""
        self._counts: Counter[str] = Counter()
        self._state = state
        self._record = record
        self._retention_s = int(bolt.once_retention.total_seconds())
        keys = dict.fromkeys([tup.lanes[:KEY_BYTES] for tup in record.fresh if tup.lanes])
        self._known = state.recall(list(keys)) if keys else {}
        self._oldest = time.time() - self._retention_s
        # Times, as in the lanes, of messages that are not older than the remembered keys.
        self._young = {_AS_OLD_AS_ITS_DELIVERY}
        # If no stream has a receiver, no emissions need to be noted.
        self._noting = NotingRecorder(record) if received_streams(record) else None

    @property
    def counts(self) -> Counter[str]:
        return self._counts

    def collector(self, record: Record) -> BasicRecorder:
        return self._noting or BasicRecorder(record)

    def guarded(self, execute: Callable[..., object]) -> Callable[..., None]:
        marks = self._state.marks
        known = self._known
        noting = self._noting
        young = self._young

        def once(tup: Tuple, collector: BasicRecorder) -> None:
            """Execute the tuple and mark it as applied; if either raises, both are undone."""
            lanes = tup.lanes
            key = b"" if lanes is None else lanes[:KEY_BYTES]
            if key in known:
                self._repeat(tup, collector)
                return
            if lanes is None or lanes[_SINCE] not in young:
                self._look_at(tup)
            if noting is not None:
                noting.noted.clear()
            if (result := execute(tup, collector)) is not None:
                check_result(result, execute)
            if lanes is not None:
                emitted = b"" if noting is None else noting.packed()
                marks[key] = known[key] = lanes[_CONTENT] + emitted

        return self._state.guarded(once)

    def _repeat(self, tup: Tuple, collector: BasicRecorder) -> None:
        """Repeat the emissions that the tuple had when it was applied."""
        lanes = tup.lanes or NO_KEY
        record = self._known[lanes[:KEY_BYTES]]
        if said_by(lanes).contradicts(int.from_bytes(record[:_CONTENT_BYTES], "little")):
            raise OtherMessageError(OTHER_MESSAGE)
        self._counts[ONCE_REPEATED] += 1
        for stream, values, task, position in unpack_emissions(record[_CONTENT_BYTES:]):
            # Restore the position: emissions without receivers are not kept, but were counted.
            tup.emitted = position
            if task is None:
                collector.emit(values, stream)
            else:
                collector.emit_direct(there(self._record, stream, task), values, stream)

    def _look_at(self, tup: Tuple) -> None:
        """Count a tuple that has no key or is older than the remembered keys."""
        if tup.lanes is None:
            if not (tup.is_tick or self._counts[ONCE_UNKEYED]):
                self._record.report(UNKEYED)
            self._counts[ONCE_UNKEYED] += not tup.is_tick
        elif said_by(tup.lanes).since >= self._oldest:
            self._young.add(tup.lanes[_SINCE])
        else:
            if not self._counts[ONCE_UNSURE]:
                self._record.report(
                    "a message older than the remembered keys (once_retention = "
                    f"{self._retention_s} s) was processed: it may have been processed before"
                )
            self._counts[ONCE_UNSURE] += 1


def received_streams(record: Record) -> frozenset[str]:
    """Return the streams that have receivers: only their emissions need to be repeated."""
    streams = record.outputs.streams.items()
    return frozenset(name for name, one in streams if one.subscribers or one.direct)


def there(record: Record, stream: str, task: int) -> int:
    """Return the task of a direct emission, or another one if a rebalance removed that task."""
    output_stream = record.outputs.streams.get(stream)
    receivers = list(output_stream.direct or ()) if output_stream else []
    if not receivers or task in receivers:
        return task
    return receivers[task % len(receivers)]


def packed_as_plain(record: Record, noted: Sequence[Noted]) -> bytes:
    """Encode emissions whose values fit their streams, as plain Python types if need be."""
    try:
        return pack_emissions(noted)
    except TypeError:
        streams = record.outputs.streams
        plain = [
            (stream, _plain(streams[stream].schema, values), task, position)
            for stream, values, task, position in noted
        ]
        return pack_emissions(plain)


def _types_of(schema: Schema) -> tuple[list[type | None], list[int]]:
    types = [_PLAIN.get(column.arrow) for column in schema.fields]
    return types, [at for at, one in enumerate(types) if one is int]


def _plain(schema: Schema, values: Sequence[Any]) -> list[Any]:
    """Return the values converted to the stream's plain Python types, from numpy's for example."""
    return [python_value(column, 0) for column in schema.batch([values]).columns]
