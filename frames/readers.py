"""Queues as Spark reads them: as a stream, and for a batch the messages that are there now.

Spark makes readers of a stream in three places: one that works, in a process of its own beside the
driver; one to plan the query, which ends at once; and copies of that in the tasks. So a reader
begins to work when it is first asked for an offset.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tiercel.frames.columns import MessageColumns, Slice, Source, cut, rows_of
from tiercel.frames.errors import FramesError
from tiercel.frames.options import SourceOptions
from tiercel.frames.session import BEGINNING, ReadingSession, ReadOffset
from tiercel.queues.broker.connection import connected
from tiercel.queues.broker.declare import WorkQueue, check_server, declare_work_queue
from tiercel.queues.consuming.intake import Delivery
from tiercel.queues.peek import FREE_NACK_SINCE, OpenQueue
from tiercel.queues.retry import BrokerLimit, delivered_before

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:

        class SupportsTriggerAvailableNow:
            """Not there before PySpark 4.2, where Spark makes one batch of such a query."""


_RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"


class RabbitMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a query's messages.

    A message stays in its queue, opened, until the batch that read it is committed: its results
    are in the sink, and the checkpoint says so. Then it is acked. When the query ends otherwise, or
    its driver dies, the broker has it again.

    Spark calls ``commit`` for a batch when it begins the next one, which while idle is never. It
    asks for the latest offset at each trigger, though, after it has noted the last batch in its
    checkpoint: being asked is the news of the commit. Between triggers that are far apart the
    listener in ``register`` reports it.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._columns = MessageColumns(options, schema)
        self._session: ReadingSession | None = None
        # The last offset that Spark was given, or gave.
        self._last = BEGINNING

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as all of these
        return BEGINNING.json()

    def latestOffset(  # noqa: N802 - without arguments before PySpark 4.2
        self, start: Mapping[str, Any] | None = None, limit: object = None
    ) -> dict[str, Any]:
        session = self._at_work()
        begin = ReadOffset.parse(start)
        if begin is None:
            session.planned_is_committed()
        else:
            self._last = begin
            session.committed(begin)
        session.resume(self._last)
        self._last = session.take(self._last, getattr(limit, "max_rows", None))
        return self._last.json()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        from pyspark.sql.streaming.datasource import (  # noqa: PLC0415 - not there before 4.2
            ReadMaxRows,
        )

        return ReadMaxRows(self._options.max_messages)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._at_work().end_with_what_is_there()

    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[InputPartition]:
        first, last = ReadOffset.parse(start) or BEGINNING, ReadOffset.parse(end) or BEGINNING
        if self._session is None or last.reader != self._session.id:
            # After a restart: Spark says how far the checkpoint reaches, or plans its last batch
            # once more.
            self._last = last
            return []
        return [Slice(rows) for rows in self._session.plan(first, last)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)  # noqa: S101 - Spark gives back what ``partitions`` gave
        return rows_of(partition)

    def commit(self, end: Mapping[str, Any]) -> None:
        offset = ReadOffset.parse(end)
        if self._session is not None and offset is not None:
            self._session.committed(offset)

    def stop(self) -> None:
        if self._session is not None:
            self._session.stop()

    def _at_work(self) -> ReadingSession:
        if self._session is None:
            self._session = ReadingSession(self._options, self._columns)
            if _is_sparks_runner():
                _end_on_sigterm(self._session.stop)
        return self._session


def _is_sparks_runner() -> bool:
    """Tell whether this is the process that Spark keeps for a reader, and its main thread."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return (
        getattr(spec, "name", "") == _RUNNER
        and threading.current_thread() is threading.main_thread()
    )


def _end_on_sigterm(stop: Callable[[], None]) -> None:
    """End the process in good order: Spark sends SIGTERM, mostly twice, and does not wait."""
    # The second signal may come while the handler is at work on the first: an Event would wait for
    # its own lock for ever. A SimpleQueue may be put into from there.
    signals: SimpleQueue[int] = SimpleQueue()

    def end() -> None:
        signals.get()
        stop()
        # Spark has closed the socket, to which its runner would write a traceback.
        os._exit(0)

    # In a thread: the main thread may be holding locks.
    threading.Thread(target=end, name="tiercel end", daemon=True).start()
    signal.signal(signal.SIGTERM, lambda number, _: signals.put(number))


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
