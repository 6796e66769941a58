"""Word count over whole record batches, without a Python loop.

It reads the queue ``sentences`` and publishes to ``word-counts``. Each message there is the count
of a word in one step, ``{"word": "falcon", "n": 3}``; a consumer adds them up.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tiercel import ArrowBolt, ArrowCollector, QueueSink, QueueSpout, Topology, TopologyBuilder


class SplitSentences(ArrowBolt):
    """Explode and filter: turns sentences into words.

    Each word is anchored to the row of its sentence.
    """

    output_fields = "word string"

    def execute(self, batch: pa.RecordBatch, collector: ArrowCollector) -> None:
        words = pc.utf8_split_whitespace(batch["sentence"])
        table = pa.table({"word": words.flatten(), "sentence": pc.list_parent_indices(words)})
        table = table.filter(pc.field("word") != "")
        collector.emit(table.select(["word"]), anchors=table["sentence"])


class CountWords(ArrowBolt):
    """Fold: emits one row per distinct word, anchored to all rows that it counts."""

    output_fields = "word string, n long"

    def execute(self, batch: pa.RecordBatch, collector: ArrowCollector) -> None:
        table = pa.table({"word": batch["word"], "row": np.arange(batch.num_rows)})
        counts = table.group_by("word").aggregate([("row", "count"), ("row", "list")])
        collector.emit(
            {"word": counts["word"], "n": counts["row_count"]}, anchors=counts["row_list"]
        )


def topology() -> Topology:
    builder = TopologyBuilder("arrow-word-count")
    builder.set_spout("sentences", QueueSpout("sentences", fields="sentence string"))
    builder.set_bolt("split", SplitSentences(), parallelism=2).shuffle_grouping("sentences")
    builder.set_bolt("count", CountWords(), parallelism=2).fields_grouping("split", "word")
    builder.set_bolt("publish", QueueSink("word-counts")).shuffle_grouping("count")
    return builder.build()
