"""Bolt tasks in long-lived Spark tasks: real Spark, Redis, inboxes and ledger, fed
by this process.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark import SparkConf, SparkContext

from tests.support.emitter import SpoutEmitter
from tests.support.pump import Source
from tests.support.waiting import wait_until
from tiercel import BasicBolt, TopologyBuilder
from tiercel.acker.effects import perform_all
from tiercel.acker.ids import RootIds
from tiercel.acker.inbox.chunk import Appended
from tiercel.acker.inbox.contract import Sender
from tiercel.acker.redis_ledger import open_ledger
from tiercel.spark_jobs.spark.job import LongTasks
from tiercel.spark_jobs.spark.run import Run
from tiercel.spark_jobs.spark.settings import EVERYWHERE, SMALL_JVM
from tiercel.spark_jobs.topology.graph import bolt_tasks, inboxes_of, ledger_spec_of, spread

pytestmark = [pytest.mark.promised, pytest.mark.quick]

ROOT = Path(__file__).parents[2]


class Split(BasicBolt):
    output_fields = "word string"

    def execute(self, tup, collector):
        for word in tup["line"].split():
            collector.emit([word])


class Note(BasicBolt):
    """Writes a line per word into a file of its process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def execute(self, tup, collector):
        with (self.folder / f"{os.getpid()}").open("a") as file:
            file.write(f"{tup['word']}\n")


class Sleep(BasicBolt):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def execute(self, tup, collector):
        seconds = float(tup["line"])
        if seconds:
            (self.folder / f"pid-{os.getpid()}").touch()
        time.sleep(seconds)


@pytest.fixture(scope="module")
def context() -> Iterator[SparkContext]:
    conf = SparkConf().setMaster("local[2,1000]").setAppName("long tasks")
    conf.set("spark.driver.extraJavaOptions", SMALL_JVM)
    conf.set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
    conf.setAll([*EVERYWHERE.items()])
    spark = SparkContext.getOrCreate(conf)
    spark.pythonExec = sys.executable
    spark.environment["PYTHONPATH"] = str(ROOT)
    yield spark
    spark.stop()


class Cluster:
    """One run, fed and observed as by a spout worker."""

    def __init__(self, context: SparkContext, redis_url: str, topology) -> None:
        self.run = Run(
            id=secrets.token_hex(4),
            topology=topology,
            hosts=spread(bolt_tasks(topology), 2),
            ledger=ledger_spec_of(topology, (redis_url,)),
        )
        self.inboxes = self.run.open_inboxes()
        self.ledger = open_ledger(self.run.ledger)
        self.inboxes.adopt(self.run.id, inboxes_of(topology))
        self.ledger.begin(self.run.id)
        self.feed = self.ledger.feed(1)
        self.tasks = LongTasks(context, self.run)
        self.tasks.start()
        self._emitter = SpoutEmitter(topology, "spout", 1)
        self._roots = RootIds(timedelta(seconds=30))
        self._number = 0
        self.acked: list[int] = []
        self.failed: dict[int, str] = {}

    def emit(self, *lines: str) -> list[int]:
        roots = self._roots.draw(len(lines))
        for root, line in zip(roots, lines, strict=True):
            self._emitter.emit([line], root, "default")
        emission = self._emitter.take()
        assert not self.ledger.register(1, emission.roots, emission.ack_vals)
        self._number += 1
        effects = self.inboxes.append(
            self.run.id, Sender(task=1, attempt=1), self._number, emission.parcels
        )
        assert set(perform_all(effects)) == {Appended.DONE}
        return roots

    def hear(self) -> None:
        outcomes = self.feed.read(timedelta(milliseconds=50))
        self.acked += outcomes.acked
        self.failed |= {failure.root: failure.reason for failure in outcomes.failed}

    def until_decided(self, count: int, seconds: float = 60) -> None:
        def decided() -> bool:
            assert self.tasks.active, self.tasks.fault
            self.hear()
            return len(self.acked) + len(self.failed) >= count

        wait_until(decided, timeout=seconds)

    def close(self) -> None:
        self.inboxes.adopt(f"{self.run.id}-ended", inboxes_of(self.run.topology))
        ended = self.tasks.wait(30)
        self.inboxes.close()
        self.ledger.close()
        self.feed.close()
        assert ended


@pytest.fixture
def cluster_of(context: SparkContext, redis_url: str) -> Iterator:
    started: list[Cluster] = []

    def start(topology) -> Cluster:
        started.append(Cluster(context, redis_url, topology))
        return started[-1]

    yield start
    for cluster in started:
        cluster.close()


def words(folder: Path) -> list[str]:
    return [word for file in folder.iterdir() for word in file.read_text().split()]


def test_every_line_is_acked_and_every_word_executed_once(cluster_of, tmp_path: Path) -> None:
    builder = TopologyBuilder(f"words-{secrets.token_hex(4)}")
    builder.set_spout("spout", Source("line string"))
    builder.set_bolt("split", Split(), parallelism=2).shuffle_grouping("spout")
    builder.set_bolt("note", Note(tmp_path), parallelism=3).fields_grouping("split", "word")
    cluster = cluster_of(builder.build())
    lines = [f"{number}-a {number}-b {number}-c" for number in range(500)]
    roots = [
        root for start in range(0, 500, 50) for root in cluster.emit(*lines[start : start + 50])
    ]
    cluster.until_decided(500)
    assert sorted(cluster.acked) == sorted(roots)
    assert sorted(words(tmp_path)) == sorted(word for line in lines for word in line.split())
    wait_until(
        lambda: all(
            one.tuples == 0
            for one in cluster.inboxes.figures(inboxes_of(cluster.run.topology)).values()
        )
    )


def test_tasks_that_spark_has_no_slot_for_are_counted(
    cluster_of, context: SparkContext, tmp_path: Path
) -> None:
    """The tasks belong to a second run on the same slots."""
    builder = TopologyBuilder(f"counted-{secrets.token_hex(4)}")
    builder.set_spout("spout", Source("line string"))
    builder.set_bolt("sleep", Sleep(tmp_path), parallelism=2).shuffle_grouping("spout")
    cluster = cluster_of(builder.build())
    cluster.emit("0", "0")
    cluster.until_decided(2)
    # Spark's own figures could be ten seconds old: only a heartbeat of an executor renewed them.
    wait_until(lambda: cluster.tasks.waiting == 0, timeout=4)
    later = LongTasks(context, replace(cluster.run, id=secrets.token_hex(4)))
    later.start()
    wait_until(lambda: later.waiting == 2, timeout=30)
    later.cancel()
    assert later.wait(30)
    assert cluster.tasks.waiting == 0


def test_a_python_process_that_is_killed_comes_back_and_nothing_is_lost(
    cluster_of, tmp_path: Path
) -> None:
    builder = TopologyBuilder(f"killed-{secrets.token_hex(4)}")
    builder.set_spout("spout", Source("line string"))
    builder.set_bolt("sleep", Sleep(tmp_path), parallelism=2).shuffle_grouping("spout")
    cluster = cluster_of(builder.build())
    cluster.emit("0", "0")
    cluster.until_decided(2)
    cluster.emit("3")
    [running] = wait_until(lambda: list(tmp_path.iterdir()))
    os.kill(int(running.name.removeprefix("pid-")), signal.SIGKILL)
    began = time.monotonic()
    cluster.emit(*["0"] * 20)
    cluster.until_decided(23)
    assert len(cluster.acked) == 23
    assert time.monotonic() - began < 30


def test_a_slow_tuple_delays_nothing_of_another_task(cluster_of, tmp_path: Path) -> None:
    builder = TopologyBuilder(f"slow-{secrets.token_hex(4)}")
    builder.set_spout("spout", Source("line string"))
    builder.set_bolt("sleep", Sleep(tmp_path), parallelism=4).fields_grouping("spout", "line")
    cluster = cluster_of(builder.build())
    cluster.emit("0")
    cluster.until_decided(1)
    [slow] = cluster.emit("8")
    quick = cluster.emit(*[f"0.000{number}" for number in range(1, 9)])
    wait_until(lambda: cluster.hear() or len(cluster.acked) > 4)
    assert slow not in cluster.acked
    cluster.until_decided(2 + len(quick))
