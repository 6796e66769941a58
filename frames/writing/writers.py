"""The sink, as Spark calls it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

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
from tiercel.frames.writing.sending import send

# Spark's names for what a task knows of its stream.
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
