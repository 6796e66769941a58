"""``Reject``: which tuples it applies to, and what it tells the spout."""

from __future__ import annotations

import pickle
from datetime import timedelta

import pytest

from tests.support.reasons import unplaced
from tiercel import (
    ArrowBolt,
    AsyncBolt,
    BasicBolt,
    BatchBolt,
    Bolt,
    Reject,
    RetryLater,
    Spout,
    TopologyBuilder,
)
from tiercel.testing import FeederSpout, LocalCluster


class Raises(BasicBolt):
    def execute(self, tup, collector):
        if tup[0] == "bad":
            raise Reject("never")


class Gives(Bolt):
    def execute(self, tup, collector):
        if tup[0] == "bad":
            collector.fail(tup, Reject("never"))
        else:
            collector.ack(tup)


class RaisesForRows(ArrowBolt):
    def execute(self, batch, collector):
        if "bad" in batch["word"].to_pylist():
            raise Reject("never")


class GivesRows(ArrowBolt):
    def execute(self, batch, collector):
        words = batch["word"].to_pylist()
        collector.fail([row for row, word in enumerate(words) if word == "bad"], Reject("never"))


class RaisesForBatches(BatchBolt):
    on_error = "split"

    def execute_batch(self, tuples, collector):
        if any(tup[0] == "bad" for tup in tuples):
            raise Reject("never")


class GivesOfBatches(BatchBolt):
    def execute_batch(self, tuples, collector):
        for tup in tuples:
            if tup[0] == "bad":
                collector.fail(tup, Reject("never"))


class Awaits(AsyncBolt):
    async def execute(self, tup, collector):
        if tup[0] == "bad":
            raise Reject("never")


class RaisesInFlush(BasicBolt):
    def execute(self, tup, collector):
        pass

    def flush(self, collector):
        raise Reject("never")


def topology(spout, bolt):
    builder = TopologyBuilder("rejects")
    builder.set_spout("words", spout)
    builder.set_bolt("bolt", bolt).shuffle_grouping("words")
    return builder.build()


@pytest.mark.parametrize(
    "bolt",
    [
        Raises(),
        Gives(),
        RaisesForRows(),
        GivesRows(),
        RaisesForBatches(),
        GivesOfBatches(),
        Awaits(),
    ],
    ids=lambda bolt: type(bolt).__name__,
)
def test_the_message_of_that_tuple_is_rejected_and_no_other(bolt):
    feeder = FeederSpout("word string")
    with LocalCluster(topology(feeder, bolt)) as cluster:
        for number, word in enumerate(["a", "bad", "b", "c"]):
            feeder.feed([word], number)
        cluster.run_until_idle()
        assert cluster.rejected("words") == cluster.failed("words") == [1]
        assert cluster.fail_reasons("words") == ["bolt[2]: Reject: never"]
        assert cluster.acked("words") == [0, 2, 3]
        assert cluster.tracebacks() == []


class GivesTheClass(Bolt):
    def execute(self, tup, collector):
        collector.fail(tup, Reject)


def test_the_class_as_a_reason_rejects_as_raising_it_does():
    feeder = FeederSpout("word string")
    with LocalCluster(topology(feeder, GivesTheClass())) as cluster:
        feeder.feed(["bad"], 0)
        cluster.run_until_idle()
        assert cluster.rejected("words") == [0]
        assert cluster.fail_reasons("words") == ["bolt[2]: Reject"]


def test_flush_has_no_tuple_and_what_it_raises_is_a_failure_like_any_other():
    feeder = FeederSpout("word string")
    with LocalCluster(topology(feeder, RaisesInFlush())) as cluster:
        feeder.feed(["a"], 0)
        cluster.run_until_idle()
        assert cluster.failed("words") == [0]
        assert cluster.rejected("words") == []
        assert unplaced(cluster.fail_reasons("words")[0]) == "bolt[2]: flush: Reject: never"


class RaisesForAll(RaisesForBatches):
    on_error = "fail"


def test_a_batch_that_is_not_split_fails_as_for_any_exception_and_no_good_message_is_rejected():
    feeder = FeederSpout("word string")
    with LocalCluster(topology(feeder, RaisesForAll())) as cluster:
        for number, word in enumerate(["a", "bad", "b"]):
            feeder.feed([word], number)
        cluster.run_until_idle()
        assert cluster.failed("words") == [0, 1, 2]
        assert cluster.rejected("words") == []
        feeder.feed(["bad"], 3)
        cluster.run_until_idle()
        assert cluster.rejected("words") == [3], "alone it is known which one is meant"


class Wants(BasicBolt):
    def __init__(self, verdict: RetryLater, *, in_flush: bool) -> None:
        self.verdict = verdict
        self.in_flush = in_flush

    def execute(self, tup, collector):
        if not self.in_flush:
            raise self.verdict

    def flush(self, collector):
        if self.in_flush:
            raise self.verdict


@pytest.mark.parametrize("in_flush", [False, True])
@pytest.mark.parametrize("blame", [False, True])
def test_what_a_bolt_wants_later_is_no_bug_and_no_rejection(in_flush, blame):
    feeder = FeederSpout("word string")
    wants = Wants(RetryLater(60, "busy", blame=blame), in_flush=in_flush)
    with LocalCluster(topology(feeder, wants)) as cluster:
        feeder.feed(["a"], 0)
        cluster.run_until_idle()
        assert cluster.retried_later("words") == [(0, 60.0)]
        assert cluster.failed("words") == ([0] if blame else [])
        assert cluster.rejected("words") == []
        assert cluster.tracebacks() == []


class Split(BasicBolt):
    output_fields = "word string"

    def execute(self, tup, collector):
        for word in tup[0].split():
            collector.emit([word])


def test_what_far_down_rejects_a_part_rejects_the_message_at_the_root():
    feeder = FeederSpout("line string")
    builder = TopologyBuilder("deep")
    builder.set_spout("lines", feeder)
    builder.set_bolt("split", Split()).shuffle_grouping("lines")
    builder.set_bolt("bolt", Raises(), parallelism=2).shuffle_grouping("split")
    with LocalCluster(builder.build()) as cluster:
        feeder.feed(["a bad b"], "m1")
        feeder.feed(["a b"], "m2")
        cluster.run_until_idle()
        assert cluster.rejected("lines") == ["m1"]
        assert cluster.acked("lines") == ["m2"]


class Storms(Spout):
    """Has Storm's ``fail``, which takes no reason, and knows nothing of rejections."""

    output_fields = "word string"

    def open(self, config, context):
        self.words = ["bad"]
        self.heard = []

    def next_tuple(self, collector):
        if self.words:
            collector.emit([self.words.pop()], msg_id="m")

    def fail(self, msg_id):
        self.heard.append(msg_id)


def test_a_spout_that_does_not_know_rejections_is_told_of_a_failure():
    with LocalCluster(topology(Storms(), Raises())) as cluster:
        cluster.run_until_idle()
        assert cluster.spout("words").heard == ["m"]
        assert cluster.rejected("words") == ["m"]


def test_a_rejection_says_why_and_travels():
    assert str(Reject("never")) == "never"
    found = pickle.loads(pickle.dumps(Reject("never")))
    assert (type(found), found.reason) == (Reject, "never")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.25, "0.25"),
        (30, "30"),
        (2_592_000, "2,592,000"),
        (86_399.5, "86,399.5"),
        (timedelta(minutes=2, milliseconds=500), "120.5"),
    ],
)
def test_the_time_of_a_retry_is_shown_in_full(seconds, said):
    assert str(RetryLater(seconds)) == f"again after {said} s"
    assert str(RetryLater(seconds, "busy")) == f"again after {said} s: busy"
