"""RetryLater, from the bolt to the spout, on simulated time."""

import pickle
from datetime import timedelta

import pyarrow as pa
import pytest

from tiercel import (
    ArrowBolt,
    BasicBolt,
    BatchBolt,
    Bolt,
    Config,
    RetryLater,
    Spout,
    TopologyBuilder,
)
from tiercel.testing import FeederSpout, LocalCluster, complete_topology


class Busy(BasicBolt):
    """Retries each tuple later, as often as its value says."""

    output_fields = "x long"
    blame = True
    seconds = 5.0

    def prepare(self, config, context):
        self.seen = {}

    def execute(self, tup, collector):
        x = tup["x"]
        self.seen[x] = self.seen.get(x, 0) + 1
        collector.emit([x])
        if self.seen[x] <= x:
            raise RetryLater(self.seconds, "the API is busy", blame=self.blame)


class BusyWithoutBlame(Busy):
    blame = False


class ByHand(Bolt):
    output_fields = "x long"

    def prepare(self, config, context):
        self.seen = 0

    def execute(self, tup, collector):
        self.seen += 1
        if self.seen == 1:
            collector.fail(tup, RetryLater(7))
        else:
            collector.ack(tup)


class Rows(ArrowBolt):
    """Retries one row later; then the whole batch; then nothing."""

    output_fields = "x long"

    def prepare(self, config, context):
        self.calls = []

    def execute(self, batch, collector):
        self.calls.append(batch.num_rows)
        if len(self.calls) == 1:
            collector.fail([1], RetryLater(5, "this row"))
        elif len(self.calls) == 2:
            raise RetryLater(60, "all of them", blame=False)
        collector.emit(batch, pa.array(range(batch.num_rows)))


class Batches(BatchBolt):
    """Retries one tuple later; then the whole batch; then nothing."""

    size = 3
    on_error = "split"

    def prepare(self, config, context):
        self.calls = []

    def execute_batch(self, tuples, collector):
        self.calls.append(len(tuples))
        if len(self.calls) == 1:
            collector.fail(tuples[1], RetryLater(5, "this tuple"))
        elif len(self.calls) == 2:
            raise RetryLater(60, "all of them", blame=False)


class Flushing(BasicBolt):
    """Is prepared anew when its flush has raised, so the attribute is the class's."""

    flushes = 0

    def execute(self, tup, collector):
        pass

    def flush(self, collector):
        Flushing.flushes += 1
        if Flushing.flushes == 1:
            raise RetryLater(3, "the database restarts", blame=False)


def topology(bolt, spout=None, config=None):
    builder = TopologyBuilder("t", config=config)
    feeder = spout or FeederSpout(fields="x long")
    builder.set_spout("numbers", feeder)
    builder.set_bolt("bolt", bolt).shuffle_grouping("numbers")
    return builder.build(), feeder


def test_a_message_comes_again_after_that_time_and_not_before():
    built, feeder = topology(Busy())
    with LocalCluster(built) as cluster:
        feeder.feed([1], "a")
        feeder.feed([0], "b")
        cluster.run_until_idle()
        assert cluster.acked("numbers") == ["b"]
        assert cluster.pending("numbers") == 0, "it holds no place meanwhile"
        cluster.advance_time(4.999)
        assert cluster.acked("numbers") == ["b"]
        cluster.advance_time(0.001)
        assert cluster.acked("numbers") == ["b", "a"]
        assert cluster.retried_later("numbers") == [("a", 5.0)]
        assert cluster.read_tuples("bolt") == [[0], [1]], "its emissions stayed behind"


def test_with_blame_it_is_a_failure_with_the_reason_and_without_it_is_none():
    for bolt, failed in ((Busy(), ["a"]), (BusyWithoutBlame(), [])):
        built, feeder = topology(bolt)
        with LocalCluster(built) as cluster:
            feeder.feed([1], "a")
            cluster.advance_time(5)
            assert cluster.failed("numbers") == failed
            assert cluster.acked("numbers") == ["a"]
            if failed:
                (reason,) = cluster.fail_reasons("numbers")
                assert reason.endswith("RetryLater: again after 5 s: the API is busy")


def test_a_month_takes_no_time_and_no_message_timeout_ends_it():
    class Monthly(Busy):
        seconds = 30 * 24 * 3600.0

    built, feeder = topology(Monthly(), config=Config(message_timeout_secs=1))
    with LocalCluster(built) as cluster:
        feeder.feed([3], "a")
        cluster.advance_time(3 * Monthly.seconds)
        assert cluster.acked("numbers") == ["a"]
        assert [seconds for _, seconds in cluster.retried_later("numbers")] == [Monthly.seconds] * 3


def test_a_bolt_that_fails_by_hand_may_say_when():
    built, feeder = topology(ByHand())
    with LocalCluster(built) as cluster:
        feeder.feed([1], "a")
        cluster.advance_time(7)
        assert cluster.retried_later("numbers") == [("a", 7.0)]
        assert cluster.acked("numbers") == ["a"]


def test_an_arrow_bolt_may_want_one_row_later_or_all_of_the_batch_which_is_not_tried_by_halves():
    bolt = Rows()
    built, feeder = topology(bolt)
    with LocalCluster(built) as cluster:
        for name in "abc":
            feeder.feed([0], name)
        cluster.run_until_idle()
        assert cluster.acked("numbers") == ["a", "c"]
        feeder.feed([0], "d")
        feeder.feed([0], "e")
        cluster.run_until_idle()
        assert cluster.retried_later("numbers") == [("b", 5.0), ("d", 60.0), ("e", 60.0)]
        cluster.advance_time(60)
        assert sorted(cluster.acked("numbers")) == list("abcde")
        assert cluster.failed("numbers") == ["b"]


def test_a_spout_that_is_deactivated_emits_it_when_it_is_active_again():
    built, feeder = topology(Busy())
    with LocalCluster(built) as cluster:
        feeder.feed([1], "a")
        cluster.run_until_idle()
        cluster.deactivate()
        cluster.advance_time(60)
        assert cluster.acked("numbers") == []
        cluster.activate()
        cluster.run_until_idle()
        assert cluster.acked("numbers") == ["a"]


def test_a_batch_may_want_some_or_all_of_its_tuples_later():
    built, feeder = topology(Batches())
    with LocalCluster(built) as cluster:
        for x in range(3):
            feeder.feed([x], f"first {x}")
        cluster.run_until_idle()
        assert cluster.retried_later("numbers") == [("first 1", 5.0)]
        assert cluster.acked("numbers") == ["first 0", "first 2"]
        for x in range(3):
            feeder.feed([x], f"second {x}")
        cluster.run_until_idle()
        assert cluster.retried_later("numbers")[1:] == [(f"second {x}", 60.0) for x in range(3)]
        assert cluster.fail_reasons("numbers") == [
            "bolt[2]: RetryLater: again after 5 s: this tuple"
        ]


def test_flush_may_want_all_of_the_step_later():
    Flushing.flushes = 0
    built, feeder = topology(Flushing())
    with LocalCluster(built) as cluster:
        feeder.feed([1], "a")
        feeder.feed([2], "b")
        cluster.run_until_idle()
        assert cluster.acked("numbers") == []
        assert cluster.retried_later("numbers") == [("a", 3.0), ("b", 3.0)]
        cluster.advance_time(3)
        assert cluster.acked("numbers") == ["a", "b"]


@pytest.mark.parametrize(
    "seconds",
    [-1, float("nan"), float("inf"), "5", None, True, 31 * 86400, timedelta(-1), timedelta(31)],
)
def test_an_impossible_time_fails_the_tuple_with_one_clear_line(seconds):
    class Wrong(BasicBolt):
        def execute(self, tup, collector):
            raise RetryLater(seconds)

    with pytest.raises(ValueError, match="from 0 to 2592000"):
        RetryLater(seconds)
    built, feeder = topology(Wrong())
    with LocalCluster(built) as cluster:
        feeder.feed([1], "a")
        cluster.run_until_idle()
        (reason,) = cluster.fail_reasons("numbers")
        assert "ValueError: RetryLater takes a number of seconds" in reason


class ListSpout(Spout):
    """Has Storm's fail, which takes no reason, and knows nothing of later retries."""

    output_fields = "x long"

    def open(self, config, context):
        self.waiting = [1]

    def next_tuple(self, collector):
        if self.waiting:
            x = self.waiting.pop()
            collector.emit([x], msg_id=x)

    def fail(self, msg_id):
        self.waiting.append(msg_id)


def test_a_spout_that_knows_nothing_of_it_is_told_of_a_failure():
    built, _ = topology(Busy(), ListSpout())
    with LocalCluster(built) as cluster:
        cluster.run_until_idle()
        assert cluster.acked("numbers") == [1]
        assert cluster.failed("numbers") == [1]


def test_it_travels_between_processes():
    error = pickle.loads(pickle.dumps(RetryLater(5, "busy", blame=False)))
    assert (error.seconds, error.reason, error.blame) == (5.0, "busy", False)
    assert str(error) == "again after 5 s: busy"


def test_a_topology_that_is_run_to_the_end_tells_of_what_is_wanted_later():
    built, _ = topology(Busy())
    found = complete_topology(built, {"numbers": [[0], [1]]}, allow_failures=True)
    assert found["bolt"] == [[0], [1]]
