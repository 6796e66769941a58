"""The format "rabbitmq", its registration in a session, and its listener, which tells readers that
their batches are committed.
"""

from __future__ import annotations

import ast
import atexit
import json
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.types import StructType

from tiercel.frames.columns import available, struct
from tiercel.frames.options import SinkOptions, SourceOptions
from tiercel.frames.post import tell
from tiercel.frames.readers import QueueLook, RabbitMQStreamReader
from tiercel.frames.session import ReadOffset
from tiercel.frames.writers import RabbitMQStreamWriter, RabbitMQWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The sessions that have the format and the listener.
_registered: WeakSet[SparkSession] = WeakSet()
# The threads of a pool may register the same session at once.
_registering = threading.Lock()
# The warning of Spark Connect for an event that arrives while Python shuts down.
_TOO_LATE = "StreamingQueryListenerBus .* cannot schedule new futures after"


def register_rabbitmq(spark: SparkSession) -> None:
    """Register ``format("rabbitmq")`` in this session, for reading and writing. Idempotent.

    When it writes, Spark knows the formats of the session that is active in the calling thread, and
    a new thread has none. So call this in each thread that writes, as with
    ``ThreadPoolExecutor(initializer=register_rabbitmq, initargs=(spark,))``: it makes the session
    active there, unless another one is. If a program has several sessions, register each of them.
    Threads of a client of Spark Connect need no call.

    This also adds a listener for streaming queries, so that messages are acked at once even if the
    triggers of a query are far apart, or it is stopped. A listener of Spark Connect runs in the
    client: on another host than the server it finds no reader, and such messages are acked at the
    next trigger.
    """
    with _registering, _active(spark):
        # Spark logs a warning if a session registers a format again.
        if spark not in _registered:
            spark.dataSource.register(RabbitMQDataSource)
            _listen(spark)
            _registered.add(spark)


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Make the session active in this thread, for longer than the block if no other one was.

    Spark looks for a format of this name in the active session also before it registers one.
    """
    if _is_connect(spark):
        yield
        return
    jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no method for this
    sessions = jvm.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())


def _is_connect(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _listen(spark: SparkSession) -> None:
    """Add the listener without keeping the user's program from exiting."""
    if not _is_connect(spark):
        spark.streams.addListener(CommitListener())
        return
    # Spark Connect starts a thread for its listeners. At exit Python waits for all threads except
    # daemons, and for this one forever, unless the session is stopped. A thread is a daemon if its
    # parent is. Events that reach a daemon at exit cannot be handled, and need not be.
    warnings.filterwarnings("ignore", message=_TOO_LATE)
    listener = CommitListener()
    adding = threading.Thread(target=spark.streams.addListener, args=[listener], daemon=True)
    adding.start()
    adding.join()


@atexit.register
def _forget_listeners() -> None:
    """Keep sessions of Spark Connect from waiting for the listeners' thread.

    Sessions remove their listeners when they are garbage-collected, at the latest when Python
    exits. Daemons are frozen by then, and joining one would hang the session.
    """
    for spark in _registered:
        vars(spark).pop("_sqm", None)


class RabbitMQDataSource(DataSource):
    """Queues of RabbitMQ, read and written. See docs/dataframes.md for the options."""

    @classmethod
    def name(cls) -> str:
        return "rabbitmq"

    def schema(self) -> StructType:
        return struct(available(SourceOptions.read(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        return QueueLook(SourceOptions.read(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return RabbitMQStreamReader(SourceOptions.read(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return RabbitMQWriter(SinkOptions.read(self.options), schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        return RabbitMQStreamWriter(SinkOptions.read(self.options), schema, overwrite=overwrite)


class CommitListener(StreamingQueryListener):
    """Listens to all queries of a session, and tells readers that their batches are committed.

    Spark sends the progress event of a batch after the batch is in the checkpoint. A reader also
    learns of the commit at the next trigger; with minutes between triggers the event is earlier,
    and when a query is stopped it is the only way.
    """

    def __init__(self) -> None:
        # The readers of each run of a query.
        self._readers: dict[str, set[str]] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name, as all of these
        """Do nothing: the query's readers are not known yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        progress = event.progress
        for source in progress.sources:
            offset = _offset(source.endOffset)
            if offset is not None:
                self._readers.setdefault(str(progress.runId), set()).add(offset.reader)
                tell(offset.reader, {"committed": offset.messages})

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Do nothing: Spark requests the latest offset from idle readers itself."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        for reader in self._readers.pop(str(event.runId), ()):
            tell(reader, {"ended": True})


def _offset(text: str | None) -> ReadOffset | None:
    """Return the offset of a source if it is one of ours, else None.

    The text is JSON, except in a Spark Connect client of PySpark 4.1, where it is the repr of a
    dictionary.
    """
    for read in (json.loads, ast.literal_eval):
        try:
            offset = read(text or "null")
        except (ValueError, SyntaxError, TypeError):
            continue
        return ReadOffset.parse(offset) if isinstance(offset, dict) else None
    return None
