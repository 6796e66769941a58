"""The format "rabbitmq", as Spark asks for it."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from tiercel.frames.columns import available, struct
from tiercel.frames.options import SinkOptions, SourceOptions
from tiercel.frames.reading.look import QueueLook
from tiercel.frames.reading.stream_reader import RabbitMQStreamReader
from tiercel.frames.writing.writers import RabbitMQStreamWriter, RabbitMQWriter


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
