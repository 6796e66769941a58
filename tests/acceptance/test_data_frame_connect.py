"""Queues through Spark Connect, whose client has no JVM."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.broker import ready, unique
from tests.support.connect import ConnectServer
from tests.support.data_frames import new_queue

pytestmark = pytest.mark.timeout(300)

# A separate process, because a server with a classic session cannot serve Connect too.
_CLIENT = """
import sys
import time

from pyspark.sql import SparkSession
from tests.support.broker import ready
from tests.support.waiting import wait_until
from tiercel.dataframe import fail_messages, register_rabbitmq

url, queue, copies, folder = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
register_rabbitmq(spark)
looked = spark.read.format("rabbitmq").options(url=url, queue=queue).load()
print("looked at", looked.count())


def batch(rows, number):
    texts = rows.selectExpr("cast(body as string) as body", "delivery")
    fail_messages(texts.where("body = 'bad'"), "it is bad", again=False)
    good = texts.where("body != 'bad'").select("body").write.format("rabbitmq")
    good.mode("append").options(url=url, queue=copies).save()


rows = spark.readStream.format("rabbitmq").options(url=url, queue=queue).load()
writer = rows.writeStream.foreachBatch(batch).option("checkpointLocation", folder)
query = writer.trigger(processingTime="1 hour").start()
wait_until(lambda: ready(url, queue + ".dead") == 1 or not query.isActive, 150)
query.stop()
spark.stop()
"""


def test_a_client_of_spark_connect_reads_fails_and_writes(amqp_url, tmp_path):
    queue = new_queue(amqp_url, unique(), b"one", b"two", b"bad")
    copies = new_queue(amqp_url, unique())
    done = subprocess.run(
        [sys.executable, "-c", _CLIENT, amqp_url, queue, copies, str(tmp_path)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "looked at 3" in done.stdout
    # The listener's report of the commit arrived, though the next trigger is an hour away.
    assert [ready(amqp_url, name) for name in (queue, f"{queue}.dead", copies)] == [0, 1, 2]


# The query belongs to the server, so it goes on unless the program stops it.
_PROGRAM = """
import concurrent.futures.thread
import contextlib
import sys
import threading

from pyspark.sql import SparkSession
from tests.support.broker import ready
from tests.support.waiting import wait_until
from tiercel.dataframe import register_rabbitmq

server, url, queue, folder, end = sys.argv[1:]
spark = SparkSession.builder.remote(server).getOrCreate()
register_rabbitmq(spark)
rows = spark.readStream.format("rabbitmq").options(url=url, queue=queue).load()
writer = rows.writeStream.format("noop").option("checkpointLocation", folder)
query = writer.trigger(processingTime="1 hour").start()
wait_until(lambda: query.lastProgress or not query.isActive, 150)


def stop_late():
    # The listener's thread then hears of it when nothing may be scheduled any more. It ends by
    # that, with PySpark 4.1 it does not.
    wait_until(lambda: concurrent.futures.thread._shutdown)
    [hears] = [each for each in threading.enumerate() if "_query_event_handler" in each.name]
    with contextlib.suppress(RuntimeError):
        query.stop()
    hears.join(5)


exec(end)
print("the end of the program", flush=True)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ConnectServer(tmp_path_factory.mktemp("connect")) as running:
        yield running


@pytest.mark.parametrize(
    "end",
    [
        pytest.param("", marks=pytest.mark.slow),
        pytest.param("query.stop()", marks=pytest.mark.slow),
        pytest.param("spark.stop()", marks=pytest.mark.slow),
        "query.stop(); spark.stop()",
        pytest.param("threading.Thread(target=stop_late).start()", marks=pytest.mark.slow),
    ],
)
def test_the_program_of_a_client_ends_by_itself(amqp_url, server, tmp_path, end):
    queue = new_queue(amqp_url, unique(), b"one", b"two")
    program = subprocess.Popen(
        [
            sys.executable,
            # PySpark's own, at times, when a session stops before its thread of listeners.
            *("-W", "ignore:StreamingQueryListenerBus Handler thread:UserWarning"),
            *("-c", _PROGRAM, server.url, amqp_url, queue, str(tmp_path), end),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said, errors = program.communicate(timeout=240)
    finally:
        program.kill()
    assert (said, errors, program.returncode) == ("the end of the program\n", "", 0)
