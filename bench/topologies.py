"""What is measured: sentences split, words counted by word, counts written to Redis. Settings are the defaults."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import redis

from bench.probe import start_probe
from examples.word_count import SplitSentence, WordCount
from queues import QueueSpout, SpoutContext
from spark_jobs import ArrowBolt, ArrowCollector, Config, Topology, TopologyBuilder
from spark_jobs.arrow_bolt import AnyBolt

KINDS = ("basic", "arrow", "untracked")


class ObservedSpout(QueueSpout):
    """The queue's spout, with a probe in its worker."""

    def open(self, config: Mapping[str, Any], context: SpoutContext) -> None:
        start_probe()
        super().open(config, context)


class SplitBatch(ArrowBolt):
    output_fields = "word string"

    def execute(self, batch: pa.RecordBatch, collector: ArrowCollector) -> None:
        words = pc.utf8_split_whitespace(batch["sentence"])
        collector.emit({"word": words.flatten()}, pc.list_parent_indices(words))


class CountBatch(ArrowBolt):
    """Writes the counts of a micro-batch to Redis before its acks leave: one HINCRBY a word, in one pipeline."""

    transient = frozenset({"_client", "_counts"})

    def prepare(self, config: Mapping[str, Any], context: Any) -> None:
        super().prepare(config, context)
        self._client = redis.Redis.from_url(os.environ["TIERCEL_REDIS"])
        self._counts: Counter[str] = Counter()

    def execute(self, batch: pa.RecordBatch, collector: ArrowCollector) -> None:  # noqa: ARG002 - nothing to emit
        counted = batch["word"].value_counts()
        self._counts.update(dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True)))

    def flush(self, collector: ArrowCollector) -> None:  # noqa: ARG002 - nothing to emit
        if self._counts:
            with self._client.pipeline(transaction=False) as pipeline:
                for word, count in self._counts.items():
                    pipeline.hincrby("bench-counts", word, count)
                pipeline.execute()
            self._counts.clear()


def word_count(kind: str, split: AnyBolt, count: AnyBolt, config: Config) -> Topology:
    builder = TopologyBuilder(f"bench-{kind}", config)
    builder.set_spout("sentences", ObservedSpout(f"bench-{kind}", fields="sentence string"))
    builder.set_bolt("split", split, parallelism=2).shuffle_grouping("sentences")
    builder.set_bolt("count", count, parallelism=2).fields_grouping("split", "word")
    return builder.build()


def basic() -> Topology:
    return word_count("basic", SplitSentence(), WordCount(), Config())


def arrow() -> Topology:
    return word_count("arrow", SplitBatch(), CountBatch(), Config())


def untracked() -> Topology:
    return word_count("untracked", SplitSentence(), WordCount(), Config(ackers=0))
