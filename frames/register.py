"""The format "rabbitmq", its registration in a session, and its listener, which tells readers that
their batches are committed.
"""

from __future__ import annotations

import ast
import atexit
import json
import threading
import warnings
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

_listened_to: WeakSet[SparkSession] = WeakSet()
# The warning of Spark Connect for an event that arrives while Python shuts down.
_TOO_LATE = "StreamingQueryListenerBus .* cannot schedule new futures after"


def register_rabbitmq(spark: SparkSession) -> None:
    """Register ``format("rabbitmq")`` in this session, for reading and writing. Idempotent.

    This also adds a listener for streaming queries, so that messages are acked at once even if the
    triggers of a query are far apart, or it is stopped. A listener of Spark Connect runs in the
    client: on another host than the server it finds no reader, and such messages are acked at the
    next trigger.
    """
    spark.dataSource.register(RabbitMQDataSource)
    if spark not in _listened_to:
        _listen(spark)
        _listened_to.add(spark)


def _listen(spark: SparkSession) -> None:
    """Add the listener without keeping the user's program from exiting."""
    if not type(spark).__module__.startswith("pyspark.sql.connect"):
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
    for spark in _listened_to:
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
