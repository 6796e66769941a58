"""The sink of the format "rabbitmq": rows become messages, each confirmed."""

from __future__ import annotations

import logging
import secrets
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import chain, islice
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
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
from tiercel.queues.errors import BadPropertyError, QueuesError
from tiercel.queues.message.properties import PROPERTIES, published_headers
from tiercel.queues.message.writing import WRITTEN, OutgoingMessage, write_properties
from tiercel.queues.nouns import with_article
from tiercel.queues.publishing.copies import Death, dead_letter_properties
from tiercel.queues.publishing.publisher import Publisher
from tiercel.queues.values.formats import plain_body

_EXCHANGE = "exchange"
_ROUTING_KEY = "routing_key"
_MESSAGE_ID = "message_id"
_HEADERS = "headers"
_TARGET = (_EXCHANGE, _ROUTING_KEY)
_TEXT = (StringType, VarcharType, CharType, NullType)
# Types of columns, and their names in errors; other properties are checked row by row. A numeric
# routing key would break the connection each time; a returned message with a key of bytes would not
# match any sent message, and count as accepted. Headers in the form of Kafka's sink, an array of
# keys and values, would become one header named by the first field.
_TYPES: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    BODY: ((*_TEXT, BinaryType), "a string or binary"),
    _EXCHANGE: (_TEXT, "a string"),
    _ROUTING_KEY: (_TEXT, "a string"),
    _HEADERS: ((MapType, StructType, NullType), "a map, such as map_from_entries makes of pairs"),
}
# Columns of the source about the arrival of a message: the sink ignores them, so that a query may
# write the rows it read.
_OF_ARRIVAL = ({*PROPERTIES} - {*WRITTEN} - {*_TARGET}) | {DELIVERY}


class RowsToMessages:
    """Converts rows to messages: a column ``body``, and columns named after properties."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        """Raise OptionError for an unknown column, and if messages have no destination."""
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
        """Yield one message per row, in order; ``identity`` returns the position of a row without
        an id, from which its id is made.

        Raises RowError.
        """
        row = 0
        for batch in batches:
            names = [name for name in batch.schema.names if name not in _OF_ARRIVAL]
            columns = {name: batch.column(name).to_pylist() for name in names}
            if _HEADERS in columns:
                type_ = batch.column(_HEADERS).type
                columns[_HEADERS] = [_with_dicts(each, type_) for each in columns[_HEADERS]]
            for at in range(batch.num_rows):
                yield self._message(columns, at, identity(row), row)
                row += 1

    def _message(
        self, columns: dict[str, list[Any]], at: int, name: str, row: int
    ) -> OutgoingMessage:
        values = {each: columns[each][at] for each in self._properties}
        exchange = columns[_EXCHANGE][at] if self._exchange is None else self._exchange
        routing_key = columns[_ROUTING_KEY][at] if self._routing_key is None else self._routing_key
        body = columns[BODY][at]
        if exchange is None or routing_key is None or body is None:
            raise RowError(
                f"row {row + 1} lacks its body, exchange or routing key: none of them may be null"
            )
        content = plain_body(body)
        if values.get(_MESSAGE_ID) is None:
            # After a shuffle a repeated task may have its rows in another order. A row at the
            # position of another row must not look like its repetition.
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


def _with_dicts(value: Any, type_: pa.DataType) -> Any:
    """Return a value with a dictionary for each map in it; Arrow gives a map as a list of pairs.

    From Arrow 20 on, ``to_pylist`` can do this itself.
    """
    if value is None or not pa.types.is_nested(type_):
        return value
    if pa.types.is_map(type_):
        return {key: _with_dicts(each, type_.item_type) for key, each in value}
    if pa.types.is_struct(type_):
        return {field.name: _with_dicts(value[field.name], field.type) for field in type_}
    return [_with_dicts(each, type_.value_type) for each in value]


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


log = logging.getLogger(__name__)

# Long enough for a restart of the broker: on one machine Spark does not repeat a failed task.
_PATIENCE = timedelta(seconds=60)
# See docs/decisions/threads-take-turns.md: while this thread converts rows, the sending thread
# would wait ten times as long for each of its turns.
_TURN_S = 0.0005
_AT_ONCE = 1_000
# Spark's names for the local properties of a stream's tasks.
_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"


class _RowWriter:
    """The part that the writers of a data frame and of a stream share."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        """Raises OptionError."""
        if overwrite:
            raise OptionError(
                'a queue cannot be overwritten: write with mode("append") or outputMode("append"), '
                "and in foreachBatch the rows of another output mode"
            )
        self._options = options
        self._rows = RowsToMessages(options, schema)
        # Name of this write, shared by its tasks.
        self._name = secrets.token_hex(8)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = TaskContext.get()
        if task is None:
            raise RuntimeError("rows are written in a Spark task")
        name = f"{self._name_in(task)}-{task.partitionId()}"
        send(self._options, self._rows.messages(iterator, lambda row: f"{name}-{row}"))
        return WriterCommitMessage()

    def _name_in(self, _task: TaskContext) -> str:
        return self._name


class RabbitMQWriter(_RowWriter, DataSourceArrowWriter):
    """Publishes the rows of a data frame, each confirmed by the broker before its task ends.

    A task that fails has published some of its rows, and publishes them again when it is repeated:
    each is published at least once, with the same ``message_id`` if it is at the same position.
    """


class RabbitMQStreamWriter(_RowWriter, DataSourceStreamArrowWriter):
    """Publishes the rows of each micro-batch, each confirmed before the batch is committed.

    A batch that is repeated after a crash publishes its rows again. Their ``message_id`` contains
    the query, the batch, the partition and the row's position and checksum, so that a consumer can
    recognise them.
    """

    def _name_in(self, task: TaskContext) -> str:
        return f"{task.getLocalProperty(_QUERY)}-{task.getLocalProperty(_BATCH)}"


def send(options: SinkOptions, messages: Iterable[OutgoingMessage]) -> int:
    """Publish messages; return their number when the broker has confirmed all of them.

    Messages that could not be routed go to the unroutable queue, with the reason, if there is one;
    otherwise they are an error. Raises the errors of ``Publisher.publish``.
    """
    rest = iter(messages)
    first = next(rest, None)
    if first is None:
        # A stream with an aggregate has two hundred partitions, most of them empty: do not connect
        # for those.
        return 0
    rows = chain([first], rest)
    with _short_turns(), Publisher(options.url, _PATIENCE) as publisher:
        if options.unroutable_queue is None:
            return publisher.publish_all(rows)
        return _send_or_put_aside(publisher, rows, options.unroutable_queue)


def _send_or_put_aside(publisher: Publisher, rows: Iterator[OutgoingMessage], aside: str) -> int:
    count = put_aside = 0
    reason = None
    refused: list[tuple[OutgoingMessage, QueuesError]] = []
    # In portions: refused messages stay in memory until the whole portion is confirmed.
    while sent := publisher.publish_all(
        islice(rows, _AT_ONCE), on_refused=lambda *each: refused.append(each)
    ):
        count += sent
        if refused and reason is None:
            reason = refused[0][1]
        # Without ``on_refused`` here: it is an error if the unroutable queue is missing too.
        put_aside += publisher.publish_all(
            _aside(aside, message, error) for message, error in refused
        )
        refused.clear()
    if put_aside:
        log.warning(
            "%d rows could not be routed and are in queue %s: %s",
            put_aside,
            aside,
            reason,
            extra={"event": "rows_put_aside", "queue": aside},
        )
    return count


@contextmanager
def _short_turns() -> Iterator[None]:
    """Give threads short turns, and restore the interval of Spark's process afterwards."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _TURN_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _aside(queue: str, message: OutgoingMessage, error: QueuesError) -> OutgoingMessage:
    published = published_headers(message.exchange, message.routing_key)
    target = message.exchange or message.routing_key
    death = Death(queue=target, reason=str(error), at=datetime.now(UTC))
    return OutgoingMessage(
        body=message.body,
        routing_key=queue,
        properties=dead_letter_properties(message.properties, death, published),
    )
