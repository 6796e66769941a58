"""Words summed in windows of ten seconds, and counted without windows, over the same messages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from bench.topologies.observed import ObservedSpout
from tiercel import (
    AggregatingBolt,
    BasicCollector,
    Config,
    StatefulBolt,
    Topology,
    TopologyBuilder,
    Tuple,
    TupleWindow,
    WindowCollector,
    tumbling,
)
from tiercel.spark_jobs.bolts.bolt import BasicBolt
from tiercel.spark_jobs.bolts.windowed_bolt import AnyBolt


class Split(BasicBolt):
    output_fields = "word string, at long"

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:
        at = tup["at"]
        for word in tup["sentence"].split():
            collector.emit([word, at])


class Count(StatefulBolt):
    def execute(self, tup: Tuple, collector: BasicCollector) -> None:  # noqa: ARG002 - nothing to emit
        self.state.increment(tup["word"])


class Sum(AggregatingBolt):
    """Sums the words of ten seconds."""

    window = tumbling(timedelta(seconds=10))
    timestamp_field = "at"
    # Its last window closes after this time. A task of ``split`` may be slow at its start.
    idle = timedelta(seconds=3)
    output_fields = "word string, number long"

    def create(self) -> int:
        return 0

    def add(self, accumulator: int, tup: Tuple) -> int:  # noqa: ARG002 - each tuple is one
        return accumulator + 1

    def result(self, accumulator: int, window: TupleWindow, collector: WindowCollector) -> None:
        collector.emit([window.key, accumulator])


class Add(StatefulBolt):
    def execute(self, tup: Tuple, collector: BasicCollector) -> None:  # noqa: ARG002 - nothing to emit
        self.state.increment(tup["word"], tup["number"])


def _topology(kind: str, count: AnyBolt, **bolts: Any) -> Topology:
    builder = TopologyBuilder(f"bench-{kind}", Config())
    spout = ObservedSpout(f"bench-{kind}", fields="at long, sentence string")
    builder.set_spout("sentences", spout)
    builder.set_bolt("split", Split(), parallelism=2).shuffle_grouping("sentences")
    builder.set_bolt("count", count, parallelism=2).fields_grouping("split", "word")
    for name, bolt in bolts.items():
        builder.set_bolt(name, bolt, parallelism=2).fields_grouping("count", "word")
    return builder.build()


def counted() -> Topology:
    return _topology("counted", Count())


def summed() -> Topology:
    return _topology("summed", Sum(), add=Add())


class Hold(Sum):
    """Holds the tuples of a window that stays open, while earlier ones close."""

    lag = timedelta(seconds=1_000)
    max_held = 1_000_000


def held() -> Topology:
    builder = TopologyBuilder("bench-held", Config())
    spout = ObservedSpout("bench-held", fields="at long, sentence string")
    builder.set_spout("sentences", spout)
    builder.set_bolt("split", Split()).shuffle_grouping("sentences")
    builder.set_bolt("count", Hold()).fields_grouping("split", "word")
    builder.set_bolt("add", Add()).fields_grouping("count", "word")
    return builder.build()
