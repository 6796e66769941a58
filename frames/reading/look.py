"""A look at the messages that are there now, for a batch: all of them stay in their queues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tiercel.frames.columns import MessageColumns, Source
from tiercel.frames.errors import FramesError
from tiercel.frames.options import SourceOptions
from tiercel.frames.reading.slices import Slice, cut, rows_of
from tiercel.queues.broker.connection import connected
from tiercel.queues.broker.declare import WorkQueue, check_server, declare_work_queue
from tiercel.queues.consuming.intake import Delivery
from tiercel.queues.peek import FREE_NACK_SINCE, OpenQueue
from tiercel.queues.retry import BrokerLimit, delivered_before


class QueueLook(DataSourceReader):
    """Looks at the messages that are ready, without taking them.

    They are delivered, and given back when all are here: no other consumer gets them meanwhile,
    and nothing is lost if the process dies. Where RabbitMQ limits returns each look counts as one.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._columns = MessageColumns(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Raises QueuesError, and FramesError if there is more than may be held."""
        with connected(self._options.address, "tiercel data frame") as connection:
            return [
                Slice(rows)
                for queue in self._options.queues
                for rows in self._look(connection, queue)
            ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark asks for a partition of its own where there is none.
        return rows_of(partition) if isinstance(partition, Slice) else iter(())

    def _look(self, connection: Any, queue: str) -> list[bytes]:
        address = self._options.address
        work_queue = WorkQueue(name=queue, declare=False)
        limit = declare_work_queue(connection, address, work_queue).limit
        nack_counts = check_server(connection, address) < FREE_NACK_SINCE
        open_queue = OpenQueue(connection, queue, nack_counts=nack_counts)
        try:
            found = self._oldest(open_queue, limit)
        finally:
            open_queue.give_back(0)
        columned = self._columns.of(Source("", 0, queue), found)
        if columned.bad:
            raise FramesError(
                f"{len(columned.bad)} messages of queue {queue!r} do not fit the fields, the first "
                f"because {columned.bad[0][1]}; a look leaves them there: set "
                "columnNameOfCorruptRecord"
            )
        return cut(columned.rows, self._options.partitions)

    def _oldest(self, open_queue: OpenQueue, limit: BrokerLimit) -> list[Delivery]:
        """Return the ready messages, within the bounds."""
        most, most_bytes = self._options.max_messages, self._options.max_bytes
        found: list[Delivery] = []
        size = 0
        for method, properties, body in open_queue.shown(most, most_bytes):
            if open_queue.count > most and not self._options.is_bounded:
                there = f"{open_queue.count:,} messages"
                raise FramesError(_too_many(open_queue.name, there, f"{most:,}"))
            again = delivered_before(properties.headers, redelivered=method.redelivered)
            if limit.returns is not None and again is not None and again >= limit.returns - 1:
                raise FramesError(
                    f"a message of queue {open_queue.name!r} came back {again} times, and RabbitMQ "
                    "would dead-letter it after one more look; read it with readStream"
                )
            found.append(_delivery(method, properties, body, again))
            size += found[-1].size
        if size >= most_bytes and len(found) < open_queue.count and not self._options.is_bounded:
            raise FramesError(_too_many(open_queue.name, "more bytes", f"{most_bytes:,} bytes"))
        return found


def _delivery(method: Any, properties: Any, body: bytes, again: int | None) -> Delivery:
    return Delivery(
        0,
        method.delivery_tag,
        body,
        again,
        properties,
        exchange=method.exchange,
        routing_key=method.routing_key,
        redelivered=bool(method.redelivered),
    )


def _too_many(queue: str, there: str, bound: str) -> str:
    return (
        f"queue {queue!r} has {there}, and a look at it shows {bound} at most: set "
        "maxMessagesPerTrigger or maxBytesPerTrigger for the oldest of them, or read it with "
        "readStream and trigger(availableNow=True)"
    )
