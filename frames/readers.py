"""Queues as Spark reads them: as a stream, or in a batch of the messages that wait now.

Spark creates readers of a stream in three places: the working one, in a separate process next to
the driver; one to plan the query, which ends at once; and copies of that one in the tasks. So a
reader starts working when Spark first requests an offset.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tiercel.frames.columns import MessageColumns, Slice, Source, cut, rows_of
from tiercel.frames.errors import FramesError
from tiercel.frames.options import SourceOptions
from tiercel.frames.post import private_folder
from tiercel.frames.session import BEGINNING, ReadingSession, ReadOffset
from tiercel.queues.broker.connection import connected
from tiercel.queues.broker.declare import WorkQueue, check_server, declare_work_queue
from tiercel.queues.consuming.messages import Delivery
from tiercel.queues.peek import FREE_NACK_SINCE, OpenQueue
from tiercel.queues.retry import BrokerLimit, delivered_before

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:

        class SupportsTriggerAvailableNow:
            """Missing before PySpark 4.2, which runs such a query as one batch."""


_RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"


class RabbitMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the messages of a query.

    A message stays in its queue, opened, until the batch that read it is committed: its results are
    in the sink, and the batch is in the checkpoint. Then it is acked. If the query ends before, or
    its driver dies, the broker requeues the message.

    Spark calls ``commit`` for a batch only when the next one begins, which may be never on an idle
    queue. But it requests the latest offset at each trigger, after the last batch is in the
    checkpoint, so that request implies the commit. If triggers are far apart, the listener in
    ``register`` reports the commit earlier.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._columns = MessageColumns(options, schema)
        self._session: ReadingSession | None = None
        # The last offset that was returned to Spark, or given by it.
        self._last = BEGINNING

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, like the next ones
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
        taken_before = self._last.messages
        self._last = session.take(self._last, getattr(limit, "max_rows", None))
        # Spark ends a query with ``trigger(once=True)`` after one batch, and sets no limit. A queue
        # may have more than fits into memory.
        if type(limit).__name__ == "ReadAllAvailable":
            session.warn_of_the_rest(self._last.messages - taken_before)
        return self._last.json()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        from pyspark.sql.streaming.datasource import (  # noqa: PLC0415 - missing before 4.2
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
            # After a restart: Spark passes the end of the checkpoint, or plans its last batch once
            # more.
            self._last = last
            return []
        return [Slice(rows) for rows in self._session.plan(first, last)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)  # noqa: S101 - Spark returns the results of ``partitions``
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
    """Return True in the process that Spark keeps for a reader, on its main thread."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return (
        getattr(spec, "name", "") == _RUNNER
        and threading.current_thread() is threading.main_thread()
    )


def _end_on_sigterm(stop: Callable[[], None]) -> None:
    """Shut the process down cleanly: Spark sends SIGTERM, mostly twice, and does not wait."""
    # The second signal may arrive while the handler runs for the first: an Event would deadlock on
    # its own lock. ``SimpleQueue.put`` is safe in a signal handler.
    signals: SimpleQueue[int] = SimpleQueue()

    def end() -> None:
        signals.get()
        stop()
        # Skip the runner's exit: it would write a traceback to the socket, which Spark has closed.
        os._exit(0)

    # On another thread: the main thread may be holding locks.
    threading.Thread(target=end, name="tiercel end", daemon=True).start()
    signal.signal(signal.SIGTERM, lambda number, _: signals.put(number))


class QueueLook(DataSourceReader):
    """Reads the ready messages, without removing them.

    They are delivered, and given back when all have arrived: no other consumer gets them meanwhile,
    and nothing is lost if the process dies. If RabbitMQ limits returns, each look counts as a
    return.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._columns = MessageColumns(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Read the messages; raises QueuesError, and FramesError if they exceed the bounds."""
        # The lock first: a connection would miss its heartbeats during the wait.
        with (
            _one_at_a_time(self._options.queues),
            connected(self._options.address, "tiercel data frame") as connection,
        ):
            return [
                Slice(rows)
                for queue in self._options.queues
                for rows in self._look(connection, queue)
            ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark passes a partition of its own if there is none.
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
            again = delivered_before(
                properties.headers, redelivered=method.redelivered, counts=limit.counts
            )
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


@contextmanager
def _one_at_a_time(queues: Iterable[str]) -> Iterator[None]:
    """Wait for other looks of this user on this host at queues of these names.

    Each of two looks at once would show the messages that the other does not hold. The driver has a
    process per look, such as those of two threads or notebooks; a lock ends with its process.
    """
    with ExitStack() as locked:
        # In one order, so that two looks never wait for each other.
        for queue in sorted(queues):
            name = hashlib.sha256(queue.encode()).hexdigest()[:16]
            file = locked.enter_context((private_folder() / f"{name}.look").open("a"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


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
