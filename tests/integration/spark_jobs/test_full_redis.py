"""A topology on a Redis whose memory is full."""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import closing
from datetime import timedelta

import pytest

from tests.support.emitter import SpoutEmitter
from tests.support.pump import RUN, Source
from tests.support.waiting import wait_until
from tiercel import BasicBolt, RedisUnavailableError, StatefulBolt, TopologyBuilder
from tiercel.acker.effects import perform_all
from tiercel.acker.inbox.chunk import Appended
from tiercel.acker.inbox.redis import open_inboxes
from tiercel.acker.metrics.memory import MemoryMetrics
from tiercel.acker.redis.clients import connect
from tiercel.acker.redis_ledger import open_ledger
from tiercel.spark_jobs.process.host import BoltTask
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.counting import Counting
from tiercel.spark_jobs.running.suspicion import Suspicion
from tiercel.spark_jobs.state.redis_store import RedisStateStore
from tiercel.spark_jobs.topology.graph import bolt_tasks, inboxes_of, ledger_spec_of

MIB = 1024 * 1024
WORDS = 20
TEXT = "x" * 1_000


class Explode(BasicBolt):
    """Emits twenty times its input."""

    output_fields = "word string, text string"

    def execute(self, tup, collector):
        for n in range(WORDS):
            collector.emit([str(n), tup["text"]])


class Count(StatefulBolt):
    output_fields = "word string"

    def execute(self, tup, collector):
        self.state.increment(tup["word"])
        collector.emit([tup["word"]])


class Take(BasicBolt):
    def execute(self, tup, collector):
        pass


class Stage:
    """The spout of a topology, and its bolt tasks in their own threads."""

    def __init__(self, topology, inboxes, ledger, around):
        self.emitter = SpoutEmitter(topology, "texts", 1)
        self.inboxes = inboxes
        self.ledger = ledger
        self.sender = inboxes.draw_sender()
        self.tasks = [BoltTask(around, task) for task in bolt_tasks(topology)]
        self.threads = [threading.Thread(target=task.run, daemon=True) for task in self.tasks]
        self.number = 0

    def emit(self, count):
        """Emit as a spout worker does, or raise."""
        first = self.number * 1_000_000
        self.number += 1
        self.emitter.emit_all([[TEXT]] * count, list(range(first, first + count)), "default")
        emission = self.emitter.take()
        assert self.ledger.register(1, emission.roots, emission.ack_vals) == []
        try:
            appends = self.inboxes.append(RUN, self.sender, self.number, emission.parcels)
            assert set(perform_all(appends)) == {Appended.DONE}
        except RedisUnavailableError:
            self.ledger.forget(emission.roots)
            raise
        return count

    def fill(self):
        """Emit until Redis is full; return the number of messages."""
        taken = []

        def emit_on():
            while True:
                taken.append(self.emit(20))

        with pytest.raises(RedisUnavailableError, match=r"Redis is full .*raise its maxmemory"):
            emit_on()
        return sum(taken)

    def work(self):
        for thread in self.threads:
            thread.start()

    def end(self):
        for task in self.tasks:
            task.stop()
        for thread in self.threads:
            if thread.is_alive():
                thread.join(10)
        assert [task.error for task in self.tasks] == [None] * len(self.tasks)


@pytest.fixture
def server(redis):
    return redis()


@pytest.fixture
def stage(server):
    builder = TopologyBuilder(f"full-{uuid.uuid4().hex}")
    builder.set_spout("texts", Source("text string"))
    builder.set_bolt("explode", Explode(), 2).shuffle_grouping("texts")
    builder.set_bolt("count", Count(), 2).fields_grouping("explode", "word")
    builder.set_bolt("take", Take()).shuffle_grouping("count")
    made = builder.build()
    spec = ledger_spec_of(made, (server.url,))
    with (
        closing(open_inboxes(spec)) as inboxes,
        closing(open_ledger(spec)) as ledger,
        closing(RedisStateStore(spec, run_number=1)) as state,
    ):
        inboxes.adopt(RUN, inboxes_of(made))
        ledger.begin(RUN)
        around = Around(
            run=RUN,
            topology=made,
            inboxes=inboxes,
            ledger=ledger,
            state=state,
            counting=Counting(MemoryMetrics()),
            config={},
            key=b"key",
            suspicion=Suspicion(RUN, None, None),
        )
        on = Stage(made, inboxes, ledger, around)
        yield on
        on.end()


def outcomes(feed, acked):
    found = feed.read(timedelta(milliseconds=100))
    assert not found.failed
    assert not found.released
    assert not found.ledger_lost
    return acked.extend(found.acked)


def test_messages_in_flight_end_on_a_full_redis_and_then_it_takes_new_ones(server, stage, caplog):
    with closing(connect(server.url)) as client, closing(stage.ledger.feed(1)) as feed:
        used = client.info("memory")["used_memory"]
        client.config_set("maxmemory", used + 2 * MIB)
        taken = stage.fill()
        assert taken > 500
        # There is not even room for the first bolts' output of one step.
        client.config_set("maxmemory", used)
        acked = []
        began = time.monotonic()
        stage.work()
        wait_until(lambda: outcomes(feed, acked) or len(acked) == taken, 90)
        print(f"{taken} messages in {time.monotonic() - began:.1f} s")  # noqa: T201
        assert stage.ledger.pending() == 0
        assert not caplog.records, "bolts wait as they do for a full inbox"
        client.config_set("maxmemory", 0)
        assert stage.emit(20) == 20
        wait_until(lambda: outcomes(feed, acked) or len(acked) == taken + 20, 20)
