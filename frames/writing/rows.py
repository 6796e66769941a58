"""From a row to a message."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    CharType,
    DataType,
    MapType,
    NullType,
    StringType,
    StructType,
    VarcharType,
)

from tiercel.frames.columns import BODY, DELIVERY
from tiercel.frames.errors import OptionError, RowError
from tiercel.frames.options import SinkOptions
from tiercel.queues.errors import BadPropertyError
from tiercel.queues.message.properties import PROPERTIES
from tiercel.queues.message.writing import WRITTEN, OutgoingMessage, write_properties
from tiercel.queues.nouns import with_article
from tiercel.queues.values.formats import plain_body

_EXCHANGE = "exchange"
_ROUTING_KEY = "routing_key"
_MESSAGE_ID = "message_id"
_HEADERS = "headers"
_TARGET = (_EXCHANGE, _ROUTING_KEY)
_TEXT = (StringType, VarcharType, CharType, NullType)
# Types of columns, and in words; other properties are checked row by row. A routing key that is a
# number breaks the connection, again and again; what comes back with one of bytes is not found
# among what was sent, and counts as taken. Headers as Kafka's sink has them, an array of keys and
# values, would become one header that is named by the first field.
_TYPES: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    BODY: ((*_TEXT, BinaryType), "a string or binary"),
    _EXCHANGE: (_TEXT, "a string"),
    _ROUTING_KEY: (_TEXT, "a string"),
    _HEADERS: ((MapType, StructType, NullType), "a map, such as map_from_entries makes of pairs"),
}
# Columns of the source that tell how a message arrived: the sink passes over them, so that a query
# may write what it read.
_OF_ARRIVAL = ({*PROPERTIES} - {*WRITTEN} - {*_TARGET}) | {DELIVERY}


class RowsToMessages:
    """Makes messages of rows: a column ``body``, and columns named as properties."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        """Raises OptionError for a column that a message does not have, and if it is not said
        where messages go.
        """
        names = schema.fieldNames()
        if BODY not in names:
            raise OptionError(f"rabbitmq writes a column {BODY!r}, a string or binary; add one")
        known = {BODY, *_TARGET, *WRITTEN, *_OF_ARRIVAL}
        for name in names:
            if name not in known:
                raise OptionError(
                    f"a message has no {name[:50]!r}: select {BODY}, and of its properties "
                    f"{', '.join([*_TARGET, *WRITTEN])}"
                )
        self._exchange = options.exchange
        self._routing_key = options.routing_key
        self._mandatory = options.mandatory
        for target, given in zip(_TARGET, (self._exchange, self._routing_key), strict=True):
            if given is None and target not in names:
                raise OptionError(
                    'rabbitmq needs to know where rows go: option("queue", …), or exchange and '
                    f"routing key as options or columns; there is no {target}"
                )
        _check_types(schema, options)
        self._properties = [name for name in names if name in WRITTEN]

    def messages(
        self, batches: Iterable[pa.RecordBatch], identity: Callable[[int], str]
    ) -> Iterator[OutgoingMessage]:
        """Return a message per row, in order; ``identity`` gives the place of a row that has no id,
        from which its id is made.

        Raises RowError.
        """
        row = 0
        for batch in batches:
            columns = {name: batch.column(name).to_pylist() for name in self._columns_of(batch)}
            for at in range(batch.num_rows):
                yield self._message(columns, at, identity(row), row)
                row += 1

    def _columns_of(self, batch: pa.RecordBatch) -> Sequence[str]:
        return [name for name in batch.schema.names if name not in _OF_ARRIVAL]

    def _message(
        self, columns: dict[str, list[Any]], at: int, name: str, row: int
    ) -> OutgoingMessage:
        values = {each: columns[each][at] for each in self._properties}
        headers = values.get(_HEADERS)
        if headers is not None:
            values[_HEADERS] = dict(headers)
        exchange = columns[_EXCHANGE][at] if self._exchange is None else self._exchange
        routing_key = columns[_ROUTING_KEY][at] if self._routing_key is None else self._routing_key
        body = columns[BODY][at]
        if exchange is None or routing_key is None or body is None:
            raise RowError(
                f"row {row + 1} has no body, no exchange or no routing key: null is none of these"
            )
        content = plain_body(body)
        if values.get(_MESSAGE_ID) is None:
            # After a shuffle a task that is repeated may have its rows in another order. A row that
            # is at the place of another one then must not pass for its repetition.
            rest = repr((exchange, routing_key, values)).encode(errors="replace")
            values[_MESSAGE_ID] = f"{name}-{zlib.crc32(rest, zlib.crc32(content)):08x}"
        try:
            properties = write_properties(values)
        except BadPropertyError as error:
            raise RowError(f"row {row + 1} cannot be a message: {error}") from error
        return OutgoingMessage(
            body=content,
            routing_key=routing_key,
            exchange=exchange,
            properties=properties,
            mandatory=self._mandatory,
        )


def _check_types(schema: StructType, options: SinkOptions) -> None:
    """Raise OptionError for a column whose type does not fit its name."""
    unused = {
        target
        for target, given in zip(_TARGET, (options.exchange, options.routing_key), strict=True)
        if given is not None
    }
    for field in schema.fields:
        types, words = _TYPES.get(field.name, ((DataType,), ""))
        if field.name not in unused and not isinstance(field.dataType, types):
            raise OptionError(
                f"the column {field.name!r} must be {words}, not "
                f"{with_article(field.dataType.simpleString())[:100]}"
            )
