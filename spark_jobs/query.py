"""The Structured Streaming query of a topology: the relay source, then one shuffle and one stage a level."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.job import Job
from spark_jobs.source import FORMAT, ROWS_DDL, relay_source, run_level

_HOUR_MS = 3_600_000


def level_function(job: Job, level: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What ``mapInArrow`` runs in each task of a level: rows of the level before in, rows for the next out."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        lane = context.partitionId() if context else 0
        payloads = (chunk.as_py() for batch in batches for chunk in batch.column("chunk"))
        yield from run_level(job, level, lane, payloads)

    return run


def start_query(spark: SparkSession, job: Job, checkpoint: str) -> StreamingQuery:
    """Start the query of one run; micro-batches follow each other without a pause.

    Nothing leaves through the sink: what a topology does, its bolts do. ``checkpoint`` is a folder that the driver can
    write; it is scratch, a new run never reads an old one's.
    """
    spark.dataSource.register(relay_source(job))
    rows = spark.readStream.format(FORMAT).load()
    for level in range(2, job.plan.levels + 1):
        rows = rows.repartitionById(job.plan.lanes(level), "lane").mapInArrow(level_function(job, level), ROWS_DDL)
    # A name of the run's own: one whose clean-up failed keeps its name.
    writer = rows.writeStream.format("noop").queryName(f"{job.plan.topology.name} {job.run}")
    writer = writer.option("checkpointLocation", checkpoint).option("asyncProgressTrackingEnabled", "true")
    # Nobody will ever read how far the query is, and Hadoop starts a chmod for each file in which that is written.
    return writer.option("asyncProgressTrackingCheckpointIntervalMs", str(_HOUR_MS)).start()


def on_each_worker(spark: SparkSession, call: Callable[[], None], workers: int) -> None:
    """Have as many Python workers as there are cores call this; Spark uses them again for queries.

    One of them may take two turns, and another none, if ``call`` returns at once.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        call()
        yield from batches

    spark.range(0, workers, 1, workers).mapInArrow(run, "id long").collect()


class RunningQuery:
    """A query between its start and its end."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query

    @property
    def active(self) -> bool:
        """Whether it still works. A query that dies while Spark cleans up after its fault stays "active" for Spark for ever."""
        return bool(self._query.isActive) and self._query.exception() is None

    @property
    def idle(self) -> bool:
        """Whether the last look into the relay found nothing."""
        return not self._query.status["isDataAvailable"]

    def wait_until_ready(self) -> bool:
        """Wait until it looks for data; False if it has ended. On a busy machine Spark gives its processes too little time."""
        while self.active:
            if str(self._query.status["message"]).startswith("Waiting"):
                return True
            time.sleep(0.01)
        return False

    def finish(self, patience_s: float) -> None:
        """Stop, between two micro-batches if that takes less than ``patience_s``, so that little has to be done again."""
        deadline = time.monotonic() + patience_s
        while self.active and time.monotonic() < deadline:
            status = self._query.status
            if not (status["isTriggerActive"] and status["isDataAvailable"]):
                break
            time.sleep(0.02)
        self._query.stop()

    def fault(self) -> str | None:
        """Why it ended by itself, in one line: the last line of Spark's report that names an exception, else its first."""
        error = self._query.exception()
        if error is None:
            return None
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        named = [line for line in lines if "Error" in line or "Exception" in line]
        return (named[-1:] or lines[:1] or ["no reason given"])[0][:500]
