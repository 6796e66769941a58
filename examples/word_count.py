"""Word count: sentences from the queue ``sentences``, words counted in the Redis sorted set ``word-count:counts``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import redis

from queues import QueueSpout
from spark_jobs import BasicBolt, BasicCollector, Topology, TopologyBuilder, TopologyContext, Tuple


class SplitSentence(BasicBolt):
    """A sentence in, its words out, each anchored to the sentence."""

    output_fields = "word string"

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:
        for word in tup["sentence"].split():
            collector.emit([word])


class WordCount(BasicBolt):
    """Counts words; one Redis call a micro-batch, made before the words are acked. A replayed sentence counts again."""

    def prepare(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        self.redis = redis.Redis.from_url(config["redis_url"])
        self.key = f"{context.topology}:counts"
        self.counts: Counter[str] = Counter()

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:  # noqa: ARG002 - nothing to emit
        self.counts[tup["word"]] += 1

    def flush(self, collector: BasicCollector) -> None:  # noqa: ARG002 - nothing to emit
        with self.redis.pipeline(transaction=True) as pipeline:
            for word, count in self.counts.items():
                pipeline.zincrby(self.key, count, word)
            pipeline.execute()
        self.counts.clear()


def topology() -> Topology:
    builder = TopologyBuilder("word-count")
    builder.set_spout("sentences", QueueSpout("sentences", fields="sentence string"))
    builder.set_bolt("split", SplitSentence(), parallelism=2).shuffle_grouping("sentences")
    builder.set_bolt("count", WordCount(), parallelism=2).fields_grouping("split", "word")
    return builder.build()
