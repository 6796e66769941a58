"""The price of a tuple: sentences of ten words split, words counted, fully tracked, in one process without Spark and Redis.

    python bench/tuples.py [--sentences N] [--rounds N] [--profile BasicBolt]

Each level is timed as the runner sees it: chunks decoded, bolts executed, edges derived, updates folded, chunks encoded. The
ledger answers at once and does nothing. Times are CPU time. Figures go to standard output; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from acker import Applied, Failure, Ledger, MemoryMetrics, Reply, RootIds, Token, Updates
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
from spark_jobs.garbage import spare_the_collector
from spark_jobs.levels import Plan, plan_topology
from spark_jobs.runner import LevelRunner

WORDS = 10
VOCABULARY = 5_000
BATCH, ROUNDS = 10_000, 9
"""Sentences a micro-batch, and micro-batches of which the median counts."""


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


def measure(
    split: AnyBolt, count: AnyBolt, sentences: int, rounds: int, profile: cProfile.Profile | None = None
) -> dict[str, float]:
    """Median CPU seconds of each step of a micro-batch; ``profile`` sees the bolts' steps, but for the first micro-batch."""
    plan = plan_of(split, count)
    emitter = SpoutEmitter(plan, "sentences", 1)
    ledger = cast("Ledger", Nothing())
    runners = [LevelRunner(plan=plan, level=level, ledger=ledger, metrics=MemoryMetrics(), config={}) for level in (1, 2)]
    drawn = RootIds(timedelta(hours=1))
    chance = random.Random(1)
    vocabulary = [f"word{number}" for number in range(VOCABULARY)]
    times: dict[str, list[float]] = {"spout": [], "split": [], "count": []}
    for batch in range(rounds):
        lines = [" ".join(chance.choices(vocabulary, k=WORDS)) for _ in range(sentences)]
        began = time.process_time()
        emitter.emit_all([[line] for line in lines], drawn.draw(sentences), "default")
        payloads = [entry.payload for entry in emitter.take().entries]
        times["spout"].append(time.process_time() - began)
        with profile if profile is not None and batch else nullcontext():
            for level, step in ((1, "split"), (2, "count")):
                began = time.process_time()
                rows = runners[level - 1].run(Token(run="bench", task=level, step=batch), payloads)
                times[step].append(time.process_time() - began)
                payloads = [payload for _, payload in rows]
    return {step: statistics.median(found) for step, found in times.items()}


def figures(sentences: int = BATCH, rounds: int = ROUNDS) -> dict[str, dict[str, float]]:
    """By kind of bolt: microseconds of each step, and tuples a second on one core.

    The tuples are those that the two bolts were given: a sentence and its ten words are eleven.
    """
    spare_the_collector()  # as a Spark worker does once it has its imports
    kinds: dict[str, tuple[AnyBolt, AnyBolt]] = {
        "BasicBolt": (Split(), Count()),
        "Bolt": (SplitByHand(), Count()),
        "ArrowBolt": (SplitBatch(), CountBatch()),
    }
    found = {}
    words, given = sentences * WORDS, sentences * (1 + WORDS)
    for kind, (split, count) in kinds.items():
        seconds = measure(split, count, sentences, rounds)
        total = seconds["split"] + seconds["count"]
        found[kind] = {
            "spout_us": 1e6 * seconds["spout"] / sentences,
            "split_us": 1e6 * seconds["split"] / given,
            "count_us": 1e6 * seconds["count"] / words,
            "tuples_per_s": given / total,
            "words_per_s": words / total,
        }
    return found


def lines(found: dict[str, dict[str, float]]) -> list[str]:
    """For people."""
    return [
        f"{kind:<10} {row['tuples_per_s']:>11,.0f} tuples/s on one core; us: {row['spout_us']:.2f} a sentence emitted,"
        f" {row['split_us']:.2f} a tuple split (in or out), {row['count_us']:.2f} a word counted"
        for kind, row in found.items()
    ]


def hot_spots(kind: str, sentences: int = BATCH, rounds: int = 3, limit: int = 15) -> list[dict[str, float | str]]:
    """Where the time of a task goes: the functions with the most time of their own, in percent of all of it."""
    split, count = (Split(), Count()) if kind == "BasicBolt" else (SplitBatch(), CountBatch())
    profile = cProfile.Profile()
    measure(split, count, sentences, rounds, profile)
    stats = pstats.Stats(profile)
    rows = [
        {"function": _name(where), "percent": 100 * own / stats.total_tt, "calls": calls}  # type: ignore[attr-defined]
        for where, (calls, _, own, _, _) in stats.stats.items()  # type: ignore[attr-defined]
    ]
    return sorted(rows, key=lambda row: -float(row["percent"]))[:limit]


def _name(where: tuple[str, int, str]) -> str:
    path, line, name = where
    if path == "~":
        return name.strip("<>")
    parts = Path(path).parts
    return f"{'/'.join(parts[-2:])}:{line} {name}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=BATCH, help="a micro-batch")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--profile", choices=("BasicBolt", "ArrowBolt"), help="say where the time of this kind goes")
    arguments = parser.parse_args()
    if arguments.profile:
        for row in hot_spots(arguments.profile, arguments.sentences, arguments.rounds):
            print(f"{row['percent']:5.1f} %  {row['calls']:>9,} calls  {row['function']}")
        return
    found = figures(arguments.sentences, arguments.rounds)
    print(f"{arguments.sentences:,} sentences of {WORDS} words a micro-batch, median of {arguments.rounds}")
    print(*lines(found), sep="\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
