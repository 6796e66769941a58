"""A batch of a spout in the ledger and the inboxes, if replies are lost on the way."""

from __future__ import annotations

import uuid
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from tests.support.emitter import SpoutEmitter
from tests.support.inboxes import commit, opened, parcel, put, take
from tests.support.presences import MemoryPresences
from tiercel import BasicBolt, QueueSpout, TopologyBuilder
from tiercel.acker.effects import perform_in_turn
from tiercel.acker.errors import RedisUnavailableError
from tiercel.acker.inbox.chunk import Appended
from tiercel.acker.inbox.memory import MemoryInboxes
from tiercel.acker.inbox.redis import open_inboxes
from tiercel.acker.layout import LedgerSpec
from tiercel.acker.ledger import Token, Updates
from tiercel.acker.memory import MemoryLedger
from tiercel.acker.redis_ledger import open_ledger
from tiercel.spark_jobs.topology.graph import shape_of
from tiercel.workers.control.presence import Holder, Lease
from tiercel.workers.spout import outbox
from tiercel.workers.spout.outbox import Attendance, BatchFate, Outbox

RUN = "1"
NUMBERS, LEFT, RIGHT = 1, 2, 3
ROOT = 10


def topology():
    builder = TopologyBuilder("t")
    builder.set_spout(
        "numbers", QueueSpout("numbers", fields="n long", format="json"), parallelism=1
    )
    for bolt in ("left", "right"):
        builder.set_bolt(bolt, BasicBolt(), parallelism=1).all_grouping("numbers")
    return builder.build()


class Bench:
    """An outbox that holds one batch with one root, for both bolts."""

    def __init__(self, ledger, inboxes) -> None:
        self.ledger, self.inboxes = ledger, inboxes
        mine = topology()
        lease = Lease(MemoryPresences())
        lease.take(Holder(driver="one", run=RUN, shape=shape_of(mine)))
        inboxes.adopt(RUN, [LEFT, RIGHT])
        self.outbox = Outbox(ledger=ledger, inboxes=inboxes, lease=lease, owner=1, topology=mine)
        assert self.outbox.look(0.0) is Attendance.DRIVER
        emitter = SpoutEmitter(mine, "numbers", NUMBERS)
        emitter.emit([1], ROOT, "default")
        self.batch = emitter.take()
        self.outbox.put(self.batch)

    def complete(self) -> None:
        """Ack both tuples, as the bolts would."""
        updates = Updates(
            roots=np.array([ROOT], np.uint64), xors=np.array(self.batch.ack_vals, np.uint64)
        )
        token = Token(run=RUN, task=LEFT, attempt=1, step=1)
        assert self.ledger.apply(token, updates).completed == 1

    @property
    def waiting(self):
        """Number of tuples in each inbox."""
        figures = self.inboxes.figures([LEFT, RIGHT])
        return [figures[LEFT].tuples, figures[RIGHT].tuples]


@pytest.fixture(params=["memory", "one server", "two servers"])
def bench(request):
    spec = LedgerSpec(
        topology=f"outbox-{uuid.uuid4().hex}",
        urls=(),
        shards=1,
        owners=1,
        message_timeout=timedelta(seconds=30),
    )
    if request.param == "memory":
        yield Bench(MemoryLedger(spec), MemoryInboxes())
        return
    url = request.getfixturevalue("redis_url")
    elsewhere = url if request.param == "one server" else f"{url.rpartition('/')[0]}/1"
    with ExitStack() as exits:
        ledger = exits.enter_context(closing(open_ledger(replace(spec, urls=(url,)))))
        inboxes = exits.enter_context(closing(open_inboxes(replace(spec, urls=(elsewhere,)))))
        yield Bench(ledger, inboxes)


def test_a_batch_is_in_the_ledger_and_in_all_inboxes(bench):
    assert bench.outbox.send(0.0) is BatchFate.DONE
    assert bench.waiting == [1, 1]
    assert bench.ledger.pending() == 1
    bench.complete()
    assert bench.ledger.pending() == 0


def test_a_tree_that_is_complete_before_the_lost_reply_is_asked_for_again_stays_complete(
    bench, monkeypatch
):
    losses = []

    def losing(calls):
        replies = perform_in_turn(calls)
        if not losses:
            losses.append(replies)
            bench.complete()
            raise RedisUnavailableError("the reply is lost")
        return replies

    monkeypatch.setattr(outbox, "perform_in_turn", losing)
    first = bench.outbox.send(0.0)
    if not losses:  # the ledger and the inboxes were called one after the other
        assert first is BatchFate.DONE
        return
    assert first is BatchFate.LATER
    assert bench.outbox.send(1.0) is BatchFate.DONE
    assert bench.waiting == [1, 1]
    assert bench.ledger.pending() == 0


def test_if_a_root_is_taken_nothing_is_sent_and_the_other_entry_stays(bench):
    assert bench.ledger.register(1, [ROOT], [77]) == []
    assert bench.outbox.send(0.0) is BatchFate.REFUSED
    assert bench.waiting == [0, 0]
    assert bench.ledger.pending() == 1


def test_a_batch_for_a_run_that_is_over_leaves_nothing_pending(bench):
    bench.inboxes.adopt("2", [LEFT, RIGHT])
    assert bench.outbox.send(0.0) is BatchFate.REFUSED
    assert bench.ledger.pending() == 0


def test_a_batch_that_waits_for_room_is_not_sent_again_with_each_look(bench, monkeypatch):
    inboxes = bench.inboxes
    assert put(inboxes, 1, parcel(b"x", target=LEFT, tuples=[20_000]), run=RUN) == [Appended.DONE]
    sent = []
    append = inboxes.append

    def noted(run, sender, number, parcels):
        sent.extend(one.target for one in parcels)
        return append(run, sender, number, parcels)

    monkeypatch.setattr(inboxes, "append", noted)
    for second in range(20):
        assert bench.outbox.send(float(second)) is BatchFate.LATER
    assert bench.waiting == [20_000, 1]
    assert sent.count(LEFT) <= 2
    inbox = opened(inboxes, LEFT, RUN)
    assert commit(inbox, 1, take(inbox))
    assert bench.outbox.send(30.0) is BatchFate.DONE
    assert bench.waiting == [1, 1]
