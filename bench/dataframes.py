"""RabbitMQ in PySpark: ``python -m bench.dataframes`` prints each figure beside its goal.

Runs plain Spark with two cores and a private broker, without Redis. Throughput is measured from the
beginning of the first batch to the end of the last, after a query that warms up the JVM and the
Python processes of source and sink.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from pyspark.sql import SparkSession

from bench.machine import load, machine
from tiercel import Publisher, WorkQueue, declare_queue
from tiercel.compose.embedded import EmbeddedRabbitMQ
from tiercel.dataframe import register_rabbitmq
from tiercel.queues.broker.depths import depths

_BYTES = 100
_WARM_UP = 20_000
# basic.ack in a frame: class 60, method 80.
_ACK = b"\x00\x3c\x00\x50"


def main() -> int:
    """Print all figures; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=150_000)
    parser.add_argument("--columns", default="body binary", help="the schema to read; '' for all")
    arguments = parser.parse_args()
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    print(f"load before: {load()}")
    with EmbeddedRabbitMQ() as broker, _spark() as spark:
        _source(spark, broker.url, "warm", _WARM_UP, arguments.columns)
        for columns in dict.fromkeys((arguments.columns, "")):
            rate = _source(spark, broker.url, "into-noop", arguments.messages, columns)
            _row(f"source into noop, {columns or 'all columns'}", f"{rate:,.0f}/s", "15,000/s")
        _copy(spark, broker.url, "warm", _WARM_UP)
        rate = _copy(spark, broker.url, "copy", arguments.messages // 3)
        _row("source to sink, confirmed", f"{rate:,.0f}/s", "6,000/s")
        for trigger in ({}, {"processingTime": "1 hour"}):
            late = _ack_delay(spark, broker.url, trigger)
            _row(f"acked after the commit, idle, {trigger or 'no trigger'}", f"{late:.3f} s", "1 s")
        _row("unacked after a stop", str(_left_after_stop(spark, broker.url)), "0")
    return 0


def _row(what: str, found: str, goal: str) -> None:
    print(f"| {what} | {found} | {goal} |", flush=True)


@contextmanager
def _spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register_rabbitmq(spark)
    try:
        yield spark
    finally:
        spark.stop()


def _fill(url: str, queue: str, count: int) -> str:
    declare_queue(url, WorkQueue(name=queue))
    with Publisher(url) as publisher:
        publisher.publish(queue, (f"{number:0{_BYTES}d}".encode() for number in range(count)))
    return queue


def _rows(spark: SparkSession, url: str, queue: str, columns: str = "body binary") -> Any:
    reader = spark.readStream.format("rabbitmq").option("url", url).option("queue", queue)
    return (reader.schema(columns) if columns else reader).load()


def _source(spark: SparkSession, url: str, queue: str, count: int, columns: str) -> float:
    queue = _fill(url, f"{queue}-{len(columns)}", count)
    writer = _rows(spark, url, queue, columns).writeStream.format("noop")
    return _rate(writer, count)


def _copy(spark: SparkSession, url: str, name: str, count: int) -> float:
    queue = _fill(url, f"{name}-from", count)
    target = f"{name}-to"
    declare_queue(url, WorkQueue(name=target))
    writer = _rows(spark, url, queue).writeStream.format("rabbitmq")
    return _rate(writer.option("url", url).option("queue", target), count)


def _rate(writer: Any, count: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        query = writer.option("checkpointLocation", folder).start()
        while sum(each.numInputRows for each in query.recentProgress) < count:
            if query.exception() is not None:
                raise query.exception()
            time.sleep(0.1)
        progress = [each for each in query.recentProgress if each.numInputRows]
        query.stop()
    begin, end = _moment(progress[0]), _moment(progress[-1]) + progress[-1].batchDuration / 1000
    shown = {
        name: sum(p.durationMs.get(name, 0) for p in progress) for name in progress[0].durationMs
    }
    print(f"  {len(progress)} batches, {end - begin:.2f} s; ms: {shown}")
    return float(count / (end - begin))


def _moment(progress: Any) -> float:
    return datetime.fromisoformat(progress.timestamp).timestamp()


def _ack_delay(spark: SparkSession, url: str, trigger: dict[str, str]) -> float:
    """Return the seconds from the commit in the checkpoint to the ack on the wire."""
    queue = _fill(url, f"idle-{len(trigger)}", 1)
    with _Wire(url) as wire, tempfile.TemporaryDirectory() as folder:
        writer = _rows(spark, wire.url, queue).writeStream.format("noop")
        writer = writer.option("checkpointLocation", folder)
        query = (writer.trigger(**trigger) if trigger else writer).start()
        commits = Path(folder) / "commits"
        while wire.acked_at is None:
            time.sleep(0.01)
        committed_at = min(path.stat().st_mtime for path in commits.glob("[0-9]*"))
        query.stop()
        return wire.acked_at - committed_at


def _left_after_stop(spark: SparkSession, url: str) -> int:
    """Count the messages that no committed batch contained and that are not ready again."""
    count = 50_000
    queue = _fill(url, "stopped", count)
    with tempfile.TemporaryDirectory() as folder:
        reader = spark.readStream.format("rabbitmq").option("url", url).option("queue", queue)
        rows = reader.option("maxMessagesPerTrigger", 2_000).load()
        writer = rows.writeStream.format("noop").option("checkpointLocation", folder)
        query = writer.start()
        while sum(each.numInputRows for each in query.recentProgress) < 10_000:
            time.sleep(0.05)
        query.stop()
        time.sleep(3)
        offsets = sorted((Path(folder) / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        text = (Path(folder) / "offsets" / offsets[-1].name).read_text()
        read = int(text.rpartition('"messages":')[2].strip(" }\n"))
    return count - read - depths(url, [queue])[0].ready


class _Wire:
    """A TCP proxy that records the time of the first ack."""

    def __init__(self, url: str) -> None:
        host, _, port = url.partition("@")[2].partition("/")[0].rpartition(":")
        self._broker = (host, int(port))
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = url.replace(f"{host}:{port}", f"127.0.0.1:{self._socket.getsockname()[1]}")
        self.acked_at: float | None = None

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            broker = socket.create_connection(self._broker)
            for ends in ((client, broker, True), (broker, client, False)):
                threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, begin: socket.socket, end: socket.socket, is_client: bool) -> None:
        try:
            while data := begin.recv(65536):
                if is_client and self.acked_at is None and _ACK in data:
                    self.acked_at = time.time()
                end.sendall(data)
        except OSError:
            pass
        end.close()


if __name__ == "__main__":
    sys.exit(main())
