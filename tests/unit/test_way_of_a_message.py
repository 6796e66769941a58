"""The files that one message passes from delivery to ack, and the moves between them: all that a
reader of the code has to follow.

Twins replace Redis and a fake replaces RabbitMQ. The bounds are the current numbers: lower them
whenever a file goes. The goal is 25 files and 100 moves.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.trace import OneMessage, Way
from tiercel import BasicBolt, QueueSpout, TopologyBuilder
from tiercel.examples import word_count
from tiercel.examples.word_count import SplitSentence

# Bounds for the whole package; and for the engine, the files between the spout and its ack without
# the twins of Redis and the channel to RabbitMQ.
MOST_FILES = 30
MOST_MOVES = 148
MOST_FILES_OF_THE_ENGINE = 22
MOST_MOVES_OF_THE_ENGINE = 104
TWINS = (
    "acker/effects",
    "acker/ledger",
    "acker/memory",
    "acker/inbox/memory",
    "workers/testing/",
)
CHANNEL = ("queues/consuming/", "queues/retry")

# Parts for features that the bolts here do not use.
TICKS = "TickClock"
SUSPECTS = ("spark_jobs/running/suspicion.py", "spark_jobs/suspects/")
STATES = ("spark_jobs/running/states.py", "spark_jobs/state/")
SNAPSHOTS = "WorkingCopy._pack"


class Count(BasicBolt):
    """Counts in an attribute that outlives its process."""

    output_fields = "word string, n long"

    def prepare(self, config, context):
        self.counts = Counter()

    def execute(self, tup, collector):
        self.counts[tup["word"]] += 1
        collector.emit([tup["word"], self.counts[tup["word"]]])


class Look(BasicBolt):
    """Has no attributes."""

    def execute(self, tup, collector):
        pass


def counted_by(bolt):
    builder = TopologyBuilder("word-count")
    builder.set_spout("sentences", QueueSpout("sentences", fields="sentence string"))
    builder.set_bolt("split", SplitSentence(), parallelism=2).shuffle_grouping("sentences")
    builder.set_bolt("count", bolt, parallelism=2).fields_grouping("split", "word")
    return builder.build()


def way_of_one_word(topology) -> Way:
    one = OneMessage(topology)
    for _ in range(4):
        one.way(b"word")
    return one.way(b"word")


def entered(way, *places):
    """Return the files and functions in these places."""
    named = [name for file, function in way.calls for name in (file, function)]
    return [name for name in named if name.startswith(places)]


def test_a_message_of_word_count_enters_no_more_files_than_now():
    way = way_of_one_word(counted_by(Count()))
    assert len(way.files) <= MOST_FILES, f"\n{way}"
    assert way.moves <= MOST_MOVES, f"\n{way}"
    engine = way.without(*TWINS, *CHANNEL)
    assert len(engine.files) <= MOST_FILES_OF_THE_ENGINE, f"\n{engine}"
    assert engine.moves <= MOST_MOVES_OF_THE_ENGINE, f"\n{engine}"


def test_the_way_is_that_of_the_worker_and_of_the_bolts():
    way = way_of_one_word(counted_by(Count()))
    for file in (
        "queues/queue_spout.py",
        "workers/spout/loop.py",
        "workers/spout/collector.py",
        "workers/spout/outbox.py",
        "spark_jobs/running/attempt.py",
        "spark_jobs/running/commit.py",
        "workers/spout/trees.py",
    ):
        assert file in way.files
    assert way.files[0] == "queues/consuming/channel.py"


@pytest.mark.parametrize(
    ("bolt", "never"),
    [
        pytest.param(Look(), (TICKS, SNAPSHOTS, *STATES, *SUSPECTS), id="no attributes"),
        pytest.param(Count(), (TICKS, *STATES, *SUSPECTS), id="an attribute"),
    ],
)
def test_a_bolt_pays_only_for_what_it_has(bolt, never):
    assert entered(way_of_one_word(counted_by(bolt)), *never) == []


def test_properties_that_are_not_named_are_not_looked_at():
    assert entered(way_of_one_word(counted_by(Look())), "queues/message/") == []


def test_a_bolt_with_a_state_has_it_on_the_way():
    way = way_of_one_word(word_count.topology())
    assert entered(way, *STATES)
    assert entered(way, TICKS, *SUSPECTS) == []
