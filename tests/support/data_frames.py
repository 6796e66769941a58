"""Plain Spark with the format "rabbitmq", and the traces of its queries."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tests.support.broker import put, ready
from tests.support.waiting import wait_until
from tiercel import WorkQueue, declare_queue
from tiercel.dataframe import register_rabbitmq
from tiercel.frames.columns import rows_of
from tiercel.frames.readers import RabbitMQStreamReader
from tiercel.spark_jobs.spark.session import reading_options
from tiercel.spark_jobs.spark.settings import SMALL_JVM

_RUNNER = b"pyspark.sql.streaming.python_streaming_source_runner"
_WORKERS = b"pyspark.daemon"


@contextmanager
def plain_spark(master: str = "local[2]", **settings: str) -> Iterator[SparkSession]:
    """Start Spark as PySpark does, in a JVM with a short start: without tiercel's topologies,
    settings and Redis.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("data frames")
    for name, value in {
        "spark.driver.extraJavaOptions": " ".join([SMALL_JVM, *reading_options()]),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        **settings,
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        register_rabbitmq(spark)
        yield spark
    finally:
        for query in spark.streams.active:
            query.stop()
        spark.stop()


def new_queue(amqp_url: str, name: str, *bodies: bytes, **properties: object) -> str:
    """Declare a queue with these messages."""
    declare_queue(amqp_url, WorkQueue(name=name))
    put(amqp_url, name, *bodies, **properties)
    wait_until(lambda: ready(amqp_url, name) == len(bodies))
    return name


class Rows:
    """Rows of a query by batch; for ``foreachBatch``."""

    def __init__(self, column: str = "body") -> None:
        self.batches: dict[int, list[str]] = {}
        self._column = column

    def __call__(self, rows: DataFrame, number: int) -> None:
        found = [row[0] for row in rows.select(self._column).collect()]
        self.batches[number] = [
            each.decode() if isinstance(each, bytes | bytearray) else each for each in found
        ]

    @property
    def all(self) -> list[str]:
        return [body for bodies in list(self.batches.values()) for body in bodies]

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.all)


def committed(checkpoint: Path) -> list[int]:
    """Return the numbers of the batches committed in a checkpoint."""
    return sorted(int(path.name) for path in checkpoint.glob("commits/[0-9]*"))


def offsets(checkpoint: Path, batch: int) -> list[dict[str, object]]:
    """Return a batch's offsets from a checkpoint."""
    lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    return [json.loads(line) for line in lines[2:]]


def pids(word: bytes, above: int | None = None) -> list[int]:
    """Return the descendants of this process with this word in their command lines."""
    top = os.getpid() if above is None else above
    parents: dict[int, int] = {}
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            stat = (path / "stat").read_text().rpartition(")")[2].split()
            command = (path / "cmdline").read_bytes()
        except OSError:
            continue
        parents[int(path.name)] = int(stat[1])
        if word in command and stat[0] != "Z":
            found.append(int(path.name))
    return [pid for pid in found if _is_below(pid, top, parents)]


def reader_pids(above: int | None = None) -> list[int]:
    """Return the processes of the readers of streaming queries."""
    return pids(_RUNNER, above)


def worker_pids(above: int | None = None) -> list[int]:
    """Return the Python workers that run tasks, without their daemons, since a session's daemon
    does not survive its planner's end.
    """
    found = pids(_WORKERS, above)
    return [pid for pid in found if _parent(pid) in found]


def kill_readers() -> None:
    """Kill the readers, so that the broker requeues all messages that are still unacked."""
    for pid in reader_pids():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not reader_pids())


def bodies_between(
    reader: RabbitMQStreamReader, start: dict[str, Any], end: dict[str, Any]
) -> list[Any]:
    """Return the bodies that a reader has between two offsets."""
    return [
        body
        for piece in reader.partitions(start, end)
        for batch in rows_of(piece)
        for body in batch.column("body").to_pylist()
    ]


def settled_within(seconds: float, since: float) -> None:
    """Sleep until this many seconds after ``since``, because the time itself is measured."""
    time.sleep(max(0.0, since + seconds - time.time()))


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _is_below(pid: int, top: int, parents: dict[int, int]) -> bool:
    while pid > 1:
        pid = parents.get(pid, 0)
        if pid == top:
            return True
    return False
