"""The measured spout and bolts."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc

from tiercel import (
    ArrowBolt,
    ArrowCollector,
    BasicBolt,
    BasicCollector,
    Bolt,
    OutputCollector,
    Spout,
    TopologyBuilder,
    Tuple,
)
from tiercel.spark_jobs.bolts.windowed_bolt import AnyBolt
from tiercel.spark_jobs.topology.graph import Topology


class Sentences(Spout):
    output_fields = "sentence string"


class Split(BasicBolt):
    output_fields = "word string"

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:
        for word in tup["sentence"].split():
            collector.emit([word])


class SplitByHand(Bolt):
    output_fields = "word string"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        for word in tup["sentence"].split():
            collector.emit([word], tup)
        collector.ack(tup)


class SplitBatch(ArrowBolt):
    output_fields = "word string"

    def execute(self, batch: pa.RecordBatch, collector: ArrowCollector) -> None:
        words = pc.utf8_split_whitespace(batch["sentence"])
        collector.emit({"word": words.flatten()}, pc.list_parent_indices(words))


class Count(BasicBolt):
    transient = frozenset({"counts"})

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:  # noqa: ARG002 - nothing to emit
        self.counts[tup["word"]] += 1


class CountBatch(ArrowBolt):
    transient = frozenset({"counts"})

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def execute(self, batch: pa.RecordBatch, collector: ArrowCollector) -> None:  # noqa: ARG002 - nothing to emit
        counted = batch["word"].value_counts()
        self.counts.update(
            dict(
                zip(
                    counted.field("values").to_pylist(),
                    counted.field("counts").to_pylist(),
                    strict=True,
                )
            )
        )


def topology_of(split: AnyBolt, count: AnyBolt) -> Topology:
    builder = TopologyBuilder("bench")
    builder.set_spout("sentences", Sentences())
    builder.set_bolt("split", split).shuffle_grouping("sentences")
    builder.set_bolt("count", count, parallelism=2).fields_grouping("split", "word")
    return builder.build()
