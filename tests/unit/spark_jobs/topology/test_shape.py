"""Two versions of a topology: which may run together, and how a spout worker behaves if they may
not.
"""

from datetime import timedelta

import pytest

from tests.support.emitter import SpoutEmitter
from tests.support.presences import MemoryPresences
from tiercel import BasicBolt, Config, QueueSpout, TopologyBuilder
from tiercel.acker.inbox.chunk import Appended, Parcel
from tiercel.acker.inbox.contract import Bounds
from tiercel.acker.inbox.memory import MemoryInboxes
from tiercel.acker.layout import LedgerSpec
from tiercel.acker.memory import MemoryLedger
from tiercel.spark_jobs.topology.graph import shape_of
from tiercel.workers.control.presence import Holder, Lease
from tiercel.workers.spout.outbox import Attendance, BatchFate, Outbox

SPEC = LedgerSpec(topology="t", urls=(), shards=1, owners=1, message_timeout=timedelta(seconds=30))


class Sink(BasicBolt):
    pass


class OtherSink(BasicBolt):
    def prepare(self, config, context):
        self.limit = 3


class First:
    def prepare(self, context, stream, target_tasks):
        self.tasks = target_tasks

    def choose_tasks(self, task_id, values):
        return self.tasks[:1]


class Last(First):
    def choose_tasks(self, task_id, values):
        return self.tasks[-1:]


def topology(fields="n long", *, tasks=1, sink="sink", bolt=None, by=None, **config):
    builder = TopologyBuilder("t", Config(**config))
    builder.set_spout(
        "numbers", QueueSpout("numbers", fields=fields, format="json"), parallelism=tasks
    )
    declared = builder.set_bolt(sink, bolt or Sink())
    declared.fields_grouping("numbers", by) if by else declared.shuffle_grouping("numbers")
    return builder.build()


def test_what_bolts_do_and_how_long_they_may_take_is_their_own_business():
    assert shape_of(topology()) == shape_of(
        topology(bolt=OtherSink(), message_timeout_secs=7, spark_options={"spark.a": "b"})
    )


@pytest.mark.parametrize(
    "change",
    [
        {"fields": "n int"},
        {"fields": "m long"},
        {"tasks": 2},
        {"sink": "other"},
        {"by": "n"},
        {"ackers": 2},
    ],
)
def test_what_tuples_are_and_where_they_go_is_the_shape(change):
    assert shape_of(topology(**change)) != shape_of(topology())


def grouped(name, *arguments):
    builder = TopologyBuilder("t")
    builder.set_spout("pairs", QueueSpout("pairs", fields="a string, b string"))
    getattr(builder.set_bolt("sink", Sink()), f"{name}_grouping")("pairs", *arguments)
    return builder.build()


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("fields", ["a"], ["b"]),
        ("fields", ["a"], ["a", "b"]),
        ("fields", ["a", "b"], ["b", "a"]),
        ("partial_key", ["a"], ["b"]),
        ("custom", [First()], [Last()]),
    ],
)
def test_what_a_grouping_goes_by_is_the_shape(name, before, after):
    """An older spout worker would send one key to several tasks, and a state lose counts."""
    assert shape_of(grouped(name, *before)) != shape_of(grouped(name, *after))
    assert shape_of(grouped(name, *before)) == shape_of(grouped(name, *before))


def attended_by(driver):
    """Return True if a spout worker of ``topology()`` takes messages beside a driver of this
    topology.
    """
    lease = Lease(MemoryPresences())
    lease.take(Holder(driver="driver", run="1", shape=shape_of(driver)))
    outbox = Outbox(
        ledger=MemoryLedger(SPEC),
        inboxes=MemoryInboxes(),
        lease=lease,
        owner=1,
        topology=topology(),
    )
    return outbox.look(0.0) is Attendance.DRIVER


def test_a_spout_worker_sends_nothing_to_a_driver_that_would_misread_it(caplog):
    assert attended_by(topology(bolt=OtherSink()))
    assert "another version" not in caplog.text
    assert not attended_by(topology("m long"))
    assert "the driver runs another version of the topology" in caplog.text


def test_what_was_kept_for_a_driver_of_one_version_is_never_sent_to_one_of_another():
    """Its task 2 may be another bolt, which would execute and ack the tuple; the right bolt would
    never see it.
    """
    lease = Lease(MemoryPresences())
    inboxes = MemoryInboxes()
    ledger = MemoryLedger(SPEC)
    inboxes.adopt("1", [2])
    lease.take(Holder(driver="old", run="1", shape=shape_of(topology())))
    outbox = Outbox(ledger=ledger, inboxes=inboxes, lease=lease, owner=1, topology=topology())
    assert outbox.look(0.0) is Attendance.DRIVER
    emitter = SpoutEmitter(topology(), "numbers", 1)
    emitter.emit([1], 77, "default")
    outbox.put(emitter.take())
    lease.leave("old")
    lease.take(Holder(driver="new", run="2", shape=shape_of(topology(sink="audit"))))
    inboxes.adopt("2", [2])
    outbox.look(1.0)
    assert outbox.send(1.0) is BatchFate.REFUSED, (
        "its messages are emitted again, once drivers and workers are of one version"
    )
    assert inboxes.figures([2])[2].tuples == 0
    assert ledger.pending() == 0
    assert outbox.look(2.0) is not Attendance.DRIVER


def test_a_spout_worker_that_an_inbox_forgot_emits_anew_what_it_sent():
    """Many other senders have started meanwhile; its append may be a repeat."""
    lease = Lease(MemoryPresences())
    inboxes = MemoryInboxes(Bounds(senders=2))
    inboxes.adopt("1", [2])
    mine = topology()
    lease.take(Holder(driver="one", run="1", shape=shape_of(mine)))
    outbox = Outbox(ledger=MemoryLedger(SPEC), inboxes=inboxes, lease=lease, owner=1, topology=mine)

    def sent(root):
        assert outbox.look(float(root)) is Attendance.DRIVER
        emitter = SpoutEmitter(mine, "numbers", 1)
        emitter.emit([root], root, "default")
        outbox.put(emitter.take())
        return outbox.send(float(root))

    assert sent(10) is BatchFate.DONE
    for number in range(5):
        some = Parcel(target=2, chunks=[b"%d" % number], tuples=[1])
        [effect] = inboxes.append("1", inboxes.draw_sender(), 1, [some])
        assert effect.perform() is Appended.DONE
    assert sent(20) is BatchFate.REFUSED
    assert sent(30) is BatchFate.DONE
    assert inboxes.figures([2])[2].tuples == 7


def test_what_is_held_for_a_run_is_never_sent_to_one_with_other_numbers_of_tasks():
    """There, task 2 belongs to another bolt, although the worker understands both runs."""
    lease = Lease(MemoryPresences())
    inboxes = MemoryInboxes()
    ledger = MemoryLedger(SPEC)
    mine = topology()
    more = mine.with_parallelism({"sink": 3, "gone": 7})
    inboxes.adopt("1", [2])
    lease.take(Holder(driver="old", run="1", shape=shape_of(mine), parallelism=mine.parallelism))
    outbox = Outbox(ledger=ledger, inboxes=inboxes, lease=lease, owner=1, topology=mine)
    assert outbox.look(0.0) is Attendance.DRIVER
    emitter = SpoutEmitter(outbox.topology, "numbers", 1)
    emitter.emit([1], 77, "default")
    outbox.put(emitter.take())
    lease.leave("old")
    lease.take(Holder(driver="new", run="2", shape=shape_of(more), parallelism=more.parallelism))
    inboxes.adopt("2", [2, 3, 4])
    outbox.look(1.0)
    assert outbox.topology is mine, "as long as a batch is held that was emitted by it"
    assert outbox.send(1.0) is BatchFate.REFUSED
    assert inboxes.figures([2])[2].tuples == 0
    assert outbox.look(2.0) is Attendance.DRIVER
    assert outbox.topology.parallelism == {"sink": 3}
