"""Conditions of a valid benchmark run: the topology is ready and still has work left."""

from types import SimpleNamespace

import pytest

from bench import rig
from bench.probe import ProcessSample
from bench.rig import BenchError, Running
from bench.topologies.words import basic
from tests.support.presences import MemoryPresences
from tiercel.acker.inbox.chunk import Parcel
from tiercel.acker.inbox.contract import Sender
from tiercel.acker.inbox.memory import MemoryInboxes
from tiercel.acker.metrics.memory import MemoryMetrics
from tiercel.spark_jobs.topology.graph import bolt_tasks
from tiercel.workers.config import Settings
from tiercel.workers.control.presence import NEW, Holder, Lease, SpoutSeats


class Parts:
    """State that a running topology keeps in Redis, here in memory."""

    def __init__(self):
        self.topology = basic()
        self.tasks = bolt_tasks(self.topology)
        self.inboxes = MemoryInboxes()
        self.presences = MemoryPresences()
        self.lease = Lease(self.presences)
        self.spout_seats = SpoutSeats(self.presences)
        self.metrics = MemoryMetrics()
        self.returned = 0
        self.local = SimpleNamespace(refused=[], driver=SimpleNamespace(restarts=0))

    def begin(self):
        self.inboxes.adopt("run", self.tasks)
        self.lease.take(Holder(driver="driver", run="run"))

    def beat(self, *tasks):
        attempts = dict.fromkeys(tasks, self.inboxes.draw("run", tasks[0]))
        self.inboxes.beat("run", attempts, {}, "")


@pytest.fixture
def parts(monkeypatch):
    made = Parts()
    note = SimpleNamespace(spout_tasks=1)
    closing = {"close": lambda: None}
    registry = SimpleNamespace(topologies=lambda: {made.topology.name: note}, **closing)
    monkeypatch.setattr(rig, "RedisMetrics", lambda *_: made.metrics)
    monkeypatch.setattr(rig, "Registry", lambda _: registry)
    monkeypatch.setattr(rig, "RedisPresences", lambda *_: made.presences)
    monkeypatch.setattr(rig, "open_inboxes", lambda _: made.inboxes)
    return made


@pytest.fixture
def running(parts):
    reading = SimpleNamespace(last=lambda: ProcessSample(0.0, 0, 0, parts.returned))
    settings = Settings(amqp=None, redis="redis://127.0.0.1:1/0", management=None)
    return Running(parts.topology, settings, reading, parts.local)


def test_a_topology_is_ready_when_its_spouts_answer_and_each_bolt_task_has_a_process(
    parts, running
):
    assert not running._ready()
    parts.spout_seats.report("worker", 1, NEW)
    assert not running._ready(), "no driver"
    parts.begin()
    assert not running._ready(), "no process"
    parts.beat(*parts.tasks[:-1])
    assert not running._ready(), "one task has none"
    parts.beat(parts.tasks[-1])
    assert running._ready()


def test_a_run_has_work_left_while_an_inbox_holds_tuples(parts, running):
    parts.begin()
    assert running.waiting() == 0
    parcel = Parcel(target=parts.tasks[0], chunks=[b"x"], tuples=[3])
    [effect] = parts.inboxes.append("run", Sender(task=1, attempt=1), 1, [parcel])
    effect.perform()
    assert running.waiting() == 3


def test_words_are_counted_over_all_tasks(parts, running):
    parts.metrics.add("count", 4, {"executed": 5, "acked": 5})
    parts.metrics.add("count", 5, {"executed": 7})
    assert running.executed() == 12
    assert running.totals("count")["acked"] == 5
    assert running.totals("nothing")["executed"] == 0
    assert running.executed_by_task("count") == {4: 5, 5: 7}


def test_a_message_that_is_given_back_spoils_a_run_unless_it_is_to_raise(parts, running):
    parts.returned = 2
    with pytest.raises(BenchError, match="2 messages of bench-basic were given back"):
        running.check()
    running.tolerated = 2
    assert running.check() is False
    parts.returned = 3
    with pytest.raises(BenchError, match="3 messages"):
        running.check()
