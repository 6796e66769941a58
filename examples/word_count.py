"""Word count: sentences from the queue ``sentences``, words counted in the state of ``count``.

To look at the counts: ``redis-cli HGETALL "tiercel:{word-count:0}:state:count"``.
"""

from __future__ import annotations

from tiercel import (
    BasicBolt,
    BasicCollector,
    QueueSpout,
    StatefulBolt,
    Topology,
    TopologyBuilder,
    Tuple,
)


class SplitSentence(BasicBolt):
    """Splits a sentence into words, each anchored to the sentence."""

    output_fields = "word string"

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:
        for word in tup["sentence"].split():
            collector.emit([word])


class WordCount(StatefulBolt):
    """Counts words, each once however often Spark repeats a task.

    The words of a replayed sentence are counted again.
    """

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:  # noqa: ARG002 - nothing to emit
        self.state.increment(tup["word"])


def topology() -> Topology:
    builder = TopologyBuilder("word-count")
    builder.set_spout("sentences", QueueSpout("sentences", fields="sentence string"))
    builder.set_bolt("split", SplitSentence(), parallelism=2).shuffle_grouping("sentences")
    builder.set_bolt("count", WordCount(), parallelism=2).fields_grouping("split", "word")
    return builder.build()
