"""Executors of a cluster read a queue from other hosts than its reader's."""

from __future__ import annotations

import os
import time
from collections import Counter

import pyarrow as pa
import pytest

from tests.support.broker import ready, unique
from tests.support.data_frames import new_queue, plain_spark
from tests.support.standalone import Standalone
from tests.support.waiting import wait_until
from tiercel.spark_jobs.spark.settings import SMALL_JVM

pytestmark = [
    pytest.mark.promised,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

MESSAGES = 600


@pytest.fixture
def cluster(tmp_path):
    with Standalone(tmp_path) as running:
        yield running


@pytest.fixture
def spark(cluster):
    executors = {
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": SMALL_JVM,
    }
    with plain_spark(cluster.url, **executors) as running:
        yield running


class Found:
    """Messages by batch, and the hosts that each batch passed."""

    def __init__(self):
        self.bodies = Counter()
        self.hosts = {}

    def __call__(self, rows, number):
        def with_host(parts):
            for part in parts:
                time.sleep(0.2)
                host = pa.array([os.environ["TMPDIR"]] * part.num_rows)
                yield pa.RecordBatch.from_arrays([part.column("body"), host], ["body", "host"])

        shown = rows.select("body").mapInArrow(with_host, "body binary, host string").collect()
        self.bodies.update(bytes(row.body) for row in shown)
        self.hosts[number] = {row.host for row in shown}


def test_executors_on_other_hosts_read_and_one_that_dies_loses_nothing(spark, amqp_url, cluster):
    """``partitions`` spreads a queue over the executors, which need no access to the reader or its
    files.
    """
    queue = new_queue(amqp_url, unique(), *[b"%d" % number for number in range(MESSAGES)])
    rows = spark.readStream.format("rabbitmq").options(url=amqp_url, queue=queue)
    rows = rows.options(partitions="4", maxMessagesPerTrigger="40").load()
    found = Found()
    query = rows.writeStream.foreachBatch(found).start()
    try:
        both = cluster.hosts
        wait_until(lambda: both in list(found.hosts.values()), 90, "rows by way of both hosts")
        cluster.kill("host-1")
        wait_until(lambda: len(found.bodies) == MESSAGES, 120, "all rows by way of the other")
        query.processAllAvailable()
    finally:
        query.stop()
    assert found.bodies == Counter(b"%d" % number for number in range(MESSAGES))
    assert found.hosts[max(found.hosts)] < both
    wait_until(lambda: ready(amqp_url, queue) == 0, 10)
