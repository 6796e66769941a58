"""Rules for a bolt's use of its tuples, and the errors when it breaks them: its tuple fails, and no
other.
"""

import time

import pytest

from tests.semantics.components import Pass, Split, chain, feeding, outcome
from tests.support.reasons import unplaced
from tiercel import BasicBolt, Bolt, TopologyBuilder
from tiercel.testing import FeederSpout


class Doing(Bolt):
    """Executes the actions that each tuple lists, in order."""

    output_streams = {"default": "word string", "direct": "word string"}  # noqa: RUF012 - as users write it
    direct_streams = frozenset({"direct"})
    transient = frozenset({"earlier"})

    def prepare(self, config, context):
        self.earlier = None

    def execute(self, tup, collector):
        actions = {
            "ack": lambda: collector.ack(tup),
            "fail": lambda: collector.fail(tup, "on purpose"),
            "fail_with_error": lambda: collector.fail(tup, KeyError("k")),
            "fail_without_reason": lambda: collector.fail(tup),
            "emit": lambda: collector.emit([tup[0]], tup),
            "free": lambda: collector.emit([tup[0]]),
            "report": lambda: collector.report_error("seen by whoever watches"),
            "raise": lambda: int("raised"),
            "string": lambda: collector.ack("foreign"),
            "number": lambda: collector.emit([7], tup),
            "two": lambda: collector.emit(["", ""], tup),
            "stream": lambda: collector.emit([""], tup, stream="late"),
            "direct": lambda: collector.emit([""], tup, stream="direct"),
            "not_direct": lambda: collector.emit_direct(3, [""], tup),
            "stranger": lambda: collector.emit_direct(99, [""], tup, stream="direct"),
            "forgotten": lambda: None,
        }
        for action in tup[0].split():
            actions[action]()


ACKED = ["ack", "emit ack", "free ack", "emit emit ack", "report ack"]
FAILED = {
    "fail": "on purpose",
    "emit fail": "on purpose",
    "fail_with_error": "KeyError: 'k'",
    "fail_without_reason": "failed by the bolt",
    "raise": "ValueError: invalid literal for int() with base 10: 'raised'",
    "emit raise": "ValueError: invalid literal for int() with base 10: 'raised'",
    "ack raise": "ValueError: invalid literal for int() with base 10: 'raised'",
    "ack ack": (
        "AlreadyAckedError: 'b1' acks Tuple(s:default, line='ack ack'), which it has acked before"
    ),
    "ack fail": (
        "AlreadyAckedError: 'b1' fails Tuple(s:default, line='ack fail'), which it has acked before"
    ),
    "fail ack": "on purpose",
    "ack emit": (
        "AlreadyAckedError: 'b1' anchors to Tuple(s:default, line='ack emit'), which it has acked "
        "before"
    ),
    "string": "ForeignTupleError: 'b1' acks 'foreign', which is no tuple",
    "stream ack": (
        "UnknownStreamError: 'b1' emits on stream 'late'; its streams are default, direct"
    ),
    "two ack": (
        "BadValuesError: 'b1' emits ['', ''] on stream 'default'; give a list with one value for "
        "each of (word string)"
    ),
    "number ack": "stream 'default': field 'word' is a string, the value is the int 7",
    "direct ack": "DirectStreamError: 'b1'",
    "not_direct ack": "DirectStreamError: 'b1'",
    "stranger ack": "DirectStreamError: 'b1'",
}


def test_what_a_bolt_does_by_hand_decides_about_its_tuple_and_no_other(cluster_of):
    scripts = [*ACKED, *FAILED, "forgotten", "emit forgotten", *ACKED]
    feeder = FeederSpout(fields="line string")
    for script in scripts:
        feeder.feed([script], script)
    builder = TopologyBuilder("doing")
    builder.set_spout("s", feeder)
    builder.set_bolt("b1", Doing()).shuffle_grouping("s")
    builder.set_bolt("b2", Split()).shuffle_grouping("b1").direct_grouping("b1", "direct")
    cluster = cluster_of(builder.build())
    cluster.run_until_idle()
    assert cluster.acked("s") == [*ACKED, *ACKED]
    assert cluster.failed("s") == list(FAILED)
    for (script, expected), reason in zip(FAILED.items(), cluster.fail_reasons("s"), strict=True):
        assert reason.startswith(f"b1[2]: {expected}"), script
    assert cluster.pending("s") == 2
    cluster.advance_time(30)
    assert cluster.failed("s")[-2:] == ["forgotten", "emit forgotten"]


class Giving(Bolt):
    """Passes its tuple, through the class, to tasks that must not have it."""

    given = None

    def execute(self, tup, collector):
        Giving.given = tup


class Taking(Bolt):
    def execute(self, tup, collector):
        # The other bolt works in its own thread on Spark, and before this one in memory.
        until = time.monotonic() + 30
        while Giving.given is None and time.monotonic() < until:
            time.sleep(0.001)
        collector.ack(Giving.given)


def test_the_tuple_of_another_task_cannot_be_acked(cluster_of):
    builder = TopologyBuilder("foreign")
    builder.set_spout("s", feeding(7))
    builder.set_bolt("giving", Giving()).shuffle_grouping("s")
    builder.set_bolt("taking", Taking()).shuffle_grouping("s")
    cluster = cluster_of(builder.build(), slots=1)  # one slot: both run in one process
    cluster.run_until_idle()
    assert outcome(cluster) == ([], [7], 0)
    expected = (
        "taking[3]: ForeignTupleError: 'taking' acks Tuple(s:default, x=7), which this task does "
        "not hold"
    )
    assert [*map(unplaced, cluster.fail_reasons("s"))] == [expected]


class Careless(BasicBolt):
    """Emits, then raises for the given words."""

    output_fields = "word string"

    def execute(self, tup, collector):
        collector.emit([tup[0]])
        if tup[0].startswith("bad"):
            raise RuntimeError(f"{tup[0]} is bad\nand a second line")


def test_an_exception_fails_its_tuple_with_its_first_line_and_the_worker_goes_on(cluster_of):
    words = [f"bad{number}" if number % 3 == 0 else f"good{number}" for number in range(30)]
    cluster = cluster_of(chain(feeding(*words, fields="word string"), Careless(), Split()))
    cluster.run_until_idle()
    good = [word for word in words if word[0] == "g"]
    bad = [word for word in words if word[0] == "b"]
    assert outcome(cluster) == (good, bad, 0)
    reasons = [*map(unplaced, cluster.fail_reasons("s"))]
    assert reasons == [f"b1[2]: RuntimeError: {word} is bad" for word in bad]
    assert sorted(cluster.read_tuples("b1")) == sorted([word] for word in good), (
        "what the failed ones had emitted is dropped"
    )


class Mixed(BasicBolt):
    output_streams = {"words": "word string", "numbers": "n long"}  # noqa: RUF012 - as users write it

    def execute(self, tup, collector):
        collector.emit([tup[0]], stream="words")
        collector.emit([tup[0] if tup[0] == "type" else 1], stream="numbers")
        if tup[0] == "stream":
            collector.emit([1], stream="nowhere")
        if tup[0] == "count":
            collector.emit([1, 2], stream="numbers")


def test_values_that_do_not_fit_the_stream_fail_the_tuple_and_nothing_of_it_leaves(cluster_of):
    builder = TopologyBuilder("mixed")
    builder.set_spout("s", feeding("good", "type", "stream", "count", "fine", fields="word string"))
    builder.set_bolt("mixed", Mixed()).shuffle_grouping("s")
    builder.set_bolt("end", Split()).shuffle_grouping("mixed", "words")
    cluster = cluster_of(builder.build())
    cluster.run_until_idle()
    assert outcome(cluster) == (["good", "fine"], ["type", "stream", "count"], 0)
    wrong_type, unknown, wrong_number = map(unplaced, cluster.fail_reasons("s"))
    assert (
        wrong_type == "mixed[2]: stream 'numbers': field 'n' is a long, the value is the str 'type'"
    )
    assert unknown == (
        "mixed[2]: UnknownStreamError: 'mixed' emits on stream 'nowhere'; its streams are words, "
        "numbers"
    )
    assert "BadValuesError: 'mixed' emits [1, 2]" in wrong_number
    assert sorted(cluster.read_tuples("mixed", "words")) == [["fine"], ["good"]]
    assert cluster.read_tuples("mixed", "numbers") == [[1], [1]]


class Unflushed(BasicBolt):
    """Cannot flush an even number."""

    output_fields = "x long"

    def prepare(self, config, context):
        self.buffer = []

    def execute(self, tup, collector):
        self.buffer.append(tup[0])
        collector.emit([tup[0]])

    def flush(self, collector):
        buffer = self.buffer
        self.buffer = []
        if any(number % 2 == 0 for number in buffer):
            raise ConnectionError("gone")


@pytest.mark.parametrize("bad", [[2], [1, 2]], ids=["alone", "with another"])
def test_what_a_flush_could_not_write_fails_and_the_next_step_goes_on(cluster_of, bad):
    feeder = feeding(*bad)
    cluster = cluster_of(chain(feeder, Unflushed(), Pass()))
    cluster.run_until_idle()
    assert cluster.failed("s") == bad
    assert unplaced(cluster.fail_reasons("s")[0]) == "b1[2]: flush: ConnectionError: gone"
    feeder.feed([5], 5)
    cluster.run_until_idle()
    assert (cluster.acked("s"), cluster.read_tuples("b1")) == ([5], [[5]])
