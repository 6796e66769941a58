"""A look at what is there now, for a batch: all messages stay in their queues."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tiercel.frames.columns import MessageColumns, Source
from tiercel.frames.errors import FramesError
from tiercel.frames.options import LARGEST_PREFETCH, SourceOptions
from tiercel.frames.reading.slices import Slice, cut, rows_of
from tiercel.queues.broker.connection import connected
from tiercel.queues.broker.declare import WorkQueue, check_server, declare_work_queue
from tiercel.queues.consuming.hand_out import Delivery
from tiercel.queues.retry import BrokerLimit, delivered_before

# What is ready comes without such a pause.
_QUIET_S = 0.5
_BACK_S = 2.0
# From here on a nack does not count as a return.
_FREE_NACK_SINCE = (4, 3)


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
        work_queue = WorkQueue(name=queue, declare=False)
        limit = declare_work_queue(connection, self._options.address, work_queue).limit
        channel = connection.channel()
        count = channel.queue_declare(queue, passive=True).method.message_count
        try:
            found = self._oldest(channel, queue, count, limit)
        finally:
            if check_server(connection, self._options.address) >= _FREE_NACK_SINCE:
                channel.basic_nack(0, multiple=True, requeue=True)
            channel.close()
            _wait_until_back(connection, queue, count)
        columned = self._columns.of(Source("", 0, queue), found)
        if columned.bad:
            raise FramesError(
                f"{len(columned.bad)} messages of queue {queue!r} do not fit the fields, the first "
                f"because {columned.bad[0][1]}; a look leaves them there: set "
                "columnNameOfCorruptRecord"
            )
        return cut(columned.rows, self._options.partitions)

    def _oldest(self, channel: Any, queue: str, count: int, limit: BrokerLimit) -> list[Delivery]:
        """Return what is ready, within the bounds."""
        most = min(self._options.max_messages, LARGEST_PREFETCH)
        if count > most and not self._options.is_bounded:
            raise FramesError(_too_many(queue, f"{count:,} messages", f"{most:,}"))
        wanted = min(count, most)
        found: list[Delivery] = []
        size = 0
        if not wanted:
            return found
        channel.basic_qos(prefetch_count=wanted)
        try:
            for method, properties, body in channel.consume(queue, inactivity_timeout=_QUIET_S):
                if method is None:
                    break  # other consumers took the rest
                again = delivered_before(properties.headers, redelivered=method.redelivered)
                if limit.returns is not None and again is not None and again >= limit.returns - 1:
                    raise FramesError(
                        f"a message of queue {queue!r} came back {again} times, and RabbitMQ would "
                        "dead-letter it after one more look; read it with readStream"
                    )
                size += len(body)
                if size > self._options.max_bytes and found:
                    if self._options.is_bounded:
                        break
                    bound = f"{self._options.max_bytes:,} bytes"
                    raise FramesError(_too_many(queue, "more bytes", bound))
                found.append(_delivery(method, properties, body, again))
                if len(found) == wanted:
                    break
        finally:
            # It gives back what came and was not looked at, which closing would do too late.
            channel.cancel()
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


def _wait_until_back(connection: Any, queue: str, count: int) -> None:
    """Wait a moment, so that the next look shows them too; another consumer may have them."""
    channel = connection.channel()
    until = time.monotonic() + _BACK_S
    while time.monotonic() < until:
        if channel.queue_declare(queue, passive=True).method.message_count >= count:
            return
        connection.sleep(0.02)
