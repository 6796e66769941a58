"""The sink, as Spark calls it."""

from __future__ import annotations

import logging
import secrets
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import chain, islice

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tiercel.frames.errors import OptionError
from tiercel.frames.options import SinkOptions
from tiercel.frames.writing.rows import RowsToMessages
from tiercel.queues.errors import QueuesError
from tiercel.queues.message.properties import published_headers
from tiercel.queues.message.writing import OutgoingMessage
from tiercel.queues.publishing.copies import Death, dead_letter_properties
from tiercel.queues.publishing.publisher import Publisher

log = logging.getLogger(__name__)

# A broker that restarts is waited for: on one machine Spark does not repeat a task that failed.
_PATIENCE = timedelta(seconds=60)
# As docs/decisions/threads-take-turns.md has it: while this thread makes messages of rows, the one
# that sends them would wait ten times as long for each of its turns.
_TURN_S = 0.0005
_AT_ONCE = 1_000
# Spark's names for the properties that a task has of its stream.
_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"


class RabbitMQWriter(DataSourceArrowWriter):
    """Publishes the rows of a data frame, each confirmed by the broker before its task ends.

    A task that fails has published some of its rows, and publishes them again when it is repeated:
    each is published at least once, and with the same ``message_id`` if it is at the same place.
    """

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        """Raises OptionError."""
        _refuse(overwrite=overwrite)
        self._options = options
        self._rows = RowsToMessages(options, schema)
        # Of this write; its tasks share it.
        self._name = secrets.token_hex(8)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task()
        name = f"{self._name}-{task.partitionId()}"
        send(self._options, self._rows.messages(iterator, lambda row: f"{name}-{row}"))
        return WriterCommitMessage()


class RabbitMQStreamWriter(DataSourceStreamArrowWriter):
    """Publishes the rows of each micro-batch, each confirmed before the batch counts.

    A batch that is repeated after a crash publishes its rows again. Their ``message_id`` says the
    query, the batch, the partition and the row, with a checksum of it, so that a consumer can tell.
    """

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        """Raises OptionError."""
        _refuse(overwrite=overwrite)
        self._options = options
        self._rows = RowsToMessages(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task()
        query, batch = task.getLocalProperty(_QUERY), task.getLocalProperty(_BATCH)
        name = f"{query}-{batch}-{task.partitionId()}"
        send(self._options, self._rows.messages(iterator, lambda row: f"{name}-{row}"))
        return WriterCommitMessage()


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise RuntimeError("rows are written in a Spark task")
    return task


def _refuse(*, overwrite: bool) -> None:
    if overwrite:
        raise OptionError('a queue cannot be overwritten: write with mode("append"), or outputMode')


def send(options: SinkOptions, messages: Iterable[OutgoingMessage]) -> int:
    """Publish messages; returns their number when the broker has confirmed all of them.

    Messages that could not be routed go to the unroutable queue, with the reason, if there is
    one; else it is an error. Raises the errors of ``Publisher.publish``.
    """
    rest = iter(messages)
    first = next(rest, None)
    if first is None:
        # A stream with an aggregate has two hundred partitions, most of them empty: no connection
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
    # Some at a time: refused messages are in memory until all of these are confirmed.
    while sent := publisher.publish_all(
        islice(rows, _AT_ONCE), on_refused=lambda *each: refused.append(each)
    ):
        count += sent
        if refused and reason is None:
            reason = refused[0][1]
        # Without a way out of this one: it is an error if that queue is missing too.
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
    """Have threads take short turns, and leave the process to Spark as it was."""
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
