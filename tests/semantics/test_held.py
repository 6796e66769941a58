"""Tuples that a bolt holds across steps: joins, windows, and their outcomes."""

import threading

from tests.semantics.components import Acking, chain, feeding, outcome
from tests.support.waiting import wait_until
from tiercel import Bolt, Config, TopologyBuilder


class Join(Bolt):
    """Emits one output for a left and a right tuple with the same number, anchored to both."""

    output_fields = "number long, pairs long"

    def __init__(self):
        self.waiting = {}
        self.pairs = 0

    def execute(self, tup, collector):
        other = self.waiting.pop(tup["x"], None)
        if other is None:
            self.waiting[tup["x"]] = tup
            return
        self.pairs += 1
        collector.emit([tup["x"], self.pairs], [other, tup])
        collector.ack(other)
        collector.ack(tup)


def test_a_join_over_two_spouts_and_many_steps(cluster_of):
    left = feeding(0, 1, 2, 3)
    right = feeding(9)
    builder = TopologyBuilder("join")
    builder.set_spout("left", left)
    builder.set_spout("right", right)
    join = builder.set_bolt("join", Join(), parallelism=2)
    join.fields_grouping("left", "x").fields_grouping("right", "x")
    builder.set_bolt("end", Acking()).shuffle_grouping("join")
    cluster = cluster_of(builder.build())
    cluster.run_until_idle()
    assert outcome(cluster, "left") == ([], [], 4)
    for number in (2, 0, 3):
        right.feed([number], number)
        cluster.run_until_idle()
        assert cluster.acked("right")[-1] == number
    assert outcome(cluster, "left") == ([2, 0, 3], [], 1)
    assert outcome(cluster, "right") == ([2, 0, 3], [], 1)
    assert sorted(number for number, _ in cluster.read_tuples("join")) == [0, 2, 3]
    tasks = {}
    for number, pairs in cluster.read_tuples("join"):
        tasks.setdefault(pairs, []).append(number)
    assert max(tasks) >= 2, "each task counts its pairs from step to step"


class Window(Bolt):
    """Emits the sum of the tuples since the last tick, anchored to them.

    Acks the tuples that leave the window.
    """

    output_fields = "total long, size long"

    def prepare(self, config, context):
        self.window = []

    def execute(self, tup, collector):
        if not tup.is_tick:
            self.window.append(tup)
            return
        if self.window:
            collector.emit([sum(each["x"] for each in self.window), len(self.window)], self.window)
        for each in self.window:
            collector.ack(each)
        self.window = []


def test_a_window_is_emitted_at_a_tick_and_its_tuples_are_acked_then(cluster_of):
    feeder = feeding(1, 2)
    builder = TopologyBuilder("window")
    builder.set_spout("s", feeder)
    builder.set_bolt("window", Window(), config={"tick_tuple_freq_secs": 5}).shuffle_grouping("s")
    builder.set_bolt("end", Acking()).shuffle_grouping("window")
    cluster = cluster_of(builder.build())
    cluster.advance_time(2)
    feeder.feed([3], 3)
    cluster.advance_time(2)
    assert outcome(cluster) == ([], [], 3)
    cluster.advance_time(1)
    assert cluster.read_tuples("window") == [[6, 3]]
    assert outcome(cluster) == ([1, 2, 3], [], 0)
    feeder.feed([4], 4)
    cluster.advance_time(5)
    assert cluster.read_tuples("window") == [[6, 3], [4, 1]]
    assert outcome(cluster) == ([1, 2, 3, 4], [], 0)


class Holding(Bolt):
    """Holds all tuples, and drops them at the second tick after their messages were given up."""

    def prepare(self, config, context):
        self.held = []
        self.ticks = 0

    def execute(self, tup, collector):
        if tup.is_tick:
            self.ticks += 1
            if self.ticks == 4:
                for each in self.held:
                    collector.ack(each)
                self.held = []
        else:
            self.held.append(tup)


def test_a_held_tuple_times_out_with_its_message_and_its_late_ack_changes_nothing(cluster_of):
    feeder = feeding(1)
    config = Config(message_timeout_secs=30, tick_tuple_freq_secs=10)
    cluster = cluster_of(chain(feeder, Holding()), config)
    cluster.advance_time(29)
    assert outcome(cluster) == ([], [], 1)
    cluster.advance_time(1)
    assert outcome(cluster) == ([], [1], 0)
    cluster.advance_time(20)
    assert outcome(cluster) == ([], [1], 0)


class Resetting(Bolt):
    """Holds its tuples for six ticks, and resets their timeouts at each."""

    def prepare(self, config, context):
        self.held = []

    def execute(self, tup, collector):
        if not tup.is_tick:
            self.held.append([tup, 0])
            return
        for each in list(self.held):
            each[1] += 1
            if each[1] == 6:
                collector.ack(each[0])
                self.held.remove(each)
            else:
                collector.reset_timeout(each[0])


def test_the_timeout_of_a_held_tuple_can_be_reset_for_as_long_as_it_takes(cluster_of):
    config = Config(message_timeout_secs=15, tick_tuple_freq_secs=10)
    cluster = cluster_of(chain(feeding(1), Resetting()), config)
    cluster.advance_time(59)
    assert outcome(cluster) == ([], [], 1)
    cluster.advance_time(1)
    assert outcome(cluster) == ([1], [], 0)


class Aborting(Bolt):
    """Gathers three tuples; the flush of a step with a 13 fails."""

    output_fields = "total long"

    def prepare(self, config, context):
        self.held = []
        self.unlucky = False

    def execute(self, tup, collector):
        self.unlucky = tup["x"] == 13
        self.held.append(tup)
        if len(self.held) == 3:
            collector.emit([sum(each["x"] for each in self.held)], self.held)
            for each in self.held:
                collector.ack(each)
            self.held = []

    def flush(self, collector):
        if self.unlucky:
            raise ConnectionError("gone")


def test_a_flush_that_fails_undoes_the_step_and_leaves_what_was_held(cluster_of):
    feeder = feeding(1, 2)
    builder = TopologyBuilder("abort")
    builder.set_spout("s", feeder)
    builder.set_bolt("gather", Aborting()).shuffle_grouping("s")
    builder.set_bolt("end", Acking()).shuffle_grouping("gather")
    cluster = cluster_of(builder.build())
    cluster.run_until_idle()
    feeder.feed([13], 13)
    cluster.run_until_idle()
    assert outcome(cluster) == ([], [13], 2)
    assert cluster.read_tuples("gather") == []
    feeder.feed([3], 3)
    cluster.run_until_idle()
    assert outcome(cluster) == ([1, 2, 3], [13], 0)
    assert cluster.read_tuples("gather") == [[6]]


class Later(Bolt):
    """Emits and acks from a thread, a moment later."""

    output_fields = "x long"

    def execute(self, tup, collector):
        def answer():
            collector.emit([tup["x"]], tup)
            collector.ack(tup)

        threading.Timer(0.3, answer).start()


def test_an_emission_of_a_thread_moves_on_though_nothing_is_fed(cluster_of_basic):
    cluster = cluster_of_basic(chain(feeding(7), Later(), Acking()))

    def acked():
        cluster.run_until_idle()
        return cluster.acked("s")

    assert wait_until(acked) == [7]
