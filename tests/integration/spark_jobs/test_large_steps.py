"""Large output on a Redis with little memory."""

from __future__ import annotations

import threading
import uuid
from contextlib import closing
from datetime import timedelta

import pytest
from redis.connection import AbstractConnection

from tests.support.emitter import SpoutEmitter
from tests.support.pump import RUN, Source
from tiercel import BasicBolt, Config, TopologyBuilder
from tiercel.acker.effects import perform_all
from tiercel.acker.inbox.chunk import PARCEL_BYTES, Appended
from tiercel.acker.inbox.contract import Sender
from tiercel.acker.inbox.redis import open_inboxes
from tiercel.acker.metrics.memory import MemoryMetrics
from tiercel.acker.redis.clients import connect
from tiercel.acker.redis_ledger import open_ledger
from tiercel.spark_jobs.kinds.choice import attempt_at
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.counting import Counting
from tiercel.spark_jobs.running.suspicion import Suspicion
from tiercel.spark_jobs.state.memory import MemoryStateStore
from tiercel.spark_jobs.topology.graph import bolt_tasks, ledger_spec_of

MIB = 1024 * 1024
ROW = 100_000


class Explode(BasicBolt):
    output_fields = "row binary, n long"

    def execute(self, tup, collector):
        for n in range(tup["rows"]):
            collector.emit([bytes(ROW), n])


class Take(BasicBolt):
    def __init__(self):
        self.taken = 0

    def execute(self, tup, collector):
        self.taken += 1


def topology():
    builder = TopologyBuilder(f"large-{uuid.uuid4().hex}", Config(max_output_bytes=400 * MIB))
    builder.set_spout("orders", Source("rows long"))
    builder.set_bolt("explode", Explode()).shuffle_grouping("orders")
    builder.set_bolt("take", Take()).shuffle_grouping("explode")
    return builder.build()


@pytest.fixture
def small(redis):
    """A Redis with 128 MiB in all."""
    server = redis()
    with closing(connect(server.url)) as client:
        client.config_set("maxmemory", 128 * MIB)
    return server


@pytest.fixture
def sent(monkeypatch):
    """Sizes of the writes to servers."""
    sizes = []
    send = AbstractConnection.send_packed_command

    def measured(self, command, *args, **kwargs):
        sizes.append(sum(map(len, command)))
        return send(self, command, *args, **kwargs)

    monkeypatch.setattr(AbstractConnection, "send_packed_command", measured)
    return sizes


def begun(made, inboxes, ledger):
    inboxes.adopt(RUN, bolt_tasks(made))
    ledger.begin(RUN)
    return Around(
        run=RUN,
        topology=made,
        inboxes=inboxes,
        ledger=ledger,
        state=MemoryStateStore(),
        counting=Counting(MemoryMetrics()),
        config={},
        key=b"key",
        suspicion=Suspicion(RUN, None, None),
    )


def emit(made, inboxes, ledger, *rows):
    """Emit a message for each number of rows."""
    emitter = SpoutEmitter(made, "orders", 1)
    emitter.emit_all([[number] for number in rows], list(range(1, 1 + len(rows))), "default")
    emission = emitter.take()
    assert ledger.register(1, emission.roots, emission.ack_vals) == []
    sender = Sender(task=1, attempt=1)
    assert perform_all(inboxes.append(RUN, sender, 1, emission.parcels)) == [Appended.DONE]


def test_a_message_that_emits_more_than_redis_may_hold_goes_through(small, sent):
    made = topology()
    spec = ledger_spec_of(made, (small.url,))
    with (
        closing(open_inboxes(spec)) as inboxes,
        closing(open_ledger(spec)) as ledger,
        closing(ledger.feed(1)) as feed,
    ):
        around = begun(made, inboxes, ledger)
        emit(made, inboxes, ledger, 1, 2_500, 1)
        explode, take = (attempt_at(around, task, threading.Event()) for task in (2, 3))
        sizes = []

        def make_room(_seconds):
            sizes.append(inboxes.figures([3])[3].bytes)
            while take.turn():
                continue

        explode._committer._wait = make_room
        while explode.turn() or take.turn():
            continue
        assert take._setup.copy.bolt.taken == 2_502
        assert max(sizes) <= 64 * MIB
        assert len(sizes) > 2
        acked: list[int] = []
        while len(acked) < 3:
            outcomes = feed.read(timedelta(seconds=5))
            assert outcomes.acked
            acked += outcomes.acked
        assert sorted(acked) == [1, 2, 3]
    assert max(sent) < 2 * PARCEL_BYTES


def test_output_that_waits_for_room_is_sent_once(small, sent):
    """A slow bolt leaves those before it waiting for most of the time. Each sent its output twenty
    times per second.
    """
    made = topology()
    spec = ledger_spec_of(made, (small.url,))
    with closing(open_inboxes(spec)) as inboxes, closing(open_ledger(spec)) as ledger:
        around = begun(made, inboxes, ledger)
        emit(made, inboxes, ledger, 690)
        explode, take = (attempt_at(around, task, threading.Event()) for task in (2, 3))
        waits = []

        def wait(_seconds):
            waits.append(inboxes.figures([3])[3].bytes)
            if len(waits) > 20:
                while take.turn():
                    continue

        explode._committer._wait = wait
        sent.clear()
        while explode.turn() or take.turn():
            continue
        assert take._setup.copy.bolt.taken == 690
    assert len(waits) > 20
    assert sum(sent) < 690 * ROW + 2 * PARCEL_BYTES
