"""Messages as columns, and their rows on the way to a task.

Spark does not tell a Python data source which columns a query needs. The user's schema does: only
its columns are built and sent.

Rows travel in Arrow's stream format inside Spark's input partitions, through the driver's JVM,
which sends them with the tasks. A repeated task, or a batch that is read twice, gets the same
messages, and executors need no connection to the reader.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from tiercel.frames.errors import OptionError
from tiercel.frames.options import SourceOptions
from tiercel.queues.consuming.messages import Delivery
from tiercel.queues.errors import BadBodyError, BadPropertyError, SchemaError
from tiercel.queues.message.properties import PROPERTIES
from tiercel.queues.nouns import with_article
from tiercel.queues.values.formats import Decoder, decoder_for
from tiercel.queues.values.schema import Field, Schema

# Spark refuses tasks of more than 128 MiB, and is faster with much smaller tasks.
_SLICE_BYTES = 4 * 1024 * 1024
BODY = "body"
# The column with the name of a message, for ``fail_messages``.
DELIVERY = "delivery"


@dataclass(frozen=True, slots=True)
class Source:
    """One consumer of one reader, as the source of messages."""

    reader: str
    place: int
    queue: str


@dataclass(frozen=True, slots=True)
class Columned:
    """Messages as rows, and messages that do not fit the columns."""

    rows: pa.RecordBatch
    deliveries: list[Delivery]
    # Messages whose bodies do not fit the fields, each with the reason.
    bad: list[tuple[Delivery, str]]


def available(options: SourceOptions) -> Schema:
    """Return the columns that can be read; a query reads all of them by default.

    A field takes the place of a property of the same name, and of ``delivery``. Raises OptionError.
    """
    try:
        fields = Schema.parse(options.fields or f"{BODY} binary").fields
        if options.fields is not None:
            decoder_for(Schema(fields), options.body_format)
        # Spark SQL ignores the case of names.
        taken = {field.name.lower() for field in fields}
        offered = {name: PROPERTIES[name].type for name in PROPERTIES} | {DELIVERY: "string"}
        added = [f"{name} {type_}" for name, type_ in offered.items() if name not in taken]
        corrupt = options.corrupt_column
        if corrupt is not None:
            if corrupt.lower() in taken | {*offered}:
                raise OptionError(
                    f"columnNameOfCorruptRecord is a column of its own: {corrupt[:50]!r} is there"
                )
            added.append(f"`{corrupt}` binary")
        more = Schema.parse(", ".join(added)).fields if added else ()
        return Schema((*fields, *more))
    except SchemaError as error:
        raise OptionError(f"fields: {error}") from error


def struct(schema: Schema) -> StructType:
    """Return the columns as Spark's type."""
    return StructType([StructField(field.name, _type(field)) for field in schema.fields])


class MessageColumns:
    """Converts messages to rows of the requested columns, in this order."""

    def __init__(self, options: SourceOptions, asked: StructType) -> None:
        """Raise OptionError if ``asked`` has an unknown column."""
        there = available(options)
        self._schema = Schema(tuple(_choose(there, field) for field in asked.fields))
        fields = Schema.parse(options.fields) if options.fields is not None else None
        self._fields = {} if fields is None else {n: i for i, n in enumerate(fields.names)}
        self._decode: Decoder | None = (
            None if fields is None else decoder_for(fields, options.body_format)
        )
        self._corrupt_column = options.corrupt_column

    @property
    def arrow(self) -> pa.Schema:
        """The columns as an Arrow schema."""
        return self._schema.arrow

    def of(self, source: Source, deliveries: list[Delivery]) -> Columned:
        """Return the messages of one consumer as rows."""
        if self._decode is None:
            return Columned(self._rows(source, deliveries, [], []), deliveries, [])
        decoded: list[Sequence[Any]] = []
        good: list[Delivery] = []
        corrupt: list[bytes | None] = []
        bad: list[tuple[Delivery, str]] = []
        nulls = [None] * len(self._fields)
        for delivery in deliveries:
            body: bytes | None = None
            try:
                values: Sequence[Any] = self._decode(delivery.body)
            except BadBodyError as error:
                if self._corrupt_column is None:
                    bad.append((delivery, str(error)))
                    continue
                values = nulls
                body = delivery.body
            decoded.append(values)
            corrupt.append(body)
            good.append(delivery)
        return Columned(self._rows(source, good, decoded, corrupt), good, bad)

    def _rows(
        self,
        source: Source,
        deliveries: list[Delivery],
        decoded: list[Sequence[Any]],
        corrupt: list[bytes | None],
    ) -> pa.RecordBatch:
        arrays = []
        for field in self._schema.fields:
            place = self._fields.get(field.name)
            if place is not None:
                arrays.append(field.array([values[place] for values in decoded]))
            elif field.name == self._corrupt_column:
                arrays.append(pa.array(corrupt, field.arrow))
            else:
                arrays.append(pa.array(_column(field.name, source, deliveries), field.arrow))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema.arrow)


def delivery_name(source: Source, delivery: Delivery) -> str:
    """Return the name of a message, by which it can be failed."""
    return f"{source.reader}.{source.place}.{delivery.epoch}.{delivery.tag}"


def _column(name: str, source: Source, deliveries: list[Delivery]) -> list[Any]:
    if name == BODY:
        return [delivery.body for delivery in deliveries]
    if name == DELIVERY:
        return [delivery_name(source, delivery) for delivery in deliveries]
    read = PROPERTIES[name].read
    queue = source.queue
    try:
        return [read(delivery, queue) for delivery in deliveries]
    except BadPropertyError:
        return [_read_or_none(name, delivery, queue) for delivery in deliveries]


def _read_or_none(name: str, delivery: Delivery, queue: str) -> Any:
    """Read a property, or return None if it is invalid: by default all properties are read, and a
    bad one that the query may not need must not cost the message.
    """
    try:
        return PROPERTIES[name].read(delivery, queue)
    except BadPropertyError:
        return None


def _choose(there: Schema, asked: StructField) -> Field:
    for field in there.fields:
        if field.name == asked.name:
            mine = _type(field).simpleString()
            wanted = asked.dataType.simpleString()
            if mine != wanted:
                raise OptionError(
                    f"the column {asked.name!r} is {with_article(mine)} here, "
                    f"not {with_article(wanted)}"
                )
            return field
    raise OptionError(
        f"there is no column {asked.name[:50]!r} in rabbitmq; the columns are "
        f'{", ".join(there.names)}; columns of the body need option("fields", …)'
    )


def _type(field: Field) -> Any:
    return from_arrow_type(field.arrow, prefer_timestamp_ntz=True)


class Slice(InputPartition):
    """Some rows of a batch."""

    def __init__(self, rows: bytes) -> None:
        super().__init__(rows)

    def __repr__(self) -> str:
        return f"Slice({len(self.value)} bytes)"


def cut(rows: pa.RecordBatch, pieces: int) -> list[bytes]:
    """Return the rows in about this many pieces, or in more if the pieces would be large."""
    if not rows.num_rows:
        return []
    pieces = max(pieces, math.ceil(rows.nbytes / _SLICE_BYTES))
    step = math.ceil(rows.num_rows / pieces)
    return [
        _written(piece)
        for at in range(0, rows.num_rows, step)
        for piece in _halved(rows.slice(at, step))
    ]


def _halved(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the rows in pieces that are not much too large: large bodies may be adjacent among many
    small ones.
    """
    if rows.num_rows == 1 or rows.nbytes <= 2 * _SLICE_BYTES:
        yield rows
        return
    middle = rows.num_rows // 2
    yield from _halved(rows.slice(0, middle))
    yield from _halved(rows.slice(middle))


def rows_of(piece: Slice) -> Iterator[pa.RecordBatch]:
    """Return the rows of a slice, in a task."""
    with pa.ipc.open_stream(pa.py_buffer(piece.value)) as reader:
        yield from reader


def _written(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())
