"""A step leaves nothing for Python's garbage collector, which stops all tasks of its process."""

from __future__ import annotations

import gc
from contextlib import contextmanager

import pyarrow.compute as pc
import pytest

from tests.support.inbox_cluster import InboxCluster
from tests.support.pump import Source
from tests.support.waiting import wait_until
from tiercel import (
    ArrowBolt,
    AsyncBolt,
    BasicBolt,
    BatchBolt,
    Bolt,
    StatefulBolt,
    TopologyBuilder,
)

MESSAGES = 200


class Double(BasicBolt):
    output_fields = "n long"

    def execute(self, tup, collector):
        collector.emit([2 * tup["n"]])


class DoubleByHand(Bolt):
    output_fields = "n long"

    def execute(self, tup, collector):
        collector.emit([2 * tup["n"]], [tup])
        collector.ack(tup)


class HoldsTwo(Bolt):
    output_fields = "n long"

    def prepare(self, config, context):
        self.held = []

    def execute(self, tup, collector):
        self.held.append(tup)
        if len(self.held) == 2:
            collector.emit([sum(each["n"] for each in self.held)], self.held)
            for each in self.held:
                collector.ack(each)
            self.held = []


class DoubleByBatches(BatchBolt):
    wait_ms = 1
    output_fields = "n long"

    def execute_batch(self, tuples, collector):
        for tup in tuples:
            collector.emit([2 * tup["n"]], tup)


class DoubleRows(ArrowBolt):
    output_fields = "n long"

    def execute(self, batch, collector):
        collector.emit_batch(batch.values.set_column(0, "n", pc.multiply(batch.values["n"], 2)))


class Sums(StatefulBolt):
    output_fields = "n long"

    def execute(self, tup, collector):
        self.state["sum"] = self.state.get("sum", 0) + tup["n"]
        collector.emit([self.state["sum"]])


class DoubleLater(AsyncBolt):
    output_fields = "n long"

    async def execute(self, tup, collector):
        collector.emit([2 * tup["n"]])


class Refuses(BasicBolt):
    output_fields = "n long"

    def execute(self, tup, collector):
        raise ValueError("never")


class Drop(BasicBolt):
    def execute(self, tup, collector):
        pass


@contextmanager
def collector_off():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


CASES = [
    (Double(), {}),
    (Double(), {"ordered_by": "n"}),
    (Double(), {"threads": 4}),
    (Double(), {"rate_limit": "1000000/s"}),
    (DoubleByHand(), {}),
    (HoldsTwo(), {}),
    (DoubleByBatches(), {}),
    (DoubleRows(), {}),
    (Sums(), {}),
    (DoubleLater(), {}),
    (Refuses(), {}),
]


@pytest.mark.parametrize(
    ("bolt", "config"),
    CASES,
    ids=["-".join([type(bolt).__name__, *config]) for bolt, config in CASES],
)
def test_nothing_is_left_to_the_collector(bolt, config):
    builder = TopologyBuilder("t")
    builder.set_spout("spout", Source("n long"))
    builder.set_bolt("worker", bolt, config=config).fields_grouping("spout", "n")
    builder.set_bolt("drop", Drop()).shuffle_grouping("worker")
    cluster = InboxCluster(builder.build())
    attempts = {task: cluster.attempt(task) for task in cluster.bolt_tasks}

    def message(number):
        cluster.emit([[number]])
        done = 0

        def is_done():
            nonlocal done
            cluster.work(attempts)
            outcomes = cluster.outcomes()
            done += len(outcomes.acked) + len(outcomes.failed)
            return done or isinstance(bolt, HoldsTwo)

        wait_until(is_done, 10)

    for number in range(50):
        message(number)
    with collector_off():
        for number in range(MESSAGES):
            message(number)
        assert gc.collect() < MESSAGES
