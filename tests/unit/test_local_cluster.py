"""The test kit: a topology on the ledger in memory and on simulated time does what the real one does."""

import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from types import MappingProxyType

import pytest

from acker import MemoryLedger
from queues import QueueSpout, Spout
from spark_jobs import BasicBolt, Bolt, Config, TopologyBuilder
from spark_jobs.errors import BadValuesError, DirectStreamError, TopologyError, UnknownStreamError
from spark_jobs.testing import FeederSpout, LocalCluster, LocalClusterError, complete_topology, feeder_for, with_spouts

TIMEOUT = 30


class Split(BasicBolt):
    output_fields = "word string"

    def execute(self, tup, collector):
        for word in tup["sentence"].split():
            if word == "bad":
                raise ValueError("a bad word")
            collector.emit([word])


class Count(BasicBolt):
    output_fields = "word string, n long"

    def prepare(self, config, context):
        self.counts = Counter()

    def execute(self, tup, collector):
        self.counts[tup["word"]] += 1
        collector.emit([tup["word"], self.counts[tup["word"]]])


class Pass(BasicBolt):
    output_fields = "x long"

    def execute(self, tup, collector):
        collector.emit([tup[0]])


class Silent(Bolt):
    """Neither acks nor fails."""

    def execute(self, tup, collector):
        pass


class By(Bolt):
    """Does with each tuple what the test says."""

    output_fields = "x long"

    def __init__(self, do):
        self.do = do

    def execute(self, tup, collector):
        self.do(tup, collector)


class ReliableSentenceSpout(Spout):
    """The reference documents': a map of what is pending, and another emit for what failed."""

    output_fields = "sentence string"
    sentences = ("my dog has fleas", "bad", "don't have a cow man")

    def open(self, config, context):
        self.pending = {}
        self.index = 0
        self.threads = set()

    def next_tuple(self, collector):
        self.collector = collector
        self.threads.add(threading.get_ident())
        if self.index < len(self.sentences):
            self.pending[self.index] = [self.sentences[self.index]]
            collector.emit(self.pending[self.index], msg_id=self.index)
            self.index += 1

    def ack(self, msg_id):
        del self.pending[msg_id]

    def fail(self, msg_id):
        self.pending[msg_id] = [self.pending[msg_id][0].replace("bad", "good")]
        self.collector.emit(self.pending[msg_id], msg_id=msg_id)


def word_count(spout, **bolts):
    builder = TopologyBuilder("words")
    builder.set_spout("sentences", spout, parallelism=bolts.get("spouts", 1))
    builder.set_bolt("split", bolts.get("split", Split()), parallelism=2).shuffle_grouping("sentences")
    builder.set_bolt("count", Count(), parallelism=3).fields_grouping("split", "word")
    return builder.build()


def chain(feeder, *bolts, config=None):
    """The bolts in a row, b1 first."""
    builder = TopologyBuilder("chain", config or Config(message_timeout_secs=TIMEOUT))
    builder.set_spout("s", feeder)
    for number, bolt in enumerate(bolts, 1):
        builder.set_bolt(f"b{number}", bolt).shuffle_grouping(f"b{number - 1}" if number > 1 else "s")
    return builder.build()


def numbers(*, upto, tracked=True):
    feeder = FeederSpout(fields="x long")
    for number in range(upto):
        feeder.feed([number], number if tracked else None)
    return feeder


@pytest.mark.parametrize("max_lanes", [1, 2, 7])
def test_words_are_counted_on_any_number_of_lanes(max_lanes):
    feeder = FeederSpout(fields="sentence string")
    with LocalCluster(word_count(feeder), max_lanes=max_lanes) as cluster:
        for number in range(20):
            feeder.feed(["the cat and the dog"], number)
        cluster.settle()
        assert Counter(word for [word] in cluster.read_tuples("split")) == {"the": 40, "cat": 20, "and": 20, "dog": 20}
        # Each count of a word comes once, so all of a word went to one task.
        assert sorted(n for word, n in cluster.read_tuples("count") if word == "the") == list(range(1, 41))
        assert cluster.acked("sentences") == list(range(20))
        assert cluster.failed("sentences") == []
        assert cluster.pending("sentences") == 0


def test_a_cluster_settles_again_and_again():
    feeder = FeederSpout(fields="sentence string")
    with LocalCluster(word_count(feeder)) as cluster:
        for number in range(3):
            feeder.feed(["again"], number)
            cluster.settle()
        assert cluster.read_tuples("count") == [["again", 1], ["again", 2], ["again", 3]]
        assert cluster.acked("sentences") == [0, 1, 2]


def test_acks_and_fails_come_in_the_order_of_emission_with_the_reason():
    feeder = FeederSpout(fields="sentence string")
    with LocalCluster(word_count(feeder)) as cluster:
        for msg_id, sentence in zip("edcba", ["one", "two bad", "three", "bad", "five"], strict=True):
            feeder.feed([sentence], msg_id)
        cluster.settle()
        assert cluster.acked("sentences") == ["e", "c", "a"]
        assert cluster.failed("sentences") == ["d", "b"]
        assert {reason.partition(": ")[2] for reason in cluster.fail_reasons("sentences")} == {"ValueError: a bad word"}
        assert ["two"] not in cluster.read_tuples("split"), "what a BasicBolt emitted for a failed tuple is dropped"


def test_a_tuple_times_out_exactly_at_the_message_timeout():
    feeder = numbers(upto=1)
    with LocalCluster(chain(feeder, Silent())) as cluster:
        cluster.settle()
        assert cluster.pending("s") == 1
        for _ in range(TIMEOUT * 10 - 1):
            cluster.advance_time(0.1)
        cluster.advance_time(0.099999)
        assert (cluster.failed("s"), cluster.pending("s")) == ([], 1)
        cluster.advance_time(0.000001)
        assert (cluster.failed("s"), cluster.pending("s")) == ([0], 0)
        assert cluster.fail_reasons("s") == ["timeout"]


def test_a_timeout_begins_when_the_tuple_is_emitted():
    feeder = numbers(upto=1)
    with LocalCluster(chain(feeder, Silent())) as cluster:
        cluster.advance_time(20)
        feeder.feed([1], 1)
        cluster.advance_time(10)
        assert cluster.failed("s") == [0]
        cluster.advance_time(20)
        assert cluster.failed("s") == [0, 1]


def test_what_a_spout_replays_at_a_timeout_times_out_one_timeout_later():
    class Replaying(ReliableSentenceSpout):
        sentences = ("bad",)

        def fail(self, msg_id):
            self.collector.emit(self.pending[msg_id], msg_id=msg_id)

    with LocalCluster(chain(Replaying(), Silent())) as cluster:
        cluster.advance_time(3 * TIMEOUT - 0.001)
        assert cluster.failed("s") == [0, 0]
        cluster.advance_time(0.001)
        assert cluster.failed("s") == [0, 0, 0]
        assert len(cluster.read_tuples("s")) == 4


def test_a_reset_timeout_begins_again():
    bolt = By(lambda tup, collector: collector.reset_timeout(tup))
    feeder = numbers(upto=1)
    with LocalCluster(chain(feeder, bolt)) as cluster:
        cluster.settle()
        cluster.advance_time(TIMEOUT)
        assert cluster.failed("s") == [0]


def test_without_timeouts_a_tuple_stays_pending_for_ever():
    with LocalCluster(chain(numbers(upto=1), Silent()), config=Config(enable_message_timeouts=False)) as cluster:
        cluster.advance_time(1e6)
        assert (cluster.failed("s"), cluster.pending("s")) == ([], 1)


def test_a_spout_of_the_users_own_replays_what_failed_on_one_thread():
    with LocalCluster(word_count(ReliableSentenceSpout())) as cluster:
        cluster.settle()
        assert sorted(cluster.acked("sentences")) == [0, 1, 2]
        assert cluster.failed("sentences") == [1]
        assert ["good", 1] in cluster.read_tuples("count")
        assert cluster.spout("sentences").pending == {}
        assert cluster.spout("sentences").threads == {threading.get_ident()}


def test_each_task_of_a_spout_is_told_of_its_own_tuples():
    with LocalCluster(word_count(ReliableSentenceSpout(), spouts=3)) as cluster:
        cluster.settle()
        assert Counter(cluster.acked("sentences")) == {0: 3, 1: 3, 2: 3}
        assert [cluster.spout("sentences", index).pending for index in range(3)] == [{}, {}, {}]


def test_the_parts_of_a_spouts_life_come_in_order():
    calls = []

    class Recording(Spout):
        output_fields = "x long"

        def __deepcopy__(self, memo):
            return self

        def next_tuple(self, collector):
            if "emitted" not in calls:
                calls.append("emitted")
                collector.emit([1], msg_id="m")

    for name in ("open", "activate", "ack", "fail", "release", "deactivate", "close"):
        setattr(Recording, name, lambda self, *args, name=name: calls.append(name))
    with LocalCluster(chain(Recording(), Silent())) as cluster:
        cluster.settle()
    assert calls == ["open", "activate", "emitted", "deactivate", "release", "close"]


def test_a_diamond_is_acked_when_both_of_its_ways_are_done():
    feeder = numbers(upto=5)
    done = By(lambda tup, collector: collector.ack(tup))
    builder = TopologyBuilder("diamond")
    builder.set_spout("s", feeder)
    builder.set_bolt("left", Pass(), parallelism=2).shuffle_grouping("s")
    builder.set_bolt("right", Pass()).all_grouping("s")
    builder.set_bolt("longer", Pass()).shuffle_grouping("right")
    builder.set_bolt("join", done, parallelism=2).fields_grouping("left", "x").fields_grouping("longer", "x")
    with LocalCluster(builder.build()) as cluster:
        cluster.settle()
        assert cluster.acked("s") == [0, 1, 2, 3, 4]
        assert sorted(cluster.read_tuples("longer")) == [[0], [1], [2], [3], [4]]


def test_a_diamond_with_one_way_that_never_ends_stays_pending():
    feeder = numbers(upto=1)
    builder = TopologyBuilder("diamond")
    builder.set_spout("s", feeder)
    builder.set_bolt("left", Pass()).shuffle_grouping("s")
    builder.set_bolt("right", Silent()).shuffle_grouping("s")
    with LocalCluster(builder.build()) as cluster:
        cluster.settle()
        assert (cluster.acked("s"), cluster.pending("s")) == ([], 1)


def emit_and_ack(anchors_of):
    def do(tup, collector):
        collector.emit([tup[0]], anchors=anchors_of(tup))
        collector.ack(tup)

    return By(do)


def test_the_same_anchor_twice_is_one_tree():
    with LocalCluster(chain(numbers(upto=3), emit_and_ack(lambda tup: [tup, tup]), Pass())) as cluster:
        cluster.settle()
        assert cluster.acked("s") == [0, 1, 2]


def test_the_same_anchor_twice_holds_the_tree_open():
    with LocalCluster(chain(numbers(upto=1), emit_and_ack(lambda tup: [tup, tup]), Silent())) as cluster:
        cluster.settle()
        assert (cluster.acked("s"), cluster.pending("s")) == ([], 1)


def test_an_unanchored_tuple_does_not_hold_the_message_and_is_seen():
    with LocalCluster(chain(numbers(upto=2), emit_and_ack(lambda _: ()), Silent())) as cluster:
        cluster.settle()
        assert cluster.acked("s") == [0, 1]
        assert cluster.read_tuples("b1") == [[0], [1]]


def test_a_tuple_without_message_id_is_processed_and_not_tracked():
    with LocalCluster(chain(numbers(upto=2, tracked=False), Pass())) as cluster:
        cluster.settle()
        assert cluster.read_tuples("b1") == [[0], [1]]
        assert (cluster.acked("s"), cluster.failed("s"), cluster.pending("s")) == ([], [], 0)


def test_without_ackers_a_tuple_is_acked_as_soon_as_it_is_on_its_way():
    with LocalCluster(chain(numbers(upto=2), Pass(), Silent()), config=Config(ackers=0)) as cluster:
        cluster.advance_time(10 * TIMEOUT)
        assert (cluster.acked("s"), cluster.failed("s"), cluster.pending("s")) == ([0, 1], [], 0)
        assert cluster.read_tuples("b1") == [[0], [1]]


@pytest.mark.parametrize("ended", [True, False])
def test_a_join_within_a_micro_batch_is_anchored_to_all_its_inputs(ended):
    class Join(Bolt):
        output_fields = "x long"

        def prepare(self, config, context):
            self.held = []

        def execute(self, tup, collector):
            self.held.append(tup)

        def flush(self, collector):
            collector.emit([sum(tup[0] for tup in self.held)], anchors=self.held)
            for tup in self.held:
                collector.ack(tup)
            self.held = []

    left, right = numbers(upto=3), numbers(upto=2)
    builder = TopologyBuilder("join")
    builder.set_spout("left", left)
    builder.set_spout("right", right)
    builder.set_bolt("join", Join()).global_grouping("left").global_grouping("right")
    builder.set_bolt("end", Pass() if ended else Silent()).shuffle_grouping("join")
    with LocalCluster(builder.build()) as cluster:
        cluster.settle()
        assert cluster.read_tuples("join") == [[0 + 1 + 2 + 0 + 1]]
        expected = ([0, 1, 2], [0, 1]) if ended else ([], [])
        assert (cluster.acked("left"), cluster.acked("right")) == expected
        cluster.advance_time(TIMEOUT)
        assert (cluster.failed("left"), cluster.failed("right")) == (([], []) if ended else ([0, 1, 2], [0, 1]))


def test_a_spout_has_at_most_max_spout_pending_trees_in_flight():
    with LocalCluster(chain(numbers(upto=5), Silent()), config=Config(max_spout_pending=2)) as cluster:
        cluster.settle()
        assert (cluster.pending("s"), cluster.read_tuples("s")) == (2, [[0], [1]])
        cluster.advance_time(TIMEOUT)
        assert (cluster.pending("s"), cluster.failed("s")) == (2, [0, 1])


def test_a_component_s_own_settings_lie_over_those_of_the_topology_and_of_the_cluster():
    told = {}

    class Asked(FeederSpout):
        def open(self, config, context):
            told[context.component] = (config["max_spout_pending"], config["colour"], config["message_timeout_secs"])

    class Asking(Bolt):
        def prepare(self, config, context):
            told[context.component] = (config["tick_tuple_freq_secs"], config["colour"], config["message_timeout_secs"])

        def execute(self, tup, collector):
            pass

    own, other = Asked("x long"), Asked("x long")
    builder = TopologyBuilder("own", Config(max_spout_pending=9))
    builder.set_spout("own", own, config={"max_spout_pending": 2, "colour": "red"})
    builder.set_spout("other", other)
    builder.set_bolt("bolt", Asking(), config={"colour": "blue"}).shuffle_grouping("own").shuffle_grouping("other")
    for feeder in (own, other):
        for number in range(5):
            feeder.feed([number], number)
    config = Config(max_spout_pending=3, message_timeout_secs=5, extra={"colour": "grey"})
    with LocalCluster(builder.build(), config) as cluster:
        cluster.settle()
        assert (cluster.pending("own"), cluster.pending("other")) == (2, 3)
    assert told == {"own": (2, "red", 5), "other": (3, "grey", 5), "bolt": (None, "blue", 5)}


def test_every_stream_can_be_read_also_a_direct_one_and_each_tuple_once():
    class Both(BasicBolt):
        output_streams = MappingProxyType({"seen": "x long", "own": "y string", "nobody": "z long"})
        direct_streams = frozenset({"own"})

        def prepare(self, config, context):
            assert context.targets == {"seen": ["everyone"], "own": ["chosen"], "nobody": []}

        def execute(self, tup, collector):
            collector.emit([tup[0]], stream="seen")
            collector.emit([-tup[0]], stream="nobody")
            collector.emit_direct(self.chosen, [f"to {self.chosen}"], stream="own")

    feeder, both = FeederSpout(streams={"in": "x long"}), Both()
    builder = TopologyBuilder("streams")
    builder.set_spout("s", feeder)
    builder.set_bolt("both", both).shuffle_grouping("s", "in")
    builder.set_bolt("everyone", Pass(), parallelism=3).all_grouping("both", "seen")
    builder.set_bolt("chosen", Silent(), parallelism=2).direct_grouping("both", "own")
    topology = builder.build()
    both.chosen = topology.task_ids("chosen")[1]
    with LocalCluster(topology) as cluster:
        feeder.feed([7], stream="in")
        cluster.settle()
        assert cluster.read_tuples("s", "in") == [[7]]
        assert cluster.read_tuples("both", "seen") == [[7]]
        assert cluster.read_tuples("both", "nobody") == [[-7]]
        assert cluster.read_tuples("both", "own") == [[f"to {both.chosen}"]]
        assert cluster.read_tuples("everyone") == [[7], [7], [7]]


def test_a_spout_names_the_task_on_a_direct_stream_and_may_emit_again_when_told_of_a_failure():
    class Dispatcher(Spout):
        output_streams = MappingProxyType({"default": "x long", "own": "x long"})
        direct_streams = frozenset({"own"})

        def open(self, config, context):
            self.chosen = context.component_tasks(context.targets["own"][0])
            self.left = 6

        def next_tuple(self, collector):
            self.collector = collector
            if self.left:
                self.left -= 1
                collector.emit_direct(self.chosen[self.left % 3], [self.left], msg_id=self.left, stream="own")

        def fail(self, msg_id):
            self.collector.emit([msg_id], msg_id=("again", msg_id))

    class Picky(Bolt):
        output_fields = "x long, task long"

        def prepare(self, config, context):
            self.task = context.task_id

        def execute(self, tup, collector):
            if tup.source_stream == "own":
                collector.emit([tup["x"], self.task], tup)
            if tup["x"] == 4 and tup.source_stream == "own":
                collector.fail(tup)
            else:
                collector.ack(tup)

    builder = TopologyBuilder("direct")
    builder.set_spout("s", Dispatcher())
    builder.set_bolt("picky", Picky(), parallelism=3).direct_grouping("s", "own").shuffle_grouping("s")
    topology = builder.build()
    first = topology.task_ids("picky")[0]
    with LocalCluster(topology) as cluster:
        cluster.settle()
        assert sorted(cluster.read_tuples("picky")) == [[x, first + x % 3] for x in range(6)]
        assert sorted(cluster.read_tuples("s", "own")) == [[x] for x in range(6)]
        assert cluster.failed("s") == [4]
        assert set(cluster.acked("s")) == {0, 1, 2, 3, 5, ("again", 4)}
        assert cluster.pending("s") == 0


def test_a_feeder_in_the_place_of_a_spout_with_a_direct_stream_is_fed_with_the_task():
    feeder = FeederSpout(streams={"own": "x long"}, direct_streams={"own"})
    builder = TopologyBuilder("direct")
    builder.set_spout("s", feeder)
    builder.set_bolt("b", Pass(), parallelism=2).direct_grouping("s", "own")
    topology = builder.build()
    feeder = feeder_for(topology, "s")
    with LocalCluster(with_spouts(topology, {"s": feeder})) as cluster:
        feeder.feed([7], msg_id="m", stream="own", task=topology.task_ids("b")[1])
        cluster.settle()
        assert (cluster.acked("s"), cluster.read_tuples("b")) == (["m"], [[7]])
    with pytest.raises(DirectStreamError, match="stream 'own' of the feeder is direct: name the task"):
        feeder.feed([7], stream="own")
    with pytest.raises(DirectStreamError, match="stream 'default' of the feeder is not direct: name no task"):
        FeederSpout("x long").feed([7], task=2)


def test_a_spout_that_never_runs_dry_is_run_step_by_step():
    class Endless(Spout):
        output_fields = "x long"

        def next_tuple(self, collector):
            collector.emit([1], msg_id="again")

    with LocalCluster(chain(Endless(), Pass()), config=Config(max_spout_pending=3)) as cluster:
        assert cluster.step()
        assert len(cluster.read_tuples("b1")) == 3
        with pytest.raises(LocalClusterError, match="still moves after 5 micro-batches"):
            cluster.settle(max_rounds=5)


def test_a_complete_topology_returns_what_each_component_emitted():
    topology = word_count(QueueSpout("sentences", fields="sentence string"))
    emitted = complete_topology(topology, mock_sources={"sentences": [["a b"], ["b"]]})
    assert emitted["sentences"] == [["a b"], ["b"]]
    assert sorted(emitted["split"]) == [["a"], ["b"], ["b"]]
    assert sorted(emitted["count"]) == [["a", 1], ["b", 1], ["b", 2]]


def test_a_complete_topology_does_not_hide_a_failure_unless_it_is_told_to():
    topology = word_count(FeederSpout(fields="sentence string"))
    with pytest.raises(LocalClusterError, match=r"1 tuples of 'sentences' failed.*ValueError: a bad word"):
        complete_topology(topology, {"sentences": [["bad"], ["fine"]]})
    emitted = complete_topology(topology, {"sentences": [["bad"], ["fine"]]}, allow_failures=True)
    assert emitted["split"] == [["fine"]]
    with pytest.raises(LocalClusterError, match="timeout"):
        complete_topology(chain(FeederSpout(fields="x long"), Silent()), {"s": [[1]]})


def test_a_mistake_in_a_test_is_a_clear_error():
    feeder = FeederSpout(fields="x long")
    topology = chain(feeder, Pass())
    with pytest.raises(BadValuesError, match="x long"):
        feeder.feed([1, 2])
    with pytest.raises(BadValuesError, match="'x' is a long"):
        feeder.feed(["one"])
    with pytest.raises(UnknownStreamError, match="'other'"):
        feeder.feed([1], stream="other")
    with pytest.raises(TopologyError, match="needs fields"):
        FeederSpout()
    with pytest.raises(LocalClusterError, match="no engine 'spark' yet"):
        LocalCluster(topology, engine="spark")
    with pytest.raises(LocalClusterError, match="use it as `with"):
        LocalCluster(topology).settle()
    with pytest.raises(LocalClusterError, match="no spout 'b1'"):
        with_spouts(topology, {"b1": feeder})
    with pytest.raises(LocalClusterError, match="no spout 'x'"):
        feeder_for(topology, "x")
    with LocalCluster(topology) as cluster:
        for wrong in (lambda: cluster.acked("b1"), lambda: cluster.failed("x"), lambda: cluster.pending("x")):
            with pytest.raises(LocalClusterError, match="the spouts are s"):
                wrong()
        with pytest.raises(LocalClusterError, match="no component 'x'; there are s, b1"):
            cluster.read_tuples("x")
        with pytest.raises(LocalClusterError, match="no stream 'x'; its streams are default"):
            cluster.read_tuples("b1", "x")
        with pytest.raises(ValueError, match="seconds"):
            cluster.advance_time(-1)
    with pytest.raises(LocalClusterError, match="a new one"), cluster:
        pass


def test_what_a_test_does_to_its_lists_does_not_change_the_cluster():
    with LocalCluster(chain(numbers(upto=1), Pass())) as cluster:
        cluster.settle()
        cluster.read_tuples("b1")[0].append("mine")
        cluster.acked("s").clear()
        assert (cluster.read_tuples("b1"), cluster.acked("s")) == ([[0]], [0])


def test_the_kit_runs_on_the_ledger_in_memory_and_leaves_it_empty(monkeypatch):
    made = []
    original = MemoryLedger.__init__
    monkeypatch.setattr(MemoryLedger, "__init__", lambda self, *args: made.append(self) or original(self, *args))
    with LocalCluster(chain(numbers(upto=3), Silent())) as cluster:
        cluster.settle()
        assert made[0].pending() == 3
    assert made[0].pending() == 0


def test_the_kit_does_not_import_pyspark():
    code = "import sys, spark_jobs.testing; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0
