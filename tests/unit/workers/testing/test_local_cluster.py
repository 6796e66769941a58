"""The test kit: on the ledger in memory and simulated time, a topology behaves as in production."""

import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import pytest

from tests.support.reasons import unplaced
from tiercel import BasicBolt, Bolt, Config, QueueSpout, Retry, RetryLater, Spout, TopologyBuilder
from tiercel.acker.memory import MemoryLedger
from tiercel.queues.errors import SchemaError
from tiercel.spark_jobs.errors import (
    BadValuesError,
    DirectStreamError,
    TopologyError,
    UnknownStreamError,
)
from tiercel.testing import (
    FeederSpout,
    LocalCluster,
    LocalClusterError,
    complete_topology,
    feeder_for,
    with_bolts,
    with_spouts,
)
from tiercel.workers.spout.admission import LARGEST_BOUND
from tiercel.workers.testing.spark_engine import shared_redis_url

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


def word_count(spout, **bolts):
    builder = TopologyBuilder("words")
    builder.set_spout("sentences", spout, parallelism=bolts.get("spouts", 1))
    builder.set_bolt("split", bolts.get("split", Split()), parallelism=2).shuffle_grouping(
        "sentences"
    )
    builder.set_bolt("count", Count(), parallelism=3).fields_grouping("split", "word")
    return builder.build()


def chain(feeder, *bolts, config=None):
    """Build the bolts in a row, b1 first."""
    builder = TopologyBuilder("chain", config or Config(message_timeout_secs=TIMEOUT))
    builder.set_spout("s", feeder)
    for number, bolt in enumerate(bolts, 1):
        builder.set_bolt(f"b{number}", bolt).shuffle_grouping(
            f"b{number - 1}" if number > 1 else "s"
        )
    return builder.build()


def numbers(*, upto, tracked=True):
    feeder = FeederSpout(fields="x long")
    for number in range(upto):
        feeder.feed([number], number if tracked else None)
    return feeder


@pytest.mark.parametrize("slots", [1, 2, 7])
def test_words_are_counted_on_any_number_of_slots(slots):
    feeder = FeederSpout(fields="sentence string")
    with LocalCluster(word_count(feeder), slots=slots) as cluster:
        for number in range(20):
            feeder.feed(["the cat and the dog"], number)
        cluster.run_until_idle()
        assert Counter(word for [word] in cluster.read_tuples("split")) == {
            "the": 40,
            "cat": 20,
            "and": 20,
            "dog": 20,
        }
        # Each count of a word occurs once, so one task got all tuples of the word.
        assert sorted(n for word, n in cluster.read_tuples("count") if word == "the") == list(
            range(1, 41)
        )
        assert cluster.acked("sentences") == list(range(20))
        assert cluster.failed("sentences") == []
        assert cluster.pending("sentences") == 0


def test_a_cluster_runs_until_idle_again_and_again():
    feeder = FeederSpout(fields="sentence string")
    with LocalCluster(word_count(feeder)) as cluster:
        for number in range(3):
            feeder.feed(["again"], number)
            cluster.run_until_idle()
        assert cluster.read_tuples("count") == [["again", 1], ["again", 2], ["again", 3]]
        assert cluster.acked("sentences") == [0, 1, 2]


def test_acks_and_fails_come_in_the_order_of_emission_with_the_reason():
    feeder = FeederSpout(fields="sentence string")
    with LocalCluster(word_count(feeder)) as cluster:
        for msg_id, sentence in zip(
            "edcba", ["one", "two bad", "three", "bad", "five"], strict=True
        ):
            feeder.feed([sentence], msg_id)
        cluster.run_until_idle()
        assert cluster.acked("sentences") == ["e", "c", "a"]
        assert cluster.failed("sentences") == ["d", "b"]
        assert {
            unplaced(reason).partition(": ")[2] for reason in cluster.fail_reasons("sentences")
        } == {"ValueError: a bad word"}
        assert ["two"] not in cluster.read_tuples("split"), (
            "what a BasicBolt emitted for a failed tuple is dropped"
        )


def test_a_spout_that_never_runs_dry_is_run_step_by_step():
    class Endless(Spout):
        output_fields = "x long"

        def next_tuple(self, collector):
            collector.emit([1], msg_id="again")

    with LocalCluster(chain(Endless(), Pass()), config=Config(max_spout_pending=3)) as cluster:
        assert cluster.step()
        assert len(cluster.read_tuples("b1")) == 3
        with pytest.raises(LocalClusterError, match="still moves after 5 rounds"):
            cluster.run_until_idle(max_rounds=5)


def test_a_complete_topology_returns_what_each_component_emitted():
    topology = word_count(QueueSpout("sentences", fields="sentence string"))
    emitted = complete_topology(topology, mock_sources={"sentences": [["a b"], ["b"]]})
    assert emitted["sentences"] == [["a b"], ["b"]]
    assert sorted(emitted["split"]) == [["a"], ["b"], ["b"]]
    assert sorted(emitted["count"]) == [["a", 1], ["b", 1], ["b", 2]]


def test_a_complete_topology_does_not_hide_a_failure_unless_it_is_told_to():
    topology = word_count(FeederSpout(fields="sentence string"))
    with pytest.raises(
        LocalClusterError, match=r"1 tuple of 'sentences' failed.*ValueError: a bad word"
    ):
        complete_topology(topology, {"sentences": [["bad"], ["fine"]]})
    with pytest.raises(LocalClusterError, match=r'\n  File ".*", line \d+, in execute\n.*raise'):
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
    with pytest.raises(SchemaError, match="fields are a text"):
        FeederSpout(["x"])
    with pytest.raises(LocalClusterError, match="slots is a number of Spark tasks, 1 or more"):
        LocalCluster(topology, slots=0)
    with pytest.raises(LocalClusterError, match="no engine 'flink'; there are memory, spark"):
        LocalCluster(topology, engine="flink")
    with pytest.raises(LocalClusterError, match='a redis_url is for engine="spark"'):
        LocalCluster(topology, redis_url="redis://localhost")
    for use in (
        LocalCluster.run_until_idle,
        LocalCluster.activate,
        LocalCluster.deactivate,
        lambda cluster: cluster.spout("s"),
    ):
        with pytest.raises(LocalClusterError, match="use it as `with"):
            use(LocalCluster(topology))
    with pytest.raises(LocalClusterError, match="no spout 'b1'"):
        with_spouts(topology, {"b1": feeder})
    with pytest.raises(LocalClusterError, match="no spout 'x'"):
        feeder_for(topology, "x")
    with LocalCluster(topology) as cluster:
        for wrong in (
            lambda: cluster.acked("b1"),
            lambda: cluster.failed("x"),
            lambda: cluster.pending("x"),
        ):
            with pytest.raises(LocalClusterError, match="the spouts are s"):
                wrong()
        with pytest.raises(LocalClusterError, match="no component 'x'; there are s, b1"):
            cluster.read_tuples("x")
        with pytest.raises(LocalClusterError, match="no stream 'x'; its streams are default"):
            cluster.read_tuples("b1", "x")
        with pytest.raises(ValueError, match="seconds"):
            cluster.advance_time(-1)
        cluster.advance_time(timedelta(minutes=1))
    with pytest.raises(LocalClusterError, match="a new one"), cluster:
        pass


def test_what_a_test_does_to_its_lists_does_not_change_the_cluster():
    with LocalCluster(chain(numbers(upto=1), Pass())) as cluster:
        cluster.run_until_idle()
        cluster.read_tuples("b1")[0].append("mine")
        cluster.acked("s").clear()
        assert (cluster.read_tuples("b1"), cluster.acked("s")) == ([[0]], [0])


def test_the_kit_runs_on_the_ledger_in_memory_and_leaves_it_empty(monkeypatch):
    made = []
    original = MemoryLedger.__init__
    monkeypatch.setattr(
        MemoryLedger, "__init__", lambda self, *args: made.append(self) or original(self, *args)
    )
    with LocalCluster(chain(numbers(upto=3), Silent())) as cluster:
        cluster.run_until_idle()
        assert made[0].pending() == 3
    assert made[0].pending() == 0


def test_the_kit_does_not_import_pyspark():
    code = "import sys, tiercel.testing; sys.exit('pyspark' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], cwd=Path(__file__).parents[4], check=False
        ).returncode
        == 0
    )


def test_without_a_redis_server_it_is_said_what_to_install_or_to_name(monkeypatch):
    monkeypatch.setattr("tiercel.compose.embedded.find_redis", lambda: None)
    shared_redis_url.cache_clear()
    with pytest.raises(
        LocalClusterError,
        match=r"install with: sudo apt-get install redis-server; or name .*redis_url=",
    ):
        LocalCluster(chain(numbers(upto=1), Pass()), engine="spark").__enter__()


def test_a_cluster_that_is_closed_can_be_looked_at_and_closed_again():
    with LocalCluster(chain(numbers(upto=2), Pass())) as cluster:
        cluster.run_until_idle()
        cluster.close()
        cluster.close()
        assert (cluster.acked("s"), cluster.read_tuples("b1")) == ([0, 1], [[0], [1]])
        with pytest.raises(LocalClusterError, match="does not run"):
            cluster.run_until_idle()


def test_every_spout_is_closed_and_every_bolt_cleaned_up_whatever_one_of_them_raises():
    closed = []

    class Closing(FeederSpout):
        def close(self, grace):
            closed.append(self)
            raise OSError("cannot close")

    class Cleaned(Pass):
        def cleanup(self):
            closed.append("bolt")
            raise OSError("cannot clean up")

    builder = TopologyBuilder("closing")
    for name in ("one", "two"):
        builder.set_spout(name, feeder := Closing(fields="x long"))
        feeder.feed([1], 1)
    builder.set_bolt("bolt", Cleaned()).shuffle_grouping("one").shuffle_grouping("two")
    with pytest.raises(OSError, match="cannot close"), LocalCluster(builder.build()) as cluster:
        cluster.run_until_idle()
    assert len(closed) == 3
    assert closed[-1] == "bolt"


def test_the_fixture_closes_what_it_has_started(local_cluster, request):
    cluster = local_cluster(chain(numbers(upto=1), Pass()), Config(message_timeout_secs=1), slots=1)
    cluster.run_until_idle()
    assert cluster.acked("s") == [0]
    assert request.config.getoption("tiercel_engine") == "memory"


def test_a_component_s_own_settings_lie_over_those_of_the_topology_and_of_the_cluster():
    told = {}

    class Asked(FeederSpout):
        def open(self, config, context):
            told[context.component] = (
                config["max_spout_pending"],
                config["colour"],
                config["message_timeout_secs"],
            )

    class Asking(Bolt):
        def prepare(self, config, context):
            told[context.component] = (
                config["tick_tuple_freq_secs"],
                config["colour"],
                config["message_timeout_secs"],
            )

        def execute(self, tup, collector):
            pass

    own = Asked("x long")
    other = Asked("x long")
    builder = TopologyBuilder("own", Config(max_spout_pending=9))
    builder.set_spout("own", own, config={"max_spout_pending": 2, "colour": "red"})
    builder.set_spout("other", other)
    builder.set_bolt("bolt", Asking(), config={"colour": "blue"}).shuffle_grouping(
        "own"
    ).shuffle_grouping("other")
    for feeder in (own, other):
        for number in range(5):
            feeder.feed([number], number)
    config = Config(max_spout_pending=3, message_timeout_secs=5, extra={"colour": "grey"})
    with LocalCluster(builder.build(), config) as cluster:
        cluster.run_until_idle()
        assert (cluster.pending("own"), cluster.pending("other")) == (2, 3)
    assert told == {"own": (2, "red", 5), "other": (3, "grey", 5), "bolt": (None, "blue", 5)}


def test_a_feeder_in_the_place_of_a_spout_with_a_direct_stream_is_fed_with_the_task():
    feeder = FeederSpout(streams={"own": "x long"}, direct_streams={"own"})
    builder = TopologyBuilder("direct")
    builder.set_spout("s", feeder)
    builder.set_bolt("b", Pass(), parallelism=2).direct_grouping("s", "own")
    topology = builder.build()
    feeder = feeder_for(topology, "s")
    with LocalCluster(with_spouts(topology, {"s": feeder})) as cluster:
        feeder.feed([7], msg_id="m", stream="own", task=topology.task_ids("b")[1])
        cluster.run_until_idle()
        assert (cluster.acked("s"), cluster.read_tuples("b")) == (["m"], [[7]])
    with pytest.raises(
        DirectStreamError, match="stream 'own' of the feeder is direct: name the task"
    ):
        feeder.feed([7], stream="own")
    with pytest.raises(
        DirectStreamError, match="stream 'default' of the feeder is not direct: name no task"
    ):
        FeederSpout("x long").feed([7], task=2)


def test_a_spout_that_needs_a_person_ends_the_test_with_its_error():
    class Refused(FeederSpout):
        def check(self):
            if self.refused:
                raise OSError("the source refused the login")

    feeder = Refused("x long")
    feeder.refused = False
    with LocalCluster(chain(feeder, Pass())) as cluster:
        cluster.run_until_idle()
        feeder.refused = True
        with pytest.raises(OSError, match="refused the login"):
            cluster.advance_time(1)


def test_without_a_bound_of_its_own_a_spout_is_told_the_largest_that_a_worker_has():
    told = []

    class Told(FeederSpout):
        def expect(self, tuples):
            told.append(tuples)

    with LocalCluster(chain(Told("x long"), Pass())) as cluster:
        cluster.run_until_idle()
        cluster.deactivate()
        cluster.run_until_idle()
    assert told == [0, LARGEST_BOUND, 0]


def test_moments_of_timeouts_are_exact_whatever_their_sum_is_as_a_float():
    for first in (0.1, 0.2, 0.3, 0.7, 1.1, 2.3, 12.345678901):
        feeder = FeederSpout("x long")
        config = Config(message_timeout_secs=0.1)
        with LocalCluster(chain(feeder, Silent()), config) as cluster:
            cluster.advance_time(first)
            feeder.feed([1], 1)
            cluster.advance_time(0.099999999)
            assert cluster.failed("s") == []
            cluster.advance_time(0.000000001)
            assert cluster.failed("s") == [1]


class Routed(BasicBolt):
    """Emits the properties of a message."""

    output_fields = "body string, id string, tenant string, kind string"

    def execute(self, tup, collector):
        collector.emit([tup["body"], tup["message_id"], tup["headers"].get("tenant"), tup["kind"]])


def routed():
    builder = TopologyBuilder("routed")
    properties = {"message_id": "message_id", "headers": "headers", "type": "kind"}
    builder.set_spout("in", QueueSpout("orders", "body string", properties=properties))
    builder.set_bolt("route", Routed()).shuffle_grouping("in")
    return builder.build()


def test_a_feeder_feeds_the_properties_of_a_message():
    feeder = feeder_for(routed(), "in")
    feeder.feed(["a"], properties={"message_id": "m-1", "headers": {"tenant": "x"}, "type": "new"})
    feeder.feed(["b"], properties={"headers": {}})
    feeder.feed(["c", "m-3", {"tenant": None}, "old"])
    with LocalCluster(with_spouts(routed(), {"in": feeder})) as cluster:
        cluster.run_until_idle()
        assert cluster.read_tuples("route") == [
            ["a", "m-1", "x", "new"],
            ["b", None, None, None],
            ["c", "m-3", None, "old"],
        ]


def test_a_topology_is_completed_with_properties():
    rows = [["a", "m-1", {"tenant": "x"}, None]]
    assert complete_topology(routed(), {"in": rows})["route"] == [["a", "m-1", "x", None]]


def test_properties_that_a_feeder_does_not_have_are_refused_where_they_are_fed():
    feeder = FeederSpout("body string", properties=["message_id"])
    with pytest.raises(BadValuesError, match="no property 'headers' here; there are message_id"):
        feeder.feed(["a"], properties={"headers": {}})
    with pytest.raises(BadValuesError, match="field 'message_id' is a string"):
        feeder.feed(["a"], properties={"message_id": 5})
    with pytest.raises(BadValuesError, match=r"one value for each of \(body string, message_id"):
        feeder.feed(["a", "b"], properties={"message_id": "m"})
    with pytest.raises(BadValuesError, match="there are none: name them in properties"):
        FeederSpout("body string").feed(["a"], properties={"message_id": "m"})


def test_the_first_traceback_of_each_error_can_be_looked_at_after_the_end_too():
    feeder = FeederSpout(fields="sentence string")
    with LocalCluster(word_count(feeder)) as cluster:
        assert cluster.tracebacks() == []
        for number in range(3):
            feeder.feed(["bad"], msg_id=number)
        cluster.run_until_idle()
        [text] = cluster.tracebacks()
        assert text.startswith(f'Traceback (most recent call last):\n  File "{__file__}", line ')
        assert text.endswith("ValueError: a bad word")
        assert "(testing/test_local_cluster.py:" in cluster.fail_reasons("sentences")[0]
    assert cluster.tracebacks() == [text]


class Pooled(Bolt):
    """Acks in a thread, which takes its time."""

    output_fields = "x long"
    transient = frozenset({"pool"})

    def prepare(self, config, context):
        self.pool = ThreadPoolExecutor(4)

    def execute(self, tup, collector):
        self.pool.submit(self.answer, tup, collector)

    def answer(self, tup, collector):
        time.sleep(0.1)
        collector.emit([tup["x"]], tup)
        collector.ack(tup)

    def cleanup(self):
        self.pool.shutdown()


class Lost(Pooled):
    def answer(self, tup, collector):
        self.never.append(tup)

    never: ClassVar[list] = []


def passing(bolt, config=None, settings=None):
    builder = TopologyBuilder("passing", config or Config())
    builder.set_spout("spout", QueueSpout("queue", "x long", delivery_limit=3))
    builder.set_bolt("bolt", bolt, config=settings or {}).shuffle_grouping("spout")
    return builder.build()


def test_the_threads_of_a_bolt_are_waited_for():
    with LocalCluster(passing(Pooled())) as cluster:
        for number in range(8):
            cluster.feed_body(f'{{"x": {number}}}')
        cluster.run_until_idle()
        assert len(cluster.acked("spout")) == 8
    assert len(complete_topology(passing(Pooled()), {"spout": [[1], [2]]})["bolt"]) == 2


def test_a_thread_that_never_answers_is_waited_for_once(monkeypatch):
    monkeypatch.setattr("tiercel.workers.testing.memory_engine._ANSWER_S", 0.2)
    with LocalCluster(passing(Lost())) as cluster:
        cluster.feed_body('{"x": 1}')
        began = time.monotonic()
        for _ in range(50):
            cluster.run_until_idle()
        assert time.monotonic() - began < 5
        assert cluster.pending("spout") == 1
        cluster.advance_time(30)
        assert cluster.fail_reasons("spout") == ["timeout"]


class Passing(BasicBolt):
    output_fields = "x long"

    def execute(self, tup, collector):
        collector.emit([tup["x"]])


class Refused(Passing):
    """A service that answers at the fourth call."""

    def prepare(self, config, context):
        self.calls = 0

    def execute(self, tup, collector):
        self.calls += 1
        if self.calls < 4:
            raise ConnectionError("refused")
        super().execute(tup, collector)


class Postponing(Passing):
    def execute(self, tup, collector):
        raise RetryLater(1, "busy")


@pytest.mark.parametrize(
    ("bolt", "settings"),
    [
        (Passing(), {"rate_limit": "1/s"}),
        (Refused(), {"retry": Retry(attempts=5, wait=20)}),
        (Refused(), {"retry": Retry(attempts=5, wait=20_000)}),
    ],
)
def test_complete_topology_waits_for_rate_limits_and_retries(bolt, settings):
    rows = [[number] for number in range(100)]
    emitted = complete_topology(passing(bolt, settings=settings), {"spout": rows})
    assert sorted(emitted["bolt"]) == rows


def test_complete_topology_runs_however_many_rounds_its_tuples_need():
    rows = [[number] for number in range(1_200)]
    topology = passing(Passing(), Config(max_spout_pending=1))
    assert len(complete_topology(topology, {"spout": rows})["bolt"]) == 1_200


def test_complete_topology_raises_for_tuples_that_never_end():
    topology = passing(Silent(), Config(enable_message_timeouts=False))
    with pytest.raises(LocalClusterError, match="1 tuple of 'spout' in flight without a timeout"):
        complete_topology(topology, {"spout": [[1]]})
    assert complete_topology(topology, {"spout": [[1]]}, allow_failures=True)["spout"] == [[1]]


def test_complete_topology_raises_if_a_message_is_postponed_for_ever():
    with pytest.raises(LocalClusterError, match="postpones or retries"):
        complete_topology(passing(Postponing()), {"spout": [[1]]}, allow_failures=True)


def test_a_postponed_message_reaches_the_delivery_limit():
    with LocalCluster(passing(Postponing())) as cluster:
        cluster.feed_body('{"x": 1}')
        cluster.advance_time(100)
        assert len(cluster.retried_later("spout")) == 4
        [letter] = cluster.dead_letters()
        assert "RetryLater: again after 1 s: busy" in letter.reason


def test_a_body_that_is_too_large_is_dead_lettered():
    with LocalCluster(passing(Passing())) as cluster:
        cluster.feed_body(b'{"x": 1' + b" " * (16 << 20) + b"}")
        cluster.run_until_idle()
        [letter] = cluster.dead_letters()
        assert "above the limit of 16777216" in letter.reason
        assert not cluster.acked("spout")


def split_topology():
    builder = TopologyBuilder("split")
    builder.set_spout("lines", QueueSpout("lines", "sentence string"))
    builder.set_bolt("split", Split()).shuffle_grouping("lines")
    return builder


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (
            lambda: LocalCluster(split_topology()),
            "the topology is a TopologyBuilder: give what TopologyBuilder.build() returns",
        ),
        (
            lambda: LocalCluster(split_topology().build(), {"message_timeout_secs": 5}),
            "the config is a dict: give a Config",
        ),
        (
            lambda: LocalCluster(split_topology().build()).feed_body({"sentence": "a"}),
            "the body is a dict: give bytes or a str, such as json.dumps(…) returns",
        ),
        (
            lambda: with_bolts(split_topology().build(), {"split": Split}),
            "the bolt for 'split' is the class Split (write Split()), not a bolt",
        ),
        (
            lambda: with_spouts(split_topology().build(), {"lines": FeederSpout}),
            "the spout for 'lines' is the class FeederSpout (write FeederSpout()), not a spout",
        ),
    ],
    ids=[
        "a builder",
        "a dict for the config",
        "a dict for the body",
        "a bolt's class",
        "a spout's",
    ],
)
def test_an_argument_of_the_wrong_kind_is_one_line(mistake, said):
    with pytest.raises(LocalClusterError) as raised:
        mistake()
    assert str(raised.value) == said
