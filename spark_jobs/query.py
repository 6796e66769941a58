"""The Structured Streaming query of a topology: the relay source, then one shuffle and one stage a level."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.job import Job
from spark_jobs.source import FORMAT, ROWS_DDL, batch_of, relay_source, row_batches


def level_function(job: Job, level: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What ``mapInArrow`` runs in each task of a level: rows of the level before in, rows for the next out."""

    def run_level(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        lane = context.partitionId() if context else 0
        payloads = (chunk.as_py() for batch in batches for chunk in batch.column("chunk"))
        yield from row_batches(job.run_level(level, batch_of(context), lane, payloads))

    return run_level


def start_query(spark: SparkSession, job: Job, checkpoint: str) -> StreamingQuery:
    """Start the query of one run; micro-batches follow each other without a pause.

    Nothing leaves through the sink: what a topology does, its bolts do. ``checkpoint`` is a folder that the driver can
    write; it is scratch, a new run never reads an old one's.
    """
    spark.dataSource.register(relay_source(job))
    rows = spark.readStream.format(FORMAT).load()
    for level in range(2, job.plan.levels + 1):
        rows = rows.repartitionById(job.plan.lanes(level), "lane").mapInArrow(level_function(job, level), ROWS_DDL)
    writer = rows.writeStream.format("noop").queryName(job.plan.topology.name)
    writer = writer.option("checkpointLocation", checkpoint).option("asyncProgressTrackingEnabled", "true")
    return writer.start()
