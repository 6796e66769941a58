"""Trees: which tuples belong to a message, and when its tree is complete."""

from collections import Counter

import pytest

from tests.semantics.components import Acking, Failing, Pass, Silent, Split, chain, feeding, outcome
from tests.support.reasons import unplaced
from tiercel import BasicBolt, Bolt, TopologyBuilder


class Join(Bolt):
    """Emits one tuple anchored to all tuples of the step."""

    output_fields = "x long"

    def prepare(self, config, context):
        self.waiting = []

    def execute(self, tup, collector):
        self.waiting.append(tup)

    def flush(self, collector):
        collector.emit([sum(tup[0] for tup in self.waiting)], anchors=self.waiting)
        for tup in self.waiting:
            collector.ack(tup)
        self.waiting = []


@pytest.mark.parametrize("end", [Pass, Failing, Silent])
def test_a_tuple_anchored_to_several_is_in_the_trees_of_all(cluster_of, end):
    builder = TopologyBuilder("join")
    builder.set_spout("left", feeding(0, 1, 2))
    builder.set_spout("right", feeding(10, 11))
    builder.set_bolt("join", Join()).global_grouping("left").global_grouping("right")
    builder.set_bolt("end", end()).shuffle_grouping("join")
    cluster = cluster_of(builder.build())
    cluster.run_until_idle()
    assert cluster.read_tuples("join") == [[24]]
    expected = {
        Pass: [([0, 1, 2], [], 0), ([10, 11], [], 0)],
        Failing: [([], [0, 1, 2], 0), ([], [10, 11], 0)],
        Silent: [([], [], 3), ([], [], 2)],
    }[end]
    assert [outcome(cluster, "left"), outcome(cluster, "right")] == expected
    if end is Failing:
        assert {unplaced(reason).partition(": ")[2] for reason in cluster.fail_reasons("left")} == {
            "ValueError: no 24"
        }


class Maybe(Bolt):
    """Acks even numbers only."""

    def execute(self, tup, collector):
        if tup[0] % 2 == 0:
            collector.ack(tup)


def test_a_diamond_is_acked_when_all_its_ways_are_done_and_not_before(cluster_of):
    builder = TopologyBuilder("diamond")
    builder.set_spout("s", feeding(0, 1, 2, 3))
    builder.set_bolt("left", Pass(), parallelism=2).shuffle_grouping("s")
    builder.set_bolt("right", Pass(), parallelism=2).all_grouping("s")
    builder.set_bolt("longer", Pass()).shuffle_grouping("right")
    join = builder.set_bolt("join", Acking(), parallelism=2)
    join.fields_grouping("left", "x").fields_grouping("longer", "x").fields_grouping("s", "x")
    builder.set_bolt("end", Maybe()).shuffle_grouping("longer")
    cluster = cluster_of(builder.build())
    cluster.run_until_idle()
    assert sorted(cluster.read_tuples("longer")) == [[x] for x in (0, 0, 1, 1, 2, 2, 3, 3)]
    assert outcome(cluster) == ([0, 2], [], 2)


class Repeating(Bolt):
    """Emits each number as often as it says, anchored to its tuple."""

    output_fields = "x long"

    def execute(self, tup, collector):
        collector.emit([tup[0]], anchors=[tup] * tup[0])
        collector.ack(tup)


def test_the_same_anchor_several_times_is_one_tree_that_stays_whole(cluster_of):
    cluster = cluster_of(chain(feeding(1, 2, 3, 4), Repeating(), Maybe()))
    cluster.run_until_idle()
    assert outcome(cluster) == ([2, 4], [], 2)


class Counting(Bolt):
    """Emits the number of tuples in the step; fails words that ask for it."""

    output_fields = "task int, n long"

    def prepare(self, config, context):
        self.task = context.task_id
        self.count = 0

    def execute(self, tup, collector):
        self.count += 1
        if tup["word"] == "bad":
            collector.fail(tup, "a bad word")
        else:
            collector.ack(tup)

    def flush(self, collector):
        collector.emit([self.task, self.count])
        self.count = 0


def test_a_tree_may_have_a_hundred_thousand_tuples_and_one_that_fails_is_enough(cluster_of_basic):
    """A ``Bolt`` counts them, because other kinds would only split the lines."""
    good = " ".join(map(str, range(100_000)))
    bad = " ".join([*map(str, range(99_999)), "bad"])
    builder = TopologyBuilder("wide")
    builder.set_spout("s", feeding(good, bad, fields="line string"))
    builder.set_bolt("split", Split()).shuffle_grouping("s")
    builder.set_bolt("count", Counting(), parallelism=2).shuffle_grouping("split")
    cluster = cluster_of_basic(builder.build())
    cluster.run_until_idle()
    assert outcome(cluster) == ([good], [bad], 0)
    shares = Counter()
    for task, n in cluster.read_tuples("count"):
        shares[task] += n
    assert sum(shares.values()) == 200_000


class Deep(BasicBolt):
    output_fields = "x long, depth int"

    def execute(self, tup, collector):
        if tup["x"] == 13 and len(tup) > 1 and tup["depth"] == 11:
            raise ValueError("unlucky")
        collector.emit([tup["x"], tup["depth"] + 1 if len(tup) > 1 else 1])


def test_a_tree_may_be_twelve_levels_deep(cluster_of):
    cluster = cluster_of(chain(feeding(12, 13), *[Deep() for _ in range(12)]))
    cluster.run_until_idle()
    assert cluster.read_tuples("b12") == [[12, 12]]
    assert outcome(cluster) == ([12], [13], 0)
    assert "ValueError: unlucky" in cluster.fail_reasons("s")[0]


class Loose(Bolt):
    """Emits without an anchor."""

    output_fields = "x long"

    def execute(self, tup, collector):
        collector.emit([tup[0]])
        collector.ack(tup)


def test_an_unanchored_tuple_is_processed_and_does_not_hold_or_fail_the_message(cluster_of):
    builder = TopologyBuilder("loose")
    builder.set_spout("s", feeding(1, 2))
    builder.set_bolt("loose", Loose()).shuffle_grouping("s")
    builder.set_bolt("silent", Silent()).shuffle_grouping("loose")
    builder.set_bolt("failing", Failing()).shuffle_grouping("loose")
    cluster = cluster_of(builder.build())
    cluster.run_until_idle()
    assert outcome(cluster) == ([1, 2], [], 0)
    assert sorted(cluster.read_tuples("loose")) == [[1], [2]]


def test_a_tuple_without_message_id_is_processed_and_its_spout_hears_nothing(cluster_of):
    builder = TopologyBuilder("untracked")
    builder.set_spout("s", feeding(1, 2, tracked=False))
    builder.set_bolt("pass", Pass()).shuffle_grouping("s")
    builder.set_bolt("failing", Failing()).shuffle_grouping("pass")
    cluster = cluster_of(builder.build())
    cluster.advance_time(60)
    assert sorted(cluster.read_tuples("pass")) == [[1], [2]]
    assert outcome(cluster) == ([], [], 0)


def test_a_tuple_that_nobody_receives_is_acked(cluster_of):
    builder = TopologyBuilder("alone")
    builder.set_spout("s", feeding(1))
    builder.set_spout("alone", feeding(2))
    builder.set_bolt("pass", Pass()).shuffle_grouping("s")
    cluster = cluster_of(builder.build())
    cluster.run_until_idle()
    assert outcome(cluster, "alone") == ([2], [], 0)


class Halve(BasicBolt):
    """Sends halves of a number back to itself through another bolt, until they are 1."""

    output_fields = "x long"

    def execute(self, tup, collector):
        if tup[0] > 1:
            collector.emit([tup[0] // 2])
            collector.emit([tup[0] - tup[0] // 2])


def test_tuples_may_go_round_until_a_bolt_ends_it(cluster_of):
    builder = TopologyBuilder("round")
    builder.set_spout("s", feeding(1, 16, 37))
    builder.set_bolt("halve", Halve(), parallelism=2).shuffle_grouping("s").shuffle_grouping("back")
    builder.set_bolt("back", Pass(), parallelism=2).shuffle_grouping("halve")
    cluster = cluster_of(builder.build())
    cluster.run_until_idle()
    assert outcome(cluster) == ([1, 16, 37], [], 0)
    assert [row[0] for row in cluster.read_tuples("back")].count(1) == 16 + 37
