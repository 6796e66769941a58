"""The demo's topologies: word count with and without injected faults, marking each counted word."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from tiercel.acker.redis.clients import connect
from tiercel.queues.broker.declare import WorkQueue
from tiercel.queues.queue_spout import QueueSpout
from tiercel.queues.retry import RetryPolicy
from tiercel.spark_jobs.bolts.bolt import BasicBolt
from tiercel.spark_jobs.bolts.collecting import BasicCollector, TopologyContext
from tiercel.spark_jobs.bolts.tuples import Tuple
from tiercel.spark_jobs.topology.builder import TopologyBuilder
from tiercel.spark_jobs.topology.graph import Topology

NAME = "tiercel-demo"
QUEUE = "tiercel-demo"
COUNTS_KEY = f"{NAME}:counts"
SEEN_KEY = f"{NAME}:seen"
FAILING_SHARE = 0.01
WORK_QUEUE = WorkQueue(
    name=QUEUE,
    delivery_limit=5,
    retry=RetryPolicy(first=timedelta(milliseconds=50), longest=timedelta(seconds=1)),
)
SPOUT = "sentences"
# The bolt always raises on a line that begins with this.
POISON = "\N{SKULL AND CROSSBONES} poison"


class SplitNumbered(BasicBolt):
    """Splits a sentence into words, numbered through the whole text."""

    output_fields = "word string, number long"

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:
        for offset, word in enumerate(tup["sentence"].split()):
            collector.emit([word, tup["first_word"] + offset])


class FlakySplit(SplitNumbered):
    """Fails one sentence in a hundred at random, and every poison line."""

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:
        if tup["sentence"].startswith(POISON):
            raise ValueError("this line is poison")
        if random.random() < FAILING_SHARE:
            raise RuntimeError("injected: one sentence in a hundred fails")
        super().execute(tup, collector)


class CountNumbered(BasicBolt):
    """Counts words and marks each by number: a word counted twice cannot hide a lost one."""

    def prepare(self, config: Mapping[str, Any], context: TopologyContext) -> None:  # noqa: ARG002 - there is one demo
        self.redis = connect(config["redis_url"], COUNTS_KEY)
        self.counts: Counter[str] = Counter()
        self.numbers: list[int] = []

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:  # noqa: ARG002 - nothing to emit
        self.counts[tup["word"]] += 1
        self.numbers.append(tup["number"])

    def flush(self, collector: BasicCollector) -> None:  # noqa: ARG002 - nothing to emit
        # Set marks first: if counting fails then, the sentences are replayed, and setting a mark
        # twice is harmless.
        with self.redis.pipeline(transaction=False) as pipeline:
            for number in self.numbers:
                pipeline.setbit(SEEN_KEY, number, 1)
            pipeline.execute()
        with self.redis.pipeline(transaction=True) as pipeline:
            for word, count in self.counts.items():
                pipeline.zincrby(COUNTS_KEY, count, word)
            pipeline.execute()
        self.numbers.clear()
        self.counts.clear()


def calm() -> Topology:
    """Return the topology without faults."""
    return _topology(SplitNumbered())


def faulty() -> Topology:
    """Return the topology in which one sentence in a hundred fails per try, and poison always."""
    return _topology(FlakySplit())


def _topology(split: BasicBolt) -> Topology:
    spout = QueueSpout(
        QUEUE,
        fields="sentence string, first_word long",
        delivery_limit=WORK_QUEUE.delivery_limit,
        retry=WORK_QUEUE.retry,
    )
    builder = TopologyBuilder(NAME)
    builder.set_spout(SPOUT, spout, parallelism=2)
    builder.set_bolt("split", split, parallelism=2).shuffle_grouping(SPOUT)
    builder.set_bolt("count", CountNumbered(), parallelism=2).fields_grouping("split", "word")
    return builder.build()
