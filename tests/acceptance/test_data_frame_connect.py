"""Queues by way of Spark Connect, whose client has no JVM; skipped where it is not installed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.broker import ready, unique
from tests.support.data_frames import new_queue

pytest.importorskip("grpc", reason="needs pip install 'pyspark[connect]'")

pytestmark = pytest.mark.timeout(200)

# A process of its own: a server with a classic session cannot have sessions of Connect too.
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
wait_until(lambda: ready(url, queue + ".dead") == 1 or not query.isActive, 60)
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
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "looked at 3" in done.stdout
    # The listener's word of the commit came too, though the next trigger is an hour away.
    assert [ready(amqp_url, name) for name in (queue, f"{queue}.dead", copies)] == [0, 1, 2]
