"""Times of ticks, and what bolts see of them, without Spark."""

from typing import ClassVar

import pytest

from tests.support.pump import Pump, Source, killed_after
from tests.support.reasons import unplaced
from tiercel import ArrowBolt, BasicBolt, Bolt, Config, QueueSink, TopologyBuilder
from tiercel.acker.inbox.chunk import decode
from tiercel.spark_jobs.running.backlog import TickClock
from tiercel.workers.testing.engine import Ticks


class Pass(BasicBolt):
    output_fields = "word string"

    def execute(self, tup, collector):
        if not tup.is_tick:
            collector.emit([tup[0]])


class Windows(Bolt):
    """Emits at each tick how many words came since the last one."""

    output_fields = "task long, count long"

    def prepare(self, config, context):
        self.task = context.task_id
        self.count = 0

    def execute(self, tup, collector):
        if tup.is_tick:
            collector.emit([self.task, self.count])
            self.count = 0
        else:
            self.count += 1
            collector.ack(tup)


class Told(BasicBolt):
    """Records its tuples."""

    seen: ClassVar[list] = []

    def execute(self, tup, collector):
        self.seen.append((tup.source_component, list(tup.values)))


@pytest.fixture(autouse=True)
def _nothing_told():
    Told.seen.clear()


def windowed(bolt=None, every=1.0, **config):
    """Build spout -> pass -> windows (two tasks with ticks, by word) -> told."""
    builder = TopologyBuilder("windowed", Config(**config))
    builder.set_spout("words", Source())
    builder.set_bolt("pass", Pass()).shuffle_grouping("words")
    builder.set_bolt(
        "windows", bolt or Windows(), 2, {"tick_tuple_freq_secs": every}
    ).fields_grouping("pass", "word")
    builder.set_bolt("told", Told(), config={"tick_tuple_freq_secs": None}).global_grouping(
        "windows"
    )
    return builder.build()


def targets(parcels):
    """Return the tasks with a tick, in the order of the parcels."""
    chunks = [decode(chunk) for parcel in parcels for chunk in parcel.chunks]
    assert [chunk.route.target_task for chunk in chunks] == [parcel.target for parcel in parcels]
    return [parcel.target for parcel in parcels]


def test_a_tick_that_a_call_executes_is_not_due_again_before_its_step():
    clock = TickClock(3, 2.0, 10.0)
    clock.under_way = True
    assert clock.due(13.0) == []
    clock.under_way = False
    assert len(clock.due(13.0)) == 1


def test_every_task_of_a_bolt_that_wants_ticks_has_one_each_period():
    ticks = Ticks(windowed(every=10), start_s=100.0)
    assert ticks.next_at == 110.0
    assert ticks.due(109.9) == []
    assert targets(ticks.due(110.0)) == [3, 4]
    assert ticks.due(110.0) == []
    assert ticks.next_at == 120.0


def test_a_late_call_gives_one_tick_and_the_next_is_on_time_again():
    ticks = Ticks(windowed(every=10))
    assert targets(ticks.due(47.0)) == [3, 4]
    assert ticks.next_at == 50.0


def test_the_moment_that_is_announced_is_the_moment_that_is_due():
    ticks = Ticks(windowed(every=0.1), start_s=0.7)
    for _ in range(1_000):
        assert ticks.due(ticks.next_at)


def test_the_topology_sets_it_for_all_bolts_and_a_bolt_for_itself():
    topology = windowed(every=2, tick_tuple_freq_secs=3)
    ticks = Ticks(topology)
    assert topology.task_ids("told") == range(5, 6), "which switches them off"
    assert targets(ticks.due(2)) == [3, 4]
    assert targets(ticks.due(3)) == [2]
    assert sorted(targets(ticks.due(6))) == [2, 3, 4]


def test_without_the_setting_there_are_none():
    ticks = Ticks(windowed(every=None))
    assert ticks.next_at is None
    assert ticks.due(1e9) == []


def test_the_clock_of_a_task_ticks_once_per_period_and_never_twice_for_one():
    clock = TickClock(7, 10.0, start_s=100.0)
    assert clock.next_at == 110.0
    assert clock.due(109.9) == []
    [tick] = clock.due(110.0)
    assert tick.route.target_task == 7
    assert tick.values.to_pylist() == [{"rate_secs": 10.0}]
    assert clock.due(110.0), "a tick is due until a step has executed it"
    clock.ticked(110.5)
    assert (clock.count, clock.next_at) == (1, 120.0)
    assert clock.due(119.9) == []


def test_a_clock_that_is_read_late_has_one_tick_and_the_next_is_on_time_again():
    clock = TickClock(7, 10.0, start_s=0.0)
    clock.ticked(47.0)
    assert (clock.count, clock.next_at) == (1, 50.0)
    clock.ticked(50.0)
    assert (clock.count, clock.next_at) == (2, 60.0)


def test_a_task_without_the_setting_has_no_clock():
    pump = Pump(windowed(every=None))
    pump.feed(["one"])
    pump.now = 1e9
    pump.run()
    assert [attempt.ticks for attempt in pump.attempts.values()] == [None] * len(pump.tasks)
    assert Told.seen == []


def test_a_tick_whose_step_was_sealed_comes_again_in_another_process_and_counts_once():
    pump = Pump(windowed())
    pump.feed(["one"])
    pump.run()
    pump.now = 1.0
    for task in (3, 4):
        with killed_after(1):
            pump.work(task)
    pump.now = 1.5
    pump.take_over()
    pump.run()
    assert sum(count for _, (_, count) in Told.seen) == 1
    assert sorted(task for _, (task, _) in Told.seen) == [3, 4]
    assert [pump.attempts[task].ticks.count for task in (3, 4)] == [1, 1]


def test_a_window_emits_when_its_tick_comes_also_while_no_message_flows():
    pump = Pump(windowed())
    pump.feed(["one"], ["two"], ["three"])
    pump.run()
    assert Told.seen == []
    pump.now = 1.0
    pump.run()
    assert sum(count for _, (_, count) in Told.seen) == 3
    assert sorted(task for _, (task, _) in Told.seen) == [3, 4]
    pump.now = 2.0
    pump.run()
    assert sum(count for _, (_, count) in Told.seen[2:]) == 0


def test_a_task_that_was_busy_for_several_periods_has_one_tick():
    pump = Pump(windowed())
    pump.now = 5.0
    pump.run()
    assert sorted(task for _, (task, _) in Told.seen) == [3, 4]


def test_a_tick_says_what_it_is():
    class Describe(BasicBolt):
        output_fields = "component string, stream string, task long, rate double"

        def execute(self, tup, collector):
            collector.emit(
                [tup.source_component, tup.source_stream, tup.source_task, tup["rate_secs"]]
            )

    pump = Pump(windowed(Describe(), every=5))
    pump.now = 5.0
    pump.run()
    assert Told.seen == 2 * [("windows", ["__system", "__tick", -1, 5.0])]


@pytest.mark.parametrize("call", ["ack", "fail", "reset_timeout", "raise"])
def test_what_a_bolt_does_with_a_tick_concerns_no_message(call):
    class Does(Bolt):
        def execute(self, tup, collector):
            if call == "raise":
                raise ValueError("no ticks, please")
            if tup.is_tick:
                getattr(collector, call)(tup)
            else:
                self.held = tup

    builder = TopologyBuilder("does")
    builder.set_spout("words", Source())
    builder.set_bolt("does", Does(), config={"tick_tuple_freq_secs": 1}).shuffle_grouping("words")
    pump = Pump(builder.build())
    if call != "raise":
        pump.feed(["a word"])
    pump.now = 1.0
    pump.run()
    assert (pump.acked, pump.failed, pump.reset) == ([], {}, [])
    assert pump.ledger.pending() == (call != "raise")
    assert [unplaced(error.message) for error in pump.metrics.errors()] == (
        ["ValueError: no ticks, please"] if call == "raise" else []
    )


@pytest.mark.parametrize("call", ["ack", "fail", "reset_timeout"])
def test_what_a_bolt_held_is_acked_on_a_tick_that_comes_alone(call):
    class Holds(Bolt):
        def prepare(self, config, context):
            self.words = []

        def execute(self, tup, collector):
            if not tup.is_tick:
                self.words.append(tup)
                return
            for word in self.words:
                getattr(collector, call)(word)

    builder = TopologyBuilder("holds")
    builder.set_spout("words", Source())
    builder.set_bolt("holds", Holds(), config={"tick_tuple_freq_secs": 1}).shuffle_grouping("words")
    pump = Pump(builder.build())
    roots = pump.feed(["one"], ["two"])
    pump.run()
    pump.now = 1.0
    pump.run()
    told = {
        "ack": sorted(pump.acked),
        "fail": sorted(pump.failed),
        "reset_timeout": sorted(pump.reset),
    }
    assert told.pop(call) == sorted(roots)
    assert list(told.values()) == [[], []]
    assert pump.metrics.errors() == [], "a tick that is not acked is nobody's loss"


def test_a_queue_sink_publishes_no_ticks():
    builder = TopologyBuilder("sink", Config(tick_tuple_freq_secs=1))
    builder.set_spout("words", Source())
    builder.set_bolt("sink", QueueSink("nowhere")).shuffle_grouping("words")
    pump = Pump(builder.build())
    pump.around.config["amqp_url"] = "amqp://127.0.0.1:1"
    pump.now = 1.0
    pump.run()
    pump.attempts[2].close()
    assert pump.metrics.totals()["sink"][2]["acked"] == 1
    assert pump.metrics.errors() == []


class ArrowWindows(ArrowBolt):
    """Emits at each tick how many rows came since the last one."""

    output_fields = "count long"
    count = 0

    def execute(self, batch, collector):
        if collector.is_tick:
            collector.emit({"count": [self.count]}, [0])
            self.count = 0
        else:
            self.count += batch.num_rows


def test_a_bolt_over_batches_has_its_tick_by_itself_after_the_rows_of_the_step():
    pump = Pump(windowed(ArrowWindows()))
    for second, words in enumerate((["one", "two", "three"], [], ["four"]), start=1):
        pump.feed(*([word] for word in words))
        pump.now = float(second)
        pump.run()
    # The first bolt passes its words on before the task with the tick reads its clock, so they are
    # in time for the tick.
    counts = [count for _, (count,) in Told.seen]
    assert [sum(counts[at : at + 2]) for at in (0, 2, 4)] == [3, 0, 1]
    assert len(pump.acked) == 4
    assert not pump.failed
