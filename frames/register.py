"""Makes the format "rabbitmq" known to a session."""

from __future__ import annotations

import atexit
import threading
import warnings
from typing import TYPE_CHECKING
from weakref import WeakSet

from tiercel.frames.data_source import RabbitMQDataSource
from tiercel.frames.telling.listener import CommitListener

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_listened_to: WeakSet[SparkSession] = WeakSet()
# How Spark Connect says that an event reached its listeners when Python was already ending.
_TOO_LATE = "StreamingQueryListenerBus .* cannot schedule new futures after"


def register_rabbitmq(spark: SparkSession) -> None:
    """Make ``format("rabbitmq")`` known to this session, for reading and writing. Idempotent.

    It also adds a listener for streaming queries, by which messages are acked at once when the
    triggers of a query are far apart, or when it is stopped. A listener of Spark Connect is in the
    client: on another host than the server's it finds no reader, and such messages are acked at the
    next trigger.
    """
    spark.dataSource.register(RabbitMQDataSource)
    if spark not in _listened_to:
        _listen(spark)
        _listened_to.add(spark)


def _listen(spark: SparkSession) -> None:
    """Add the listener in such a way that the user's program still ends by itself."""
    if not type(spark).__module__.startswith("pyspark.sql.connect"):
        spark.streams.addListener(CommitListener())
        return
    # Spark Connect starts a thread for its listeners, and at its end Python waits for all threads
    # but daemons: for this one for ever, unless the session is stopped. A thread is a daemon if the
    # one that starts it is. What still reaches a daemon then cannot be handled, and need not be.
    warnings.filterwarnings("ignore", message=_TOO_LATE)
    listener = CommitListener()
    adding = threading.Thread(target=spark.streams.addListener, args=[listener], daemon=True)
    adding.start()
    adding.join()


@atexit.register
def _forget_listeners() -> None:
    """Keep sessions of Spark Connect from waiting for that thread.

    They remove their listeners when they are collected, at the latest while Python ends. Daemons
    stand still then, and so would the session when it joins one.
    """
    for spark in _listened_to:
        vars(spark).pop("_sqm", None)
