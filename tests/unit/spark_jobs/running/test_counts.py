"""The counts of steps that monitors show."""

import threading
import time
from typing import ClassVar

import pytest

from tests.support.pump import Pump, Source
from tiercel import ArrowBolt, BasicBolt, Bolt, TopologyBuilder
from tiercel.acker.ledger import Census
from tiercel.acker.metrics.contract import ACKER, ACKER_TASK, Window, edge_counter, total_of
from tiercel.workers.control.registry import graph_of
from tiercel.workers.monitoring.overview import overview_of
from tiercel.workers.monitoring.rows import Readings


class Hold(Bolt):
    """Acks the held tuple when the next one comes."""

    def __init__(self):
        self.held = None

    def execute(self, tup, collector):
        if self.held is not None:
            collector.ack(self.held)
        self.held = tup


class Split(BasicBolt):
    output_streams: ClassVar = {"default": "word string", "odd: ones": "word string"}

    def execute(self, tup, collector):
        collector.emit([tup["word"]])
        collector.emit([tup["word"]], stream="odd: ones")


class Divide(BasicBolt):
    def execute(self, tup, collector):
        1 / int(tup["word"])


def test_each_bolt_counts_what_came_over_each_edge():
    builder = TopologyBuilder("edges")
    builder.set_spout("words", Source())
    builder.set_bolt("split", Split()).shuffle_grouping("words")
    builder.set_bolt("sink", BasicBolt()).shuffle_grouping("split").shuffle_grouping(
        "split", stream="odd: ones"
    )
    pump = Pump(builder.build())
    pump.feed(["a"], ["b"])
    pump.run()
    sink = total_of(pump.metrics.totals(), "sink")
    edges = {counter: count for counter, count in sink.items() if counter.startswith("from:")}
    streams = ("default", "odd: ones")
    assert edges == {edge_counter("split", stream): 2 for stream in streams}


def test_the_ledger_counts_as_a_bolt():
    builder = TopologyBuilder("acker")
    builder.set_spout("words", Source())
    builder.set_bolt("sink", Divide()).shuffle_grouping("words")
    pump = Pump(builder.build())
    pump.feed(["1"], ["2"], ["0"])
    pump.run()
    counts = pump.metrics.totals()[ACKER][ACKER_TASK]
    assert counts.pop("execute_ns") > 0
    assert counts == {"executed": 3, "acked": 2, "failed": 1}


def test_process_latency_is_from_execute_to_the_ack_also_of_what_was_held_and_moved():
    builder = TopologyBuilder("held")
    builder.set_spout("words", Source())
    builder.set_bolt("hold", Hold()).global_grouping("words")
    pump = Pump(builder.build())
    pump.feed(["a"])
    pump.run()
    assert "process_ns" not in pump.metrics.totals()["hold"][2]
    [held] = pump.attempts[2]._setup.copy.held.tuples
    began = held.began_ns
    assert began > 0
    pump.take_over()  # another process
    pump.feed(["b"])
    pump.run()
    took = pump.metrics.totals()["hold"][2]["process_ns"]
    [newer] = pump.attempts[2]._setup.copy.held.tuples
    assert took >= newer.began_ns - began > 0


class Wait(BasicBolt):
    """Waits as long as the tuple says, then fails if it says so."""

    def execute(self, tup, collector):
        time.sleep(tup["seconds"])
        if tup["word"] == "bad":
            raise ValueError("bad")


class WaitRows(ArrowBolt):
    def execute(self, batch, collector):
        time.sleep(sum(batch["seconds"].to_pylist()))


class Flushes(Bolt):
    """Acks in ``flush``, after some time."""

    def __init__(self):
        self.open = []

    def execute(self, tup, collector):
        self.open.append(tup)

    def flush(self, collector):
        time.sleep(sum(tup["seconds"] for tup in self.open))
        for tup in self.open:
            collector.ack(tup)
        self.open = []


class Timed(Pump):
    """Uses the real clock."""

    now = property(lambda _self: time.monotonic(), lambda _self, _now: None)


def counts_of(bolt, *rows):
    builder = TopologyBuilder("timed")
    builder.set_spout("words", Source("word string, seconds double"))
    builder.set_bolt("bolt", bolt).shuffle_grouping("words")
    pump = Timed(builder.build())
    pump.feed(*rows)
    pump.run()
    counts = pump.metrics.totals()["bolt"][2]
    return counts, counts["execute_ns"] / 1e9, counts["process_ns"] / 1e9


def test_the_process_time_of_a_tuple_has_nothing_of_its_neighbours_and_of_what_failed():
    counts, execute_s, process_s = counts_of(Wait(), ["a", 0.02], ["bad", 0.1], ["b", 0.02])
    assert (counts["acked"], counts["failed"]) == (2, 1)
    assert 0.04 <= process_s <= execute_s - 0.1


def test_the_rows_of_one_call_are_acked_when_it_returns():
    counts, execute_s, process_s = counts_of(WaitRows(), ["a", 0.01], ["b", 0.02], ["c", 0.03])
    assert counts["acked"] == 3
    assert execute_s >= 0.06
    assert process_s >= 3 * 0.06


def test_flush_is_work_of_the_bolt_and_belongs_to_what_it_acks():
    counts, execute_s, process_s = counts_of(Flushes(), ["a", 0.05], ["b", 0.0])
    assert (counts["acked"], counts["steps"]) == (2, 1)
    assert execute_s >= 0.05
    assert process_s >= 0.1
    assert counts["step_ns"] > counts["execute_ns"]


class Long(BasicBolt):
    working: ClassVar = threading.Event()
    seen: ClassVar = threading.Event()
    took_s: ClassVar[list[float]] = []

    def execute(self, tup, collector):
        began = time.monotonic()
        self.working.set()
        self.seen.wait(30)
        time.sleep(0.4)
        self.took_s.append(time.monotonic() - began)


def test_a_bolt_that_works_all_the_time_is_seen_to_while_its_tuple_lasts():
    builder = TopologyBuilder("long")
    builder.set_spout("words", Source())
    builder.set_bolt("long", Long()).shuffle_grouping("words")
    pump = Pump(builder.build())
    pump.feed(["a"])
    pump.send()
    thread = threading.Thread(target=pump.work)
    thread.start()
    assert Long.working.wait(10)
    time.sleep(0.2)
    pump.counting.flush()
    told = pump.metrics.totals()["long"][2]
    assert told["execute_ns"] / 1e9 >= 0.2
    assert "executed" not in told
    Long.seen.set()
    thread.join()
    pump.counting.flush()
    counts = pump.metrics.totals()["long"][2]
    assert (counts["executed"], counts["steps"]) == (1, 1)
    assert counts["execute_ns"] / 1e9 == pytest.approx(Long.took_s[0], abs=0.1), (
        "no part of it was counted twice"
    )


def test_a_bolt_that_is_busy_all_the_time_has_a_capacity_near_1():
    builder = TopologyBuilder("busy")
    builder.set_spout("words", Source("word string, seconds double"))
    builder.set_bolt("wait", Wait(), 2).fields_grouping("words", "word")
    topology = builder.build()
    pump = Pump(topology)
    pump.feed(*[["same", 0.1]] * 8)
    pump.send()
    thread = threading.Thread(target=pump.work)
    thread.start()
    while thread.is_alive():
        pump.counting.flush()
        thread.join(0.05)
    pump.counting.flush()
    raw = Readings(
        graph=graph_of(topology),
        counted=pump.metrics.over(Window.ALL_TIME),
        present={},
        state=None,
        driver=True,
        inboxes=pump.inboxes.figures(pump.tasks),
        census=Census(pending=0, memory_bytes=0, feed_entries=0, feed_lag_s=0),
        errors=[],
    )
    seen = overview_of("busy", raw)
    assert sorted(row.capacity > 0.8 for row in seen.tasks) == [False, True]
    assert seen.bolts[0].capacity > 0.8
    assert seen.bolts[0].unattended == tuple(pump.tasks), "no host attends the tasks of a pump"
