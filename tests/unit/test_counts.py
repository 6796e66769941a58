"""What a monitor is told of the work of bolt tasks."""

from typing import ClassVar

from spark_jobs import BasicBolt, Bolt, TopologyBuilder
from spark_jobs.counts import ACKER, ACKER_TASK, edge_counter, edge_of
from tests.pump import Pump, Source


class Hold(Bolt):
    """Acks what it held when the next one comes."""

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


def held_by(pump):
    return pump.attempts[2]._bench.copy.held.tuples


def test_each_bolt_counts_what_came_over_each_edge():
    builder = TopologyBuilder("edges")
    builder.set_spout("words", Source())
    builder.set_bolt("split", Split()).shuffle_grouping("words")
    builder.set_bolt("sink", BasicBolt()).shuffle_grouping("split").shuffle_grouping("split", stream="odd: ones")
    pump = Pump(builder.build())
    pump.feed(["a"], ["b"])
    pump.run()
    [sink] = pump.metrics.totals()["sink"].values()
    edges = {edge_of(counter): count for counter, count in sink.items() if edge_of(counter)}
    assert edges == {("split", "default"): 2, ("split", "odd: ones"): 2}
    assert edge_of(edge_counter("a:b", "c")) == ("a:b", "c")
    assert edge_of("executed") is None


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


def test_process_latency_is_from_the_arrival_to_the_ack_also_of_what_was_held_and_moved():
    builder = TopologyBuilder("held")
    builder.set_spout("words", Source())
    builder.set_bolt("hold", Hold()).global_grouping("words")
    pump = Pump(builder.build())
    pump.feed(["a"])
    pump.run()
    assert "process_ns" not in pump.metrics.totals()["hold"][2]
    [held] = held_by(pump)
    came = held.arrived_ns
    pump.take_over()
    pump.feed(["b"])
    pump.run()
    took = pump.metrics.totals()["hold"][2]["process_ns"]
    [newer] = held_by(pump)
    assert took >= newer.arrived_ns - came > 0
