"""Spouts of the user's own: an ack or a fail for each tuple, on the task that emitted it, exactly once."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import ClassVar

import pytest

from acker import MemoryMetrics, Token, open_ledger
from queues import Spout
from queues.relay import START
from spark_jobs import BasicBolt, Bolt, Config, TopologyBuilder
from spark_jobs.job import ledger_spec_of, open_relay
from spark_jobs.levels import plan_topology
from spark_jobs.runner import LevelRunner
from spark_jobs.testing import LocalCluster
from tests.waiting import wait_until
from workers.spout_process import SpoutProcess

TASKS, TUPLES = 3, 40
TIMEOUT_S = 6.0
ACKED, FAILED, FORGOTTEN, RAISED = range(4)
"""What becomes of tuple n at its first attempt: n % 4. At the second one it is acked."""


class Replaying(Spout):
    """Emits its tuples, and once more those that failed; every other one from ``fail`` itself."""

    output_fields = "task long, n long, attempt long"
    told: ClassVar[list] = []
    """(task, what, message id, reason, thread) of every call, by all tasks."""

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
    """Does to the last of three parts what the number says."""

    def execute(self, tup, collector):
        fate = tup["n"] % 4 if tup["part"] == 2 and tup["attempt"] == 1 else ACKED
        if fate == FAILED:
            collector.fail(tup, "on purpose")
        elif fate == RAISED:
            raise ValueError("no good")
        elif fate == ACKED:
            collector.ack(tup)


def topology():
    builder = TopologyBuilder(f"replaying-{uuid.uuid4().hex}", Config(message_timeout_secs=TIMEOUT_S, shutdown_grace_secs=0))
    builder.set_spout("spout", Replaying(), parallelism=TASKS)
    builder.set_bolt("triple", Triple(), parallelism=2).shuffle_grouping("spout")
    builder.set_bolt("end", End(), parallelism=2).fields_grouping("triple", "part")
    return builder.build()


def complete():
    """Whether every tuple was acked at some attempt."""
    return len({msg_id[:2] for _, what, msg_id, *_ in Replaying.told if what == "ack"}) == TASKS * TUPLES


@contextmanager
def bolts(topology, redis_url, done):
    """What the driver does, without Spark: reads the relay, runs the levels, tells the ledger."""
    plan = plan_topology(topology, max_lanes=1)
    relay, ledger = open_relay(redis_url, plan), open_ledger(ledger_spec_of(plan, (redis_url,)))
    runners = [
        LevelRunner(plan=plan, level=level, ledger=ledger, metrics=MemoryMetrics(), config={})
        for level in range(1, plan.levels + 1)
    ]

    def work():
        positions = dict.fromkeys(range(plan.relay_lanes), START)
        batch = 0
        while not done.is_set():
            relay.attend("run", timedelta(seconds=30))
            ends = relay.advance(positions, 0, timedelta(milliseconds=50))
            payloads = [payload for lane, end in ends.items() for payload in relay.read(lane, positions[lane], end)]
            positions = ends
            for level, runner in enumerate(runners, 1):
                token = Token(run="run", task=level, step=batch)
                payloads = [payload for _, payload in runner.run(token, payloads)]
            batch += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield ledger
    finally:
        done.set()
        thread.join(30)
        relay.close()
        ledger.close()


def on_spout_workers(request):
    """Three workers on a real Redis, each on a thread of its own."""
    redis_url, replaying, done = request.getfixturevalue("redis_url"), topology(), threading.Event()
    workers = [SpoutProcess(replaying, "spout", index, amqp_url="", redis_urls=(redis_url,)) for index in range(TASKS)]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    with ExitStack() as exits, bolts(replaying, redis_url, done) as ledger:
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
    expected = {(task, "ack" if n % 4 == ACKED else "fail", (task, n, 1)) for task in range(TASKS) for n in range(TUPLES)}
    expected |= {(task, "ack", (task, n, 2)) for task in range(TASKS) for n in range(TUPLES) if n % 4 != ACKED}
    assert calls == dict.fromkeys(expected, 1)
    assert all(same_thread for *_, same_thread in told)
    reasons = {msg_id[1] % 4: reason.partition("]: ")[2] or reason for _, what, msg_id, reason, _ in told if what == "fail"}
    assert reasons == {FAILED: "on purpose", FORGOTTEN: "timeout", RAISED: "ValueError: no good"}
