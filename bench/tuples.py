"""Microseconds a tuple: sentences of ten words split, words counted, fully tracked, in one process without Spark and Redis.

    python bench/tuples.py [--sentences N] [--rounds N] [--profile]

Each level is timed as the runner sees it: chunks decoded, bolts executed, edges derived, updates folded, chunks encoded. The
ledger answers at once and does nothing. Figures go to standard output; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from acker import Applied, Failure, MemoryMetrics, Reply, RootIds, Token, Updates
from queues import Spout
from spark_jobs import (
    ArrowBolt,
    ArrowCollector,
    BasicBolt,
    BasicCollector,
    Bolt,
    OutputCollector,
    TopologyBuilder,
    Tuple,
)
from spark_jobs.arrow_bolt import AnyBolt
from spark_jobs.emission import SpoutEmitter
from spark_jobs.levels import Plan, plan_topology
from spark_jobs.runner import LevelRunner

WORDS = 10
VOCABULARY = 5_000


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
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:  # noqa: ARG002 - nothing to emit
        self.counts[tup["word"]] += 1


class CountBatch(ArrowBolt):
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def execute(self, batch: pa.RecordBatch, collector: ArrowCollector) -> None:  # noqa: ARG002 - nothing to emit
        counted = batch["word"].value_counts()
        self.counts.update(dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True)))


class Nothing:
    """A ledger that takes no time."""

    def apply(self, token: Token, updates: Updates, failures: Sequence[Failure] = ()) -> Reply:  # noqa: ARG002
        return Reply(applied=Applied.FRESH)


def plan_of(split: AnyBolt, count: AnyBolt) -> Plan:
    builder = TopologyBuilder("bench")
    builder.set_spout("sentences", Sentences())
    builder.set_bolt("split", split).shuffle_grouping("sentences")
    builder.set_bolt("count", count, parallelism=2).fields_grouping("split", "word")
    return plan_topology(builder.build(), 1)


def measure(split: AnyBolt, count: AnyBolt, sentences: int, rounds: int) -> dict[str, float]:
    """Median seconds of each step."""
    plan = plan_of(split, count)
    emitter = SpoutEmitter(plan, "sentences", 1)
    runners = [LevelRunner(plan=plan, level=level, ledger=Nothing(), metrics=MemoryMetrics(), config={}) for level in (1, 2)]
    drawn = RootIds(timedelta(hours=1))
    chance = random.Random(1)
    vocabulary = [f"word{number}" for number in range(VOCABULARY)]
    times: dict[str, list[float]] = {"spout": [], "split": [], "count": []}
    for batch in range(rounds):
        lines = [" ".join(chance.choices(vocabulary, k=WORDS)) for _ in range(sentences)]
        began = time.perf_counter()
        for root, line in zip(drawn.draw(sentences), lines, strict=True):
            emitter.emit([line], root, "default")
        payloads = [entry.payload for entry in emitter.take().entries]
        times["spout"].append(time.perf_counter() - began)
        for level, step in ((1, "split"), (2, "count")):
            began = time.perf_counter()
            rows = runners[level - 1].run(Token(run="bench", batch=batch, level=level, partition=0), payloads)
            times[step].append(time.perf_counter() - began)
            payloads = [payload for _, payload in rows]
    return {step: statistics.median(found) for step, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=10_000, help="a micro-batch")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--profile", action="store_true", help="say where the time goes")
    arguments = parser.parse_args()
    gc.collect()
    gc.freeze()  # as a Spark worker does once it has its imports
    if arguments.profile:
        with cProfile.Profile() as profile:
            measure(Split(), Count(), arguments.sentences, arguments.rounds)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    count, figures, splits = arguments.sentences, dict[str, float](), dict[str, float]()
    kinds: list[tuple[str, AnyBolt, AnyBolt]] = [
        ("BasicBolt", Split(), Count()),
        ("Bolt", SplitByHand(), Count()),
        ("ArrowBolt", SplitBatch(), CountBatch()),
    ]
    for name, split, counter in kinds:
        seconds = measure(split, counter, count, arguments.rounds)
        words = count * WORDS
        splits[name] = seconds["split"]
        print(f"{name}, {count} sentences of {WORDS} words a micro-batch, median of {arguments.rounds}")
        print(f"  spout  {seconds['spout'] / count * 1e6:6.2f} us a sentence emitted")
        print(f"  split  {seconds['split'] / (count + words) * 1e6:6.2f} us a tuple in or out")
        print(f"  count  {seconds['count'] / words * 1e6:6.2f} us a tuple in")
        total = seconds["split"] + seconds["count"]
        print(f"  both   {total / words * 1e6:6.2f} us a word, {words / total:9.0f} words a second on one core")
        figures[f"{name}_words_per_s"] = round(words / total)
    figures["split_ArrowBolt_times_BasicBolt"] = round(splits["BasicBolt"] / splits["ArrowBolt"], 1)
    print(f"an ArrowBolt splits {figures['split_ArrowBolt_times_BasicBolt']} times as fast as a BasicBolt")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
