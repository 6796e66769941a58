"""Several streams, and their receivers."""

from types import MappingProxyType

from tests.semantics.components import Acking, Pass, Telling, feeding, outcome
from tiercel import BasicBolt, Bolt, TopologyBuilder
from tiercel.testing import FeederSpout


class Sorting(BasicBolt):
    """Emits even and odd numbers on separate streams, one without subscribers, and a direct one."""

    output_streams = MappingProxyType(
        {"even": "x long", "odd": "x long, name string", "nobody": "x long", "own": "x long"}
    )
    direct_streams = frozenset({"own"})

    def __init__(self, chosen):
        self.chosen = chosen

    def execute(self, tup, collector):
        if tup["x"] % 2:
            collector.emit([tup["x"], f"number {tup['x']}"], stream="odd")
        else:
            collector.emit([tup["x"]], stream="even")
        collector.emit([-tup["x"]], stream="nobody")
        collector.emit_direct(self.chosen, [tup["x"]], stream="own")


def test_each_stream_goes_to_its_subscribers_and_each_of_them_has_a_copy_of_its_own(cluster_of):
    feeder = FeederSpout(streams={"in": "x long", "other": "word string"})
    for number in range(4):
        feeder.feed([number], number, stream="in")
    feeder.feed(["to nobody"], "nobody", stream="other")
    builder = TopologyBuilder("streams")
    builder.set_spout("s", feeder)
    builder.set_bolt("sorting", Sorting(chosen=4)).shuffle_grouping("s", "in")
    builder.set_bolt("chosen", Telling(), parallelism=2).direct_grouping("sorting", "own")
    builder.set_bolt("evens", Telling()).shuffle_grouping("sorting", "even")
    both = builder.set_bolt("both", Telling(), parallelism=2)
    both.shuffle_grouping("sorting", "even").shuffle_grouping("sorting", "odd").all_grouping(
        "s", "in"
    )
    topology = builder.build()
    assert list(topology.task_ids("chosen")) == [3, 4]
    cluster = cluster_of(topology)
    cluster.run_until_idle()
    assert outcome(cluster) == ([0, 1, 2, 3, "nobody"], [], 0)
    assert cluster.read_tuples("s", "other") == [["to nobody"]]
    assert sorted(cluster.read_tuples("sorting", "even")) == [[0], [2]]
    assert sorted(cluster.read_tuples("sorting", "odd")) == [[1, "number 1"], [3, "number 3"]]
    assert sorted(cluster.read_tuples("sorting", "nobody")) == [[-3], [-2], [-1], [0]]
    assert sorted(cluster.read_tuples("sorting", "own")) == [[0], [1], [2], [3]]
    assert sorted(cluster.read_tuples("chosen")) == [
        [4, "sorting", "own", 2, str(x)] for x in range(4)
    ]
    assert sorted(cluster.read_tuples("evens")) == [
        [5, "sorting", "even", 2, "0"],
        [5, "sorting", "even", 2, "2"],
    ]
    found = sorted(row[1:] for row in cluster.read_tuples("both"))
    expected = [["s", "in", 1, str(x)] for x in range(4) for _ in range(2)]
    expected += [["sorting", "even", 2, str(x)] for x in (0, 2)] + [
        ["sorting", "odd", 2, str(x)] for x in (1, 3)
    ]
    assert found == sorted(expected)


class Picky(Bolt):
    """Acks the tuples of only one of two copies."""

    def prepare(self, config, context):
        self.component = context.component

    def execute(self, tup, collector):
        if self.component == "first" or tup["x"] != 2:
            collector.ack(tup)
        else:
            collector.fail(tup, "not two")


def test_a_message_needs_the_copies_of_all_subscribers(cluster_of):
    builder = TopologyBuilder("copies")
    builder.set_spout("s", feeding(1, 2))
    for component in ("first", "second"):
        builder.set_bolt(component, Picky()).shuffle_grouping("s")
    cluster = cluster_of(builder.build())
    cluster.run_until_idle()
    assert outcome(cluster) == ([1], [2], 0)
    assert cluster.fail_reasons("s") == ["second[3]: not two"]


class Asking(BasicBolt):
    """Emits the tasks that its emissions went to."""

    output_streams = MappingProxyType({"default": "x long", "told": "tasks array<int>"})

    def execute(self, tup, collector):
        collector.emit([collector.emit([tup[0]])], stream="told")


def test_emit_returns_the_tasks_that_receive_the_tuple(cluster_of_basic):
    builder = TopologyBuilder("asking")
    builder.set_spout("s", feeding(1))
    builder.set_bolt("asking", Asking()).shuffle_grouping("s")
    builder.set_bolt("all", Pass(), parallelism=3).all_grouping("asking")
    builder.set_bolt("one", Acking(), parallelism=2).global_grouping("asking")
    cluster = cluster_of_basic(builder.build())
    cluster.run_until_idle()
    [[tasks]] = cluster.read_tuples("asking", "told")
    assert tasks[:-1] == [3, 4, 5, 6], "the last one is the kit's own"
