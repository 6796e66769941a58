"""Makes the format "rabbitmq" known to a session."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

from tiercel.frames.data_source import RabbitMQDataSource
from tiercel.frames.telling.listener import CommitListener

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_listened_to: WeakSet[SparkSession] = WeakSet()


def register_rabbitmq(spark: SparkSession) -> None:
    """Make ``format("rabbitmq")`` known to this session, for reading and writing. Idempotent.

    It also adds a listener for streaming queries, by which messages are acked at once when the
    triggers of a query are far apart, or when it is stopped. A listener of Spark Connect is in the
    client: on another host than the server's it finds no reader, and such messages are acked at the
    next trigger.
    """
    spark.dataSource.register(RabbitMQDataSource)
    if spark not in _listened_to:
        spark.streams.addListener(CommitListener())
        _listened_to.add(spark)
