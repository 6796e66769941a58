"""An ArrowBolt has the same effects as bolts that work tuple by tuple: copies, edges, tasks and
outcomes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pump import Pump, Source
from tiercel import ArrowBolt, BasicBolt, Bolt, Topology, TopologyBuilder
from tiercel.acker.ids import mix
from tiercel.acker.inbox.chunk import Chunk


class ExplodeTuple(BasicBolt):
    """Emits each word as often as its tuple says, some on a second stream too.

    Fails or raises where the tuple says so.
    """

    output_streams = {"default": "word string, copy long", "seen": "word string"}  # noqa: RUF012 - as users write it

    def execute(self, tup, collector):
        for copy in range(tup["copies"]):
            collector.emit([tup["word"], copy])
        if tup["word"] != "b":
            collector.emit([tup["word"]], stream="seen")
        if tup["action"]:
            raise RuntimeError(tup["action"])


class ExplodeBatch(ArrowBolt):
    output_streams = ExplodeTuple.output_streams

    def execute(self, batch, collector):
        if pc.any(pc.equal(batch["action"], "raise")).as_py():
            raise RuntimeError("raise")
        collector.fail(pc.indices_nonzero(pc.equal(batch["action"], "fail")), RuntimeError("fail"))
        copies = batch["copies"].to_numpy()
        parents = np.repeat(np.arange(batch.num_rows), copies)
        collector.emit(
            {"word": batch["word"].take(pa.array(parents)), "copy": number_runs(copies)}, parents
        )
        kept = pc.indices_nonzero(pc.not_equal(batch["word"], "b"))
        collector.emit(batch.select(["word"]).take(kept), kept, stream="seen")


def number_runs(lengths: np.ndarray) -> np.ndarray:
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)


class FoldTuples(Bolt):
    """Merges all tuples of a word into one; bad tuples fail, with their whole word if it has no
    others.
    """

    output_fields = "word string, total long"

    def prepare(self, config, context):
        self.held: list = []

    def execute(self, tup, collector):
        self.held.append(tup)

    def flush(self, collector):
        held = self.held
        self.held = []
        for word in sorted({tup["word"] for tup in held}):
            tuples = [tup for tup in held if tup["word"] == word]
            if not all(tup["action"] for tup in tuples):
                collector.emit([word, sum(tup["copies"] for tup in tuples)], tuples)
        for tup in held:
            collector.fail(tup, tup["action"]) if tup["action"] else collector.ack(tup)


class FoldBatch(ArrowBolt):
    output_fields = FoldTuples.output_fields

    def execute(self, batch, collector):
        table = pa.table(batch).append_column("row", [np.arange(batch.num_rows)])
        folded = (
            table.group_by("word").aggregate([("copies", "sum"), ("row", "list")]).sort_by("word")
        )
        collector.emit(
            {"word": folded["word"], "total": folded["copies_sum"]}, anchors=folded["row_list"]
        )
        for action in ("fail", "raise"):
            collector.fail(pc.indices_nonzero(pc.equal(batch["action"], action)), action)


class Sink(BasicBolt):
    """Fails the tuple that the fold made of a single c."""

    def execute(self, tup, collector):
        if tup["word"] == "c" and len(tup) == 2 and tup[1] == 1:
            raise ValueError("one")


class Pass(BasicBolt):
    output_fields = "word string, copies int, action string"

    def execute(self, tup, collector):
        collector.emit(tup.values)


class Numbered:
    """Root ids that two pumps share."""

    def __init__(self) -> None:
        self._next = itertools.count(1)

    def draw(self, count: int) -> list[int]:
        return [mix(next(self._next)) for _ in range(count)]


def group(declarer: Any, how: str, component: str, stream: str = "default") -> None:
    keys = ["word"] if how in ("fields", "partial_key") else []
    getattr(declarer, f"{how}_grouping")(component, *keys, stream=stream)


def topology(bolt: Any, groupings: tuple[str, str], between: bool) -> Topology:
    """Two spouts, an optional bolt, the bolt under test, and sinks with these groupings."""
    builder = TopologyBuilder("equal")
    for spout in ("one", "two"):
        builder.set_spout(spout, Source(Pass.output_fields))
    sources = ["one", "two"]
    if between:
        builder.set_bolt("pass", Pass(), parallelism=2).shuffle_grouping("one").shuffle_grouping(
            "two"
        )
        sources = ["pass"]
    declarer = builder.set_bolt("bolt", bolt, parallelism=2)
    for source in sources:
        declarer.fields_grouping(source, "word")
    for number, (stream, how) in enumerate(zip(("default", "seen"), groupings, strict=True)):
        if stream == "default" or not between:
            group(builder.set_bolt(f"sink{number}", Sink(), parallelism=3), how, "bolt", stream)
    return builder.build()


def content(chunks: Iterable[Chunk]) -> dict[Any, list]:
    """Return the content of the chunks, independent of how it is split and ordered."""
    found: dict[Any, list] = {}
    for chunk in chunks:
        lineage = chunk.lineage
        for number, values in enumerate(chunk.values.to_pylist()):
            pairs = slice(lineage.offsets[number], lineage.offsets[number + 1])
            tree = sorted(
                zip(lineage.roots[pairs].tolist(), lineage.edges[pairs].tolist(), strict=True)
            )
            found.setdefault(chunk.route, []).append((tuple(values.values()), tree))
    return {key: sorted(tuples) for key, tuples in sorted(found.items(), key=str)}


INPUT = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.integers(0, 3),
        st.sampled_from(["", "", "", "fail", "raise"]),
        st.sampled_from(["one", "two"]),
        st.sampled_from([True, True, False]),
    ),
    max_size=20,
)
GROUPINGS = st.sampled_from(
    ["shuffle", "fields", "partial_key", "all", "global", "none", "local_or_shuffle"]
)


def same(pumps: list[Pump], rows: Iterable[tuple]) -> None:
    """Feed both and run both bolt by bolt: the same tuples wait for the next bolts."""
    for pump in pumps:
        pump._roots = Numbered()  # type: ignore[assignment]
        for word, copies, action, spout, tracked in rows:
            pump.feed([word, copies, action], spout=spout, tracked=tracked)
    bolts = list(pumps[0].topology.bolts)
    for at, bolt in enumerate(bolts):
        for pump in pumps:
            pump.work_at(bolt)
        waiting = [
            [chunk for later in bolts[at + 1 :] for chunk in pump.chunks(later)] for pump in pumps
        ]
        assert content(waiting[0]) == content(waiting[1]), f"after {bolt}"
    for pump in pumps:
        pump.run()
        assert pump.ledger.pending() == 0
    tuples, batches = pumps
    assert sorted(batches.acked) == sorted(tuples.acked)
    assert batches.failed == tuples.failed
    counted = [
        {
            (component, task, name): count
            for component, tasks in pump.metrics.totals().items()
            for task, counts in tasks.items()
            for name, count in counts.items()
            if name in ("executed", "acked", "failed")
        }
        for pump in pumps
    ]
    assert counted[0] == counted[1]


@given(INPUT, st.tuples(GROUPINGS, GROUPINGS))
def test_filter_and_explode_equal_those_of_a_basic_bolt(rows, groupings) -> None:
    same(
        [
            Pump(topology(bolt, groupings, between=False))
            for bolt in (ExplodeTuple(), ExplodeBatch())
        ],
        rows,
    )


@given(INPUT, GROUPINGS)
def test_a_fold_equals_that_of_a_bolt(rows, grouping) -> None:
    tracked = [(word, copies, action, spout, True) for word, copies, action, spout, _ in rows]
    same(
        [
            Pump(topology(bolt, (grouping, ""), between=True))
            for bolt in (FoldTuples(), FoldBatch())
        ],
        tracked,
    )
