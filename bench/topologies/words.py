"""Sentences split, words counted by word, counts written to Redis.

Settings are the defaults.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import redis

from bench.sections import start_activities
from bench.topologies.observed import ObservedSpout
from tiercel import ArrowBolt, ArrowCollector, Config, Topology, TopologyBuilder
from tiercel.examples.word_count import SplitSentence, WordCount
from tiercel.spark_jobs.bolts.windowed_bolt import AnyBolt

KINDS = ("basic", "arrow", "untracked")


class SplitBatch(ArrowBolt):
    output_fields = "word string"

    def execute(self, batch: pa.RecordBatch, collector: ArrowCollector) -> None:
        words = pc.utf8_split_whitespace(batch["sentence"])
        collector.emit({"word": words.flatten()}, pc.list_parent_indices(words))


class CountBatch(ArrowBolt):
    """Writes the counts of a step to Redis before its acks leave: one HINCRBY per word,
    in one pipeline.
    """

    transient = frozenset({"_client", "_counts"})

    def prepare(self, config: Mapping[str, Any], context: Any) -> None:
        super().prepare(config, context)
        self._client = redis.Redis.from_url(os.environ["TIERCEL_REDIS"])
        self._counts: Counter[str] = Counter()

    def execute(self, batch: pa.RecordBatch, collector: ArrowCollector) -> None:  # noqa: ARG002 - nothing to emit
        counted = batch["word"].value_counts()
        self._counts.update(
            dict(
                zip(
                    counted.field("values").to_pylist(),
                    counted.field("counts").to_pylist(),
                    strict=True,
                )
            )
        )

    def flush(self, collector: ArrowCollector) -> None:  # noqa: ARG002 - nothing to emit
        if self._counts:
            with self._client.pipeline(transaction=False) as pipeline:
                for word, count in self._counts.items():
                    pipeline.hincrby("bench-counts", word, count)
                pipeline.execute()
            self._counts.clear()


def word_count(
    kind: str, split: AnyBolt, count: AnyBolt, config: Config, **settings: Any
) -> Topology:
    """``settings`` are further settings of the spout."""
    builder = TopologyBuilder(f"bench-{kind}", config)
    spout = ObservedSpout(f"bench-{kind}", fields="sentence string", **settings)
    builder.set_spout("sentences", spout)
    builder.set_bolt("split", split, parallelism=2).shuffle_grouping("sentences")
    builder.set_bolt("count", count, parallelism=2).fields_grouping("split", "word")
    return builder.build()


def basic() -> Topology:
    return word_count("basic", SplitSentence(), WordCount(), Config())


def arrow() -> Topology:
    return word_count("arrow", SplitBatch(), CountBatch(), Config())


def untracked() -> Topology:
    return word_count("untracked", SplitSentence(), WordCount(), Config(ackers=0))


def unnamed() -> Topology:
    return word_count("unnamed", SplitSentence(), WordCount(), Config())


def named() -> Topology:
    """Count words, with the message's properties in each tuple."""
    names = ["message_id", "headers", "timestamp", "routing_key", "delivery_count"]
    return word_count("named", SplitSentence(), WordCount(), Config(), properties=names)


class ObservedSplit(SplitSentence):
    """Has the activities of its process measured."""

    def prepare(self, config: Mapping[str, Any], context: Any) -> None:
        super().prepare(config, context)
        start_activities()


class ObservedCount(WordCount):
    """Has the activities of its process measured."""

    def prepare(self, config: Mapping[str, Any], context: Any) -> None:
        super().prepare(config, context)
        start_activities()


def activities() -> Topology:
    return word_count("activities", ObservedSplit(), ObservedCount(), Config())


class WordCountOnce(WordCount):
    once = True


def repeatedly() -> Topology:
    """Count a word each time its message is delivered."""
    return word_count("repeatedly", SplitSentence(), WordCount(), Config())


def once() -> Topology:
    """Count each word once, by the id of its message."""
    return word_count("once", SplitSentence(), WordCountOnce(), Config(), identity="message_id")
