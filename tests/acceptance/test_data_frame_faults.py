"""Nothing is lost when a process of a query, or the broker, is killed; and little is repeated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from tests.support.broker import put, ready, restart_in_order, unique
from tests.support.data_frames import (
    Rows,
    committed,
    new_queue,
    plain_spark,
    reader_pids,
    worker_pids,
)
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore::ResourceWarning")]

ROOT = Path(__file__).parents[2]

# A driver of its own, to be killed: writes each batch into a file of the batch's number.
DRIVER = """
import sys
from pyspark.sql import SparkSession
{guard}
from tiercel.dataframe import register_rabbitmq

url, queue, folder = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)
register_rabbitmq(spark)
rows = spark.readStream.format("rabbitmq").option("url", url).option("queue", queue)
rows = rows.option("maxMessagesPerTrigger", 200).load().selectExpr("cast(body as string) body")
query = (
    rows.writeStream.format("text")
    .option("path", folder + "/rows")
    .option("checkpointLocation", folder + "/checkpoint")
    .start()
)
{end}
"""

NO_REDIS = """
class NoRedis:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"redis", "hiredis", "pydantic", "typer"}:
            raise ImportError(name + " is not installed here")

sys.meta_path.insert(0, NoRedis())
"""


def driver(amqp_url, queue, folder, end="query.awaitTermination()", guard=""):
    script = folder / "driver.py"
    script.write_text(DRIVER.format(end=end, guard=guard))
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, str(script), amqp_url, queue, str(folder)],
        env=environment,
        stdout=(folder / "driver.log").open("a"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def written(folder):
    """Rows of the batches that the sink has, however often a batch was run."""
    rows = Counter()
    for path in (folder / "rows").glob("part-*.txt"):
        rows.update(path.read_text().split())
    return rows


@pytest.fixture(scope="module")
def spark():
    with plain_spark("local[2,8]") as running:
        yield running


@pytest.fixture
def rows(spark, amqp_url):
    def rows(queue, url=amqp_url, **options):
        return spark.readStream.format("rabbitmq").options(url=url, queue=queue, **options).load()

    yield rows
    for query in spark.streams.active:
        query.stop()


def test_a_driver_that_is_killed_loses_nothing_and_repeats_what_was_not_committed(
    amqp_url, tmp_path
):
    count = 4_000
    queue = new_queue(amqp_url, unique(), *[b"%d" % n for n in range(count)])
    checkpoint = tmp_path / "checkpoint"
    for kills in range(1, 3):
        process = driver(amqp_url, queue, tmp_path)
        wait_until(lambda: len(committed(checkpoint)) >= 4 * kills, 90)  # noqa: B023
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert ready(amqp_url, queue) < count
    process = driver(amqp_url, queue, tmp_path)
    wait_until(lambda: len(written(tmp_path)) == count, 90, (tmp_path / "driver.log").read_text())
    wait_until(lambda: ready(amqp_url, queue) == 0, 30)
    process.terminate()
    process.wait(60)
    # At most what was under way at each kill: a batch, and one whose ack was not sent yet.
    assert sum(written(tmp_path).values()) - count <= 2 * 2 * 200


def test_it_works_where_no_redis_is_installed(amqp_url, tmp_path):
    queue = new_queue(amqp_url, unique(), b"1", b"2")
    end = "query.processAllAvailable(); print('redis' in sys.modules)"
    process = driver(amqp_url, queue, tmp_path, end, NO_REDIS)
    assert process.wait(90) == 0, (tmp_path / "driver.log").read_text()
    wait_until(lambda: ready(amqp_url, queue) == 0, 10)
    assert "False" in (tmp_path / "driver.log").read_text().splitlines()


def test_a_python_worker_that_is_killed_repeats_its_task_with_the_same_messages(
    amqp_url, rows, tmp_path
):
    queue = new_queue(amqp_url, unique(), *[b"%d" % n for n in range(300)])
    found = []
    killed = []

    def batch(frame, number):
        def slow(parts):
            for part in parts:
                time.sleep(2)
                yield part

        if not killed:
            killed.append(number)
            subprocess.Popen(["sh", "-c", f"sleep 1; kill -9 {' '.join(map(str, worker_pids()))}"])
        schema = "body binary"
        slowed = frame.select("body").mapInArrow(slow, schema)
        found.extend(bytes(row.body) for row in slowed.collect())

    query = rows(queue, maxMessagesPerTrigger="100").writeStream.foreachBatch(batch).start()
    wait_until(lambda: len(found) >= 300, 120)
    query.stop()
    assert sorted(map(int, found)) == list(range(300))


def test_a_reader_that_is_killed_ends_its_query_and_loses_nothing(amqp_url, rows, tmp_path):
    queue = new_queue(amqp_url, unique(), *[b"%d" % n for n in range(1_000)])
    first = Rows()
    writer = rows(queue, maxMessagesPerTrigger="50").writeStream.foreachBatch(first)
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    wait_until(lambda: len(first.all) >= 200, 60)
    for pid in reader_pids():
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(60)
    second = Rows()
    writer = rows(queue, maxMessagesPerTrigger="50").writeStream.foreachBatch(second)
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    wait_until(lambda: len(set(first.all) | set(second.all)) == 1_000, 60)
    query.stop()
    assert len(first.all) + len(second.all) <= 1_000 + 2 * 50


def test_a_broker_that_is_killed_is_waited_for(rabbitmq, rows):
    broker = rabbitmq()
    queue = new_queue(broker.url, unique(), *[b"%d" % n for n in range(500)])
    restart_in_order(broker)
    found = Rows()
    query = rows(queue, url=broker.url, maxMessagesPerTrigger="50").writeStream.foreachBatch(found)
    query = query.start()
    wait_until(lambda: len(found.all) >= 100, 60)
    broker.kill()
    broker.start()
    put(broker.url, queue, *[b"%d" % n for n in range(500, 600)])
    wait_until(lambda: len(set(found.all)) == 600, 90)
    query.stop()
    wait_until(lambda: ready(broker.url, queue) == 0, 10)
