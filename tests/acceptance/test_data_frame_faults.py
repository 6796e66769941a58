"""Nothing is lost, and little is repeated, when a process of a query or the broker is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from datetime import timedelta

import pytest
from pyspark.errors import StreamingQueryException

from tests.support.broker import ready, restart_in_order, unique
from tests.support.data_frames import (
    Rows,
    committed,
    new_queue,
    plain_spark,
    reader_pids,
    worker_pids,
)
from tests.support.frame_driver import FrameDriver
from tests.support.waiting import wait_until
from tiercel import Publisher

pytestmark = [
    pytest.mark.promised,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture
def driver(amqp_url, tmp_path):
    drivers = []

    def driver(queue):
        drivers.append(FrameDriver(amqp_url, queue, tmp_path))
        return drivers[-1]

    yield driver
    for each in drivers:
        each.close()


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


@pytest.mark.parametrize("kills", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_driver_that_is_killed_loses_nothing_and_repeats_what_was_not_committed(
    amqp_url, driver, tmp_path, kills
):
    count = 2_000
    queue = new_queue(amqp_url, unique(), *[b"%d" % n for n in range(count)])
    running = driver(queue)
    for kill in range(1, kills + 1):
        running.start()
        batches = 3 * kill
        wait_until(lambda: len(committed(tmp_path / "checkpoint")) >= batches, 240)  # noqa: B023
        running.kill()
    running.start()
    wait_until(lambda: len(running.written()) == count, 240, running.log[-2000:])
    wait_until(lambda: ready(amqp_url, queue) == 0, 30)
    # At most the work under way at each kill: a batch, and one whose ack was not sent yet.
    assert running.written().total() - count <= kills * 2 * running.batch


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    numbers = range(500, 600)
    # The queue has no leader yet, and refuses messages for a moment.
    with Publisher(broker.url, timedelta(seconds=60)) as publisher:
        publisher.publish(queue, [b"%d" % number for number in numbers])
    wait_until(lambda: len(set(found.all)) == 600, 90)
    # The last messages have been seen, but their batch is committed only after its function ends.
    query.processAllAvailable()
    query.stop()
    wait_until(lambda: ready(broker.url, queue) == 0, 10)
