"""A spout worker while the driver begins runs with other numbers of tasks, on twins."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
import pytest

from tests.support.case_book import MemoryCaseBook
from tests.support.presences import MemoryPresences
from tests.support.spout_worker import SPEC, MemoryWorker
from tests.support.waiting import wait_until
from tiercel import BasicBolt, Spout, TopologyBuilder
from tiercel.acker.ids import task_of, tasks_of
from tiercel.acker.inbox.chunk import decode
from tiercel.acker.inbox.contract import Bounds
from tiercel.acker.inbox.memory import MemoryInboxes
from tiercel.acker.ledger import Token, Updates
from tiercel.acker.memory import MemoryLedger
from tiercel.spark_jobs.topology.graph import shape_of
from tiercel.workers.control.presence import Holder, Lease
from tiercel.workers.driver.process import enter
from tiercel.workers.spout import outbox as outbox_module
from tiercel.workers.spout.admission import Admission
from tiercel.workers.spout.loop import SpoutSettings

SETTINGS = SpoutSettings(
    message_timeout=timedelta(seconds=30),
    admission=Admission(bound=50, fixed=True),
    grace=timedelta(seconds=0),
)


class Numbers(Spout):
    """Emits each number until it is acked; emits directly to one of the tasks of ``named``."""

    output_streams = {"default": "n long", "named": "n long"}  # noqa: RUF012 - as a user writes it
    direct_streams = {"named"}  # noqa: RUF012 - as a user writes it

    def __init__(self, count):
        self.waiting = list(range(count))
        self.acked = Counter()
        self.failed = []
        self.by_name = False

    def open(self, config, context):
        self.context = context

    def next_tuple(self, collector):
        if not self.waiting:
            return
        n = self.waiting.pop(0)
        if self.by_name:
            collector.emit_direct(
                self.context.component_tasks("named")[-1], [n], msg_id=n, stream="named"
            )
        else:
            collector.emit([n], msg_id=n)

    def ack(self, msg_id):
        self.acked[msg_id] += 1

    def fail(self, msg_id, reason=""):
        self.failed.append((msg_id, reason))

    def release(self, msg_id):
        self.waiting.append(msg_id)


def topology(work=1, named=2):
    builder = TopologyBuilder("t")
    builder.set_spout("numbers", Numbers(0))
    builder.set_bolt("work", BasicBolt(), work).shuffle_grouping("numbers")
    builder.set_bolt("audit", BasicBolt(), 2).fields_grouping("numbers", "n")
    builder.set_bolt("named", BasicBolt(), named).direct_grouping("numbers", stream="named")
    return builder.build()


class Drivers:
    """One driver after the other, with the bolts of each run, which execute their inboxes when told
    to.
    """

    def __init__(self, inboxes):
        self.inboxes = inboxes
        self.ledger = MemoryLedger(SPEC)
        # The lease's clock stands still, because renewing is the driver's job.
        self.lease = Lease(MemoryPresences(lambda: 0.0))
        self.number = 0
        self.topology = topology()
        # The bolts that executed each message, per run.
        self.done = {}

    def begin(self, numbers=None, *, says=True):
        """Begin a run, with the driver's entry in the lease.

        A driver of an older version does not say its numbers.
        """
        self.lease.take(Holder(driver="driver"))
        self.number += 1
        self.topology = topology().with_parallelism(numbers or {})
        enter(str(self.number), self.topology, self.inboxes, self.ledger, MemoryCaseBook())
        parallelism = self.topology.parallelism if says else {}
        holder = Holder(
            driver="driver",
            run=str(self.number),
            shape=shape_of(self.topology),
            parallelism=parallelism,
        )
        self.lease.take(holder)

    def work(self, entries=10**9):
        """Execute this many entries."""
        run = str(self.number)
        for task, found in self.inboxes.drain(run):
            for entry in found[:entries]:
                chunk = decode(entry.payload)
                target = chunk.route.target_task
                assert target == task or task_of(task) in tasks_of(target)
                bolt = self.topology.component_of(task_of(task))
                assert bolt in dict(self.topology.subscribers("numbers", chunk.route.stream)), (
                    "it was meant for another bolt"
                )
                for n in chunk.values.column(0).to_pylist():
                    self.done.setdefault((n, run), Counter())[bolt] += 1
                order = np.argsort(chunk.lineage.roots)
                updates = Updates(roots=chunk.lineage.roots[order], xors=chunk.lineage.edges[order])
                step = (
                    int(entry.position.partition("-")[0])
                    if "-" in entry.position
                    else int(entry.position)
                )
                self.ledger.apply(Token(run=run, task=task, step=step), updates)
                self.inboxes.discard(run, task, [entry.position])

    def executed(self, n):
        """Return the bolts that executed a message, in each run with any."""
        return [bolts for (message, _), bolts in self.done.items() if message == n]


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(outbox_module, "_LOOK_SECONDS", 0.01)


@contextmanager
def working(spout, drivers):
    """Run the spout worker, beginning with the first run."""
    worker = MemoryWorker(
        topology(),
        spout,
        SETTINGS,
        ledger=drivers.ledger,
        inboxes=drivers.inboxes,
        lease=drivers.lease,
    )
    with worker.working():
        yield worker.task


def waiting(drivers):
    tasks = [task for bolt in drivers.topology.bolts for task in drivers.topology.task_ids(bolt)]
    return {
        task: figures.tuples
        for task, figures in drivers.inboxes.figures(tasks).items()
        if figures.tuples
    }


def until_acked(spout, drivers, count):
    def acked():
        drivers.work()
        return len(spout.acked) == count

    wait_until(acked, 10, "every message to be acked")
    assert set(spout.acked.values()) == {1}, "none is acked twice"
    assert not spout.failed
    assert drivers.ledger.pending() == 0


def test_a_batch_that_is_held_when_the_numbers_change_is_emitted_again_to_the_right_tasks():
    """Each inbox has room for one tuple, so the worker holds the rest of its batch."""
    drivers = Drivers(MemoryInboxes(Bounds(tuples=1)))
    drivers.begin()
    spout = Numbers(200)
    with working(spout, drivers):
        wait_until(
            lambda: len(waiting(drivers)) >= 2 and not drivers.work(1) and len(spout.acked) > 3,
            10,
            "a batch to be held",
        )
        drivers.begin({"work": 4, "audit": 3})
        assert drivers.topology.task_ids("audit")[0] == 6, "where nothing of the old numbers was"
        until_acked(spout, drivers, 200)
        assert {bolt for n in range(200) for bolt in drivers.executed(n)[-1]} == {"work", "audit"}


def test_whatever_numbers_follow_each_other_every_message_is_acked_once_by_the_right_task():
    chosen = random.Random(7)
    drivers = Drivers(MemoryInboxes(Bounds(tuples=20)))
    drivers.begin()
    spout = Numbers(1_000)
    with working(spout, drivers):
        for _ in range(25):
            for _ in range(chosen.randrange(6)):
                time.sleep(0.004)
                drivers.work(chosen.randrange(1, 4))
            numbers = {
                bolt: chosen.randrange(1, 6)
                for bolt in ("work", "audit", "gone")
                if chosen.random() < 0.8
            }
            drivers.begin(numbers)
        until_acked(spout, drivers, 1_000)
    for n in range(1_000):
        assert {"work": 1, "audit": 1} in drivers.executed(n), (
            "acked, so both have seen it, in one run"
        )


def test_a_driver_of_an_older_version_says_no_numbers_and_runs_those_of_the_code():
    drivers = Drivers(MemoryInboxes())
    drivers.begin({"work": 4})
    spout = Numbers(100)
    with working(spout, drivers):
        until_acked(spout, drivers, 100)
        drivers.begin(says=False)
        spout.waiting += range(100, 200)
        until_acked(spout, drivers, 200)


def test_a_worker_sends_nothing_where_the_numbers_do_not_explain_the_shape(caplog):
    drivers = Drivers(MemoryInboxes())
    drivers.begin({"work": 4}, says=False)
    with working(Numbers(10), drivers):
        wait_until(
            lambda: "the driver runs another version of the topology" in caplog.text,
            5,
            "the worker to say so",
        )
        time.sleep(0.1)
        assert not waiting(drivers)


def test_a_spout_that_names_tasks_finds_those_of_the_run():
    drivers = Drivers(MemoryInboxes())
    drivers.begin()
    spout = Numbers(0)
    spout.by_name = True
    with working(spout, drivers):
        wait_until(lambda: hasattr(spout, "context"), 5, "the spout to be opened")
        for count, numbers in enumerate([{}, {"work": 3}, {"named": 5}, {}], 1):
            drivers.begin(numbers)
            last = drivers.topology.task_ids("named")[-1]
            wait_until(
                lambda last=last: spout.context.component_tasks("named")[-1] == last,
                5,
                "the worker to follow",
            )
            spout.waiting.append(count)
            until_acked(spout, drivers, count)


class Chain(Numbers):
    """Emits the next number from ``ack``, whenever one is acked."""

    def next_tuple(self, collector):
        self.collector = collector
        super().next_tuple(collector)

    def ack(self, msg_id):
        super().ack(msg_id)
        if msg_id < 100:
            self.collector.emit([msg_id + 1], msg_id=msg_id + 1)


def test_what_a_spout_emits_while_it_is_told_of_acks_goes_to_the_run_there_is_when_it_leaves():
    drivers = Drivers(MemoryInboxes())
    drivers.begin()
    spout = Chain(1)
    with working(spout, drivers):
        for acked in range(3, 61, 3):
            drivers.begin({"work": acked % 5 + 1})

            def on_its_way(acked=acked):
                drivers.work()
                return len(spout.acked) >= acked

            wait_until(on_its_way, 5, "the chain to go on")
        until_acked(spout, drivers, 101)
    for n in range(101):
        assert {"work": 1, "audit": 1} in drivers.executed(n), "acked, so both have seen it"
