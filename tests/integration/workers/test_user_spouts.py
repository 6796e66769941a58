"""A user's own spouts get one ack or fail per tuple, on the task that emitted it."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from contextlib import ExitStack, closing, contextmanager
from typing import ClassVar

import pytest

from tests.support.reasons import unplaced
from tests.support.waiting import wait_until
from tiercel import BasicBolt, Bolt, Config, Spout, TopologyBuilder
from tiercel.acker.redis_ledger import open_ledger
from tiercel.spark_jobs.spark.executors import Readiness
from tiercel.testing import LocalCluster
from tiercel.workers.driver.process import Driver
from tiercel.workers.spout.process import SpoutProcess

TASKS = 3
TUPLES = 40
TIMEOUT_S = 6.0
# Fate of tuple n at its first attempt: n % 4. At the second attempt it is acked.
ACKED, FAILED, FORGOTTEN, RAISED = range(4)


class Replaying(Spout):
    """Emits its tuples, and failed tuples once more; every other one from ``fail`` itself."""

    output_fields = "task long, n long, attempt long"
    # (task, method, message id, reason, thread) of every call, by all tasks.
    told: ClassVar[list] = []

    def open(self, config, context):
        self.task = context.task_index
        self.left = list(range(TUPLES))
        self.again = []
        self.thread = threading.get_ident()

    def next_tuple(self, collector):
        self.collector = collector
        if self.again:
            self.emit(self.again.pop(), 2)
        elif self.left:
            self.emit(self.left.pop(0), 1)

    def emit(self, n, attempt):
        self.collector.emit([self.task, n, attempt], msg_id=(self.task, n, attempt))

    def ack(self, msg_id):
        self.note("ack", msg_id)

    def fail(self, msg_id, reason):
        self.note("fail", msg_id, reason)
        _, n, _ = msg_id
        if n % 2:
            self.emit(n, 2)
        else:
            self.again.append(n)

    def release(self, msg_id):
        self.note("release", msg_id)

    def note(self, what, msg_id, reason=""):
        self.told.append((self.task, what, msg_id, reason, threading.get_ident() == self.thread))


class Triple(BasicBolt):
    output_fields = "n long, attempt long, part long"

    def execute(self, tup, collector):
        for part in range(3):
            collector.emit([tup["n"], tup["attempt"], part])


class End(Bolt):
    """Treats the last of three parts as the tuple's number says."""

    def execute(self, tup, collector):
        fate = tup["n"] % 4 if tup["part"] == 2 and tup["attempt"] == 1 else ACKED
        if fate == FAILED:
            collector.fail(tup, "on purpose")
        elif fate == RAISED:
            raise ValueError("no good")
        elif fate == ACKED:
            collector.ack(tup)


def topology():
    builder = TopologyBuilder(
        f"replaying-{uuid.uuid4().hex}",
        Config(message_timeout_secs=TIMEOUT_S, shutdown_grace_secs=0),
    )
    builder.set_spout("spout", Replaying(), parallelism=TASKS)
    builder.set_bolt("triple", Triple(), parallelism=2).shuffle_grouping("spout")
    builder.set_bolt("end", End(), parallelism=2).fields_grouping("triple", "part")
    return builder.build()


def complete():
    """Return True if every tuple was acked at some attempt."""
    return (
        len({msg_id[:2] for _, what, msg_id, *_ in Replaying.told if what == "ack"})
        == TASKS * TUPLES
    )


class OneHost:
    """Replaces Spark: runs the bolt tasks of each run on threads of this process."""

    grows = False

    def ready(self, _wanted):
        return Readiness(slots=1)

    def check_alive(self):
        pass

    def start(self, run):
        return HostThread(run)

    @contextmanager
    def silenced(self):
        yield


class HostThread:
    fault = None
    unfit = ""

    def __init__(self, run):
        self._thread = threading.Thread(target=run.host, args=(0,))
        self._thread.start()

    @property
    def active(self):
        return self._thread.is_alive()

    def wait(self, seconds):
        self._thread.join(seconds)
        return not self.active

    def cancel(self):
        pass


@contextmanager
def bolts(topology, redis_url):
    """Do the driver's work without Spark; yield the driver's ledger."""
    driver = Driver(topology, (redis_url,), "local[1]")
    runs = driver._runs

    def work():
        if runs.wait_for_turn():
            runs.go(OneHost())

    thread = threading.Thread(target=work)
    thread.start()
    try:
        with closing(open_ledger(driver._spec)) as ledger:
            yield ledger
    finally:
        driver.stop()
        thread.join(30)
        runs.close()
        assert not thread.is_alive()


def on_spout_workers(request):
    """Run three workers on a real Redis, each on its own thread."""
    redis_url = request.getfixturevalue("redis_url")
    replaying = topology()
    workers = [
        SpoutProcess(replaying, "spout", index, amqp_url="", redis_urls=(redis_url,))
        for index in range(TASKS)
    ]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    with ExitStack() as exits, bolts(replaying, redis_url) as ledger:
        for thread, worker in zip(threads, workers, strict=True):
            exits.callback(thread.join, 30)
            exits.callback(worker.task.stop)
            thread.start()
        wait_until(complete, 60, "every tuple to be acked")
        wait_until(lambda: ledger.pending() == 0, 10, "the ledger to be empty")


def on_local_cluster(_request):
    with LocalCluster(topology()) as cluster:
        cluster.advance_time(2 * TIMEOUT_S)
        assert complete()
        assert cluster.pending("spout") == 0


@pytest.mark.parametrize("run", [on_local_cluster, on_spout_workers])
def test_each_tuple_is_acked_or_failed_once_on_the_task_that_emitted_it(run, request):
    Replaying.told.clear()
    run(request)
    told = list(Replaying.told)
    calls = Counter((task, what, msg_id) for task, what, msg_id, *_ in told)
    expected = {
        (task, "ack" if n % 4 == ACKED else "fail", (task, n, 1))
        for task in range(TASKS)
        for n in range(TUPLES)
    }
    expected |= {
        (task, "ack", (task, n, 2))
        for task in range(TASKS)
        for n in range(TUPLES)
        if n % 4 != ACKED
    }
    assert calls == dict.fromkeys(expected, 1)
    assert all(same_thread for *_, same_thread in told)
    reasons = {
        msg_id[1] % 4: unplaced(reason.partition("]: ")[2] or reason)
        for _, what, msg_id, reason, _ in told
        if what == "fail"
    }
    assert reasons == {FAILED: "on purpose", FORGOTTEN: "timeout", RAISED: "ValueError: no good"}
