"""Kinds of bolts besides Bolt and BasicBolt: StatefulBolt, ArrowBolt, BatchBolt, AsyncBolt, and
threads.

In memory every test of this folder runs with the last three: see conftest.
"""

import asyncio
import time

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.semantics.components import Split, feeding, outcome
from tests.support.reasons import unplaced
from tiercel import ArrowBolt, AsyncBolt, BasicBolt, BatchBolt, StatefulBolt, TopologyBuilder


class Count(StatefulBolt):
    output_fields = "word string, count long"

    def execute(self, tup, collector):
        if tup["word"] == "bad":
            self.state.increment("never seen")
            raise ValueError("a bad word")
        collector.emit([tup["word"], self.state.increment(tup["word"])])


def test_a_state_lasts_from_step_to_step_and_forgets_what_a_failed_tuple_wrote(cluster_of):
    feeder = feeding("a b a", fields="line string")
    builder = TopologyBuilder("counts")
    builder.set_spout("s", feeder)
    builder.set_bolt("split", Split(), parallelism=2).shuffle_grouping("s")
    builder.set_bolt("count", Count(), parallelism=3).fields_grouping("split", "word")
    cluster = cluster_of(builder.build())
    cluster.run_until_idle()
    for line in ("a c", "bad"):
        feeder.feed([line], line)
        cluster.run_until_idle()
    assert sorted(cluster.read_tuples("count")) == [
        ["a", 1],
        ["a", 2],
        ["a", 3],
        ["b", 1],
        ["c", 1],
    ]
    assert outcome(cluster) == (["a b a", "a c"], ["bad"], 0)
    assert dict(cluster.state("count")) == {"a": 3, "b": 1, "c": 1}


class SplitColumns(ArrowBolt):
    """Emits each word of each line anchored to its line; a line with "bad" fails."""

    output_fields = "word string"

    def execute(self, batch, collector):
        lines = batch.column("line")
        bad = pc.indices_nonzero(pc.match_substring(lines, "bad"))
        collector.fail(bad, "a bad line")
        words = pc.utf8_split_whitespace(lines)
        flat = pc.list_flatten(words)
        collector.emit(pa.record_batch([flat], names=["word"]), pc.list_parent_indices(words))


class Tell(BasicBolt):
    output_fields = "word string"

    def execute(self, tup, collector):
        collector.emit([tup["word"]])


def test_an_arrow_bolt_stands_among_others(cluster_of):
    builder = TopologyBuilder("arrow")
    builder.set_spout("s", feeding("a b", "a bad one", "c", fields="line string"))
    builder.set_bolt("split", SplitColumns(), parallelism=2).shuffle_grouping("s")
    builder.set_bolt("tell", Tell(), parallelism=2).fields_grouping("split", "word")
    cluster = cluster_of(builder.build())
    cluster.run_until_idle()
    assert sorted(cluster.read_tuples("tell")) == [["a"], ["b"], ["c"]]
    assert (sorted(cluster.acked("s")), cluster.failed("s"), cluster.pending("s")) == (
        ["a b", "c"],
        ["a bad one"],
        0,
    )
    assert cluster.fail_reasons("s") == ["split[2]: a bad line"] or cluster.fail_reasons("s") == [
        "split[3]: a bad line"
    ]


class SplitBatch(BatchBolt):
    """Like SplitColumns, but raises for a line with "worse", and emits its batch size."""

    output_streams = {"default": "word string", "sizes": "tuples long"}  # noqa: RUF012 - as users write it
    size = 4
    on_error = "split"

    def execute_batch(self, tuples, collector):
        for tup in tuples:
            if "bad" in tup["line"]:
                collector.fail(tup, "a bad line")
            for word in tup["line"].split():
                if word == "worse":
                    raise ValueError("a worse line")
                collector.emit([word], tup)
        collector.emit([len(tuples)], tuples, stream="sizes")


def test_a_batch_bolt_stands_among_others(cluster_of):
    builder = TopologyBuilder("batch")
    lines = ("a b", "a bad one", "c", "d worse", "e", "f")
    builder.set_spout("s", feeding(*lines, fields="line string"))
    builder.set_bolt("split", SplitBatch()).shuffle_grouping("s")
    builder.set_bolt("tell", Tell(), parallelism=2).fields_grouping("split", "word")
    cluster = cluster_of(builder.build())
    cluster.run_until_idle()
    assert sorted(cluster.read_tuples("tell")) == [["a"], ["b"], ["c"], ["e"], ["f"]]
    assert sorted(cluster.acked("s")) == ["a b", "c", "e", "f"]
    assert sorted(map(unplaced, cluster.fail_reasons("s"))) == [
        "split[2]: ValueError: a worse line",
        "split[2]: a bad line",
    ]
    assert cluster.pending("s") == 0
    sizes = [size for [size] in cluster.read_tuples("split", "sizes")]
    assert sum(sizes) == 5
    assert max(sizes) <= 4


class SplitAsync(AsyncBolt):
    """Emits each word of a line after a while; the first lines take longest."""

    output_fields = "word string"

    async def prepare(self, config, context):
        self.lines = 0
        await asyncio.sleep(0)

    async def execute(self, tup, collector):
        self.lines += 1
        await asyncio.sleep(0.2 / self.lines)
        for word in tup["line"].split():
            collector.emit([word])
        if "bad" in tup["line"]:
            raise ValueError("a bad line")

    async def flush(self, collector):
        await asyncio.sleep(0)


class SplitBlocking(BasicBolt):
    output_fields = "word string"

    def execute(self, tup, collector):
        time.sleep(0.05)
        for word in tup["line"].split():
            collector.emit([word])
        if "bad" in tup["line"]:
            raise ValueError("a bad line")


@pytest.mark.parametrize(
    ("split", "config"),
    [(SplitAsync(), {"concurrency": 20}), (SplitBlocking(), {"threads": 20})],
    ids=["async", "threads"],
)
def test_many_tuples_of_one_task_are_under_way_at_once(cluster_of_basic, split, config):
    lines = ["a b", "bad one", *(f"w{number}" for number in range(18))]
    feeder = feeding(*lines, fields="line string")
    builder = TopologyBuilder("waiting")
    builder.set_spout("s", feeder)
    builder.set_bolt("split", split, config=config).shuffle_grouping("s")
    builder.set_bolt("tell", Tell(), parallelism=2).fields_grouping("split", "word")
    cluster = cluster_of_basic(builder.build())
    cluster.run_until_idle()
    cluster.advance_time(1)
    good = [line for line in lines if line != "bad one"]
    assert sorted(cluster.read_tuples("tell")) == sorted(
        [word] for line in good for word in line.split()
    )
    assert (sorted(cluster.acked("s")), cluster.failed("s")) == (sorted(good), ["bad one"])
    [reason] = cluster.fail_reasons("s")
    assert unplaced(reason) == "split[2]: ValueError: a bad line"
    feeder.feed(["again"], "again")
    cluster.run_until_idle()
    cluster.advance_time(1)
    assert cluster.acked("s")[-1] == "again"
