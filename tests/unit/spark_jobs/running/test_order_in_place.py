"""Emissions of a step in which tuples of an ordered bolt fail and are retried."""

from __future__ import annotations

from typing import Any, ClassVar

import pyarrow as pa
import pytest

from tests.support.pump import Pump, Source
from tiercel import ArrowBolt, BasicBolt, BatchBolt, Bolt, StatefulBolt, Topology, TopologyBuilder
from tiercel.queues.retry import DEFAULT_RETRY
from tiercel.workers.testing.engine import SimulatedClock

FIELDS = "key string, number long"
TOGETHER = "together"


class Fails:
    """Fails the given rows once."""

    failing: ClassVar[set[tuple[str, int]]]

    def fails(self, key: str, number: int) -> bool:
        fails = (key, number) in self.failing
        self.failing.discard((key, number))
        return fails


class Rich(Fails, Bolt):
    output_fields = FIELDS

    def execute(self, tup, collector):
        collector.emit(tup.values, anchors=tup)
        if self.fails(*tup.values):
            collector.fail(tup, "not yet")
        else:
            collector.ack(tup)


class Basic(Fails, BasicBolt):
    output_fields = FIELDS

    def execute(self, tup, collector):
        collector.emit(tup.values)
        if self.fails(*tup.values):
            raise ValueError("not yet")


class Stateful(Fails, StatefulBolt):
    """Emits the number of earlier successes of the key."""

    output_fields = FIELDS
    state_types: ClassVar[Any] = {}

    def execute(self, tup, collector):
        collector.emit([tup["key"], self.state.increment(tup["key"]) - 1])
        if self.fails(*tup.values):
            raise ValueError("not yet")


class Batches(Fails, BatchBolt):
    output_fields = FIELDS
    size = 10
    wait_ms = 0

    def execute_batch(self, tuples, collector):
        for tup in tuples:
            collector.emit(tup.values, anchors=tup)
            if self.fails(*tup.values):
                collector.fail(tup, "not yet")


class Arrow(Fails, ArrowBolt):
    output_fields = FIELDS

    def execute(self, batch, collector):
        collector.emit(batch, anchors=pa.array(range(batch.num_rows)))
        failed = [at for at, row in enumerate(batch.to_pylist()) if self.fails(**row)]
        if failed:
            collector.fail(pa.array(failed), "not yet")


class Joining(Fails, Bolt):
    """Emits one tuple anchored to all tuples of its step, some of which fail."""

    output_fields = FIELDS

    def prepare(self, config, context):
        self.held: list[Any] = []

    def execute(self, tup, collector):
        self.held.append(tup)

    def flush(self, collector):
        held, self.held = self.held, []
        if held:
            collector.emit([TOGETHER, len(held)], anchors=held)
        for tup in held:
            if self.fails(*tup.values):
                collector.fail(tup, "not yet")
            else:
                collector.ack(tup)


class Sink(BasicBolt):
    received: ClassVar[list[tuple[str, int]]]

    def execute(self, tup, collector):
        self.received.append((tup["key"], tup["number"]))


def topology(bolt: Any, fields: str) -> Topology:
    builder = TopologyBuilder("order")
    builder.set_spout("spout", Source(fields))
    builder.set_bolt("bolt", bolt, config={"ordered_by": "key"}).fields_grouping("spout", "key")
    builder.set_bolt("sink", Sink()).shuffle_grouping("bolt")
    return builder.build()


def pumped(bolt: Any, *fail: tuple[str, int], fields: str = FIELDS) -> tuple[Pump, SimulatedClock]:
    Fails.failing = set(fail)
    Sink.received = []
    clock = SimulatedClock()
    return Pump(topology(bolt, fields), simulated=clock), clock


def wait(pump: Pump, clock: SimulatedClock) -> None:
    clock.move_to(clock.after(DEFAULT_RETRY.first.total_seconds()))
    pump.run()


@pytest.mark.parametrize("bolt", [Rich(), Basic(), Stateful(), Batches(), Arrow()])
def test_each_tuple_is_emitted_once_and_in_order_though_it_failed(bolt: Any) -> None:
    pump, clock = pumped(bolt, ("a", 0), ("b", 1))
    roots = pump.feed(*[[key, number] for number in range(3) for key in "ab"])
    pump.run()
    assert (Sink.received, pump.failed) == ([("b", 0)], {})
    wait(pump, clock)
    assert [row for row in Sink.received if row[0] == "a"] == [("a", 0), ("a", 1), ("a", 2)]
    assert [row for row in Sink.received if row[0] == "b"] == [("b", 0), ("b", 1), ("b", 2)]
    assert (sorted(pump.acked), pump.failed) == (sorted(roots), {})


def test_a_step_that_only_fails_keeps_what_the_bolt_remembers() -> None:
    """The next process has the attributes as they were after the failure."""

    class Counting(Bolt):
        output_fields = FIELDS
        count = 0

        def execute(self, tup, collector):
            self.count += 1
            if self.count < 3:
                raise ValueError("not yet")
            collector.ack(tup)

    pump, clock = pumped(Counting())
    roots = pump.feed(["a", 0])
    pump.run()
    pump.take_over()
    pump.run()
    wait(pump, clock)
    for _ in range(2):
        wait(pump, clock)
    assert pump.acked == roots


def test_a_tuple_whose_emission_leaves_with_another_fails_with_its_message() -> None:
    """The other tuple is acked, because it relies on the emission."""
    pump, _ = pumped(Joining(), ("a", 0))
    failing, good = pump.feed(["a", 0], ["b", 0])
    pump.run()
    assert Sink.received == [(TOGETHER, 2)]
    assert (pump.acked, list(pump.failed)) == ([good], [failing])
    # The failed tuple's successor waits until the message is redelivered.
    [successor] = pump.feed(["a", 1])
    pump.run()
    assert Sink.received == [(TOGETHER, 2)]
    [again] = pump.feed(["a", 0])
    pump.run()
    assert set(pump.acked) == {good, again, successor}
    assert Sink.received == [(TOGETHER, 2), (TOGETHER, 1), (TOGETHER, 1)]


class Filling(Fails, Bolt):
    """Adds to the lists of its tuples, which it holds until one with the key "flush" comes."""

    output_fields = FIELDS

    def prepare(self, config, context):
        self.held: list[Any] = []

    def execute(self, tup, collector):
        if tup["key"] != "flush":
            tup["parts"].append(len(self.held))
            self.held.append(tup)
            return
        for held in self.held:
            if self.fails(held["key"], held["number"]):
                collector.fail(held, "not yet")
            else:
                collector.emit([held["key"], held["number"]], anchors=held)
                collector.ack(held)
        self.held = []
        collector.ack(tup)


@pytest.mark.parametrize("dies", [False, True], ids=["one process", "the process dies"])
def test_a_held_tuple_whose_list_has_changed_is_known_when_its_message_comes_again(
    dies: bool,
) -> None:
    pump, _ = pumped(Filling(), ("a", 0), fields="key string, number long, parts array<long>")
    [failing] = pump.feed(["a", 0, []])
    pump.run()
    pump.feed(["b", 0, []])  # held through several steps
    pump.run()
    if dies:
        pump.take_over()
    pump.feed(["flush", 0, []])
    pump.run()
    assert list(pump.failed) == [failing]
    pump.feed(["a", 1, []], ["a", 0, []])
    pump.run()
    pump.feed(["flush", 1, []])
    pump.run()
    assert Sink.received == [("b", 0), ("a", 0), ("a", 1)]
    assert len(pump.acked) == 5


def test_tuples_of_which_none_succeeds_are_tried_again_together_with_their_emission() -> None:
    pump, clock = pumped(Joining(), ("a", 0), ("b", 0))
    roots = pump.feed(["a", 0], ["b", 0])
    pump.run()
    assert (Sink.received, pump.failed) == ([], {})
    wait(pump, clock)
    assert Sink.received == [(TOGETHER, 2)]
    assert sorted(pump.acked) == sorted(roots)


class Flushing(Fails, BasicBolt):
    """Fails in flush for a poisoned key."""

    output_fields = FIELDS

    def prepare(self, config, context):
        self.keys: list[str] = []

    def execute(self, tup, collector):
        self.keys.append(tup["key"])

    def flush(self, collector):
        keys, self.keys = self.keys, []
        if "poison" in keys:
            raise ValueError("a poisoned batch")


def test_a_tuple_that_a_flush_fails_for_takes_no_other_along() -> None:
    pump, clock = pumped(Flushing())
    poison, *others = pump.feed(["poison", 0], ["a", 0], ["b", 0])
    pump.run()
    assert not pump.acked
    wait(pump, clock)
    assert (sorted(pump.acked), pump.failed) == (sorted(others), {})
    assert poison not in pump.acked
