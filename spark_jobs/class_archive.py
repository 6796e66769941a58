"""Spark's classes in one file, as its JVM has them in memory once it has read them: it starts in half the CPU time.

The JVM writes that file at the end of a run that practised what tiercel's query does; see docs/decisions/a-class-archive.md.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from spark_jobs.errors import SparkUnavailableError

_BATCHES = 3
_PATIENCE_S = 600.0
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
"""An archive that does not fit, such as after an update of Java, is passed over. That needs no words on stdout."""


def archive_path() -> Path:
    """Beside Spark, whose classes they are."""
    return Path(pyspark.__file__).parent / "tiercel.jsa"


def reading_options() -> Sequence[str]:
    """What makes a JVM use the archive; nothing where there is none."""
    path = archive_path()
    return (f"-XX:SharedArchiveFile={path}", _QUIET) if path.is_file() and " " not in str(path) else ()


@contextmanager
def writing_options() -> Iterator[Sequence[str]]:
    """What makes a JVM write the archive when it ends, which must be within the block. Then it is used from now on.

    Raises SparkUnavailableError where it cannot be written, and where the JVM did not write it.
    """
    path = archive_path()
    part = path.with_name(f"{path.name}.{os.getpid()}")
    if not os.access(path.parent, os.W_OK) or " " in str(path):
        raise SparkUnavailableError(
            f"cannot write {path}: run it as the user who installed Spark, into a folder without spaces;"
            " Spark works without it too"
        )
    try:
        yield (f"-XX:ArchiveClassesAtExit={part}", _QUIET)
        if not part.exists():
            raise SparkUnavailableError(f"Java wrote no archive to {part}; Spark works without it too")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def practise(spark: SparkSession, checkpoint: str) -> StreamingQuery:
    """Do what a run's query does: a Python source, a shuffle, a Python stage, some micro-batches. It is still active then."""
    spark.dataSource.register(_Practice)
    rows = spark.readStream.format(_Practice.name()).load()
    rows = rows.repartitionById(2, "lane").mapInArrow(_same, _SCHEMA)
    writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = writer.option("asyncProgressTrackingEnabled", "true").start()
    deadline = time.monotonic() + _PATIENCE_S
    while query.isActive and time.monotonic() < deadline:
        progress = query.lastProgress
        if progress is not None and progress.batchId >= _BATCHES - 1:
            break
        time.sleep(0.1)
    return query


def end_java() -> None:
    """End the JVM of this process and wait for it. No session can start here any more."""
    gateway: Any = SparkContext._gateway  # noqa: SLF001 - the only way to the JVM's process
    if gateway is None:
        return
    gateway.shutdown()
    # It ends when its standard input does.
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout=_PATIENCE_S)


_SCHEMA = "lane int, chunk binary"


def _same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


class _Reader(SimpleDataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"at": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int, bytes]], dict[str, int]]:
        return iter([(0, b"chunk"), (1, b"chunk")]), {"at": start["at"] + 1}

    def readBetweenOffsets(  # noqa: N802 - Spark's name
        self, start: dict[str, int], end: dict[str, int]
    ) -> Iterator[tuple[int, bytes]]:
        return iter([(0, b"chunk"), (1, b"chunk")] * (end["at"] - start["at"]))


class _Practice(DataSource):
    @classmethod
    def name(cls) -> str:
        return "tiercel-practice"

    def schema(self) -> str:
        return _SCHEMA

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:  # noqa: ARG002, N802 - Spark's signature
        return _Reader()
