"""The price of a tuple: sentences of ten words split, words counted, fully tracked, in one process
without Spark and Redis.

    python bench/tuples.py [--sentences N] [--rounds N] [--profile BasicBolt]

The bolt tasks work as they do in a Spark task, step by step, on inboxes in memory: chunks decoded,
bolts executed, edges derived, updates folded, chunks encoded. The ledger answers at once and does
nothing. What the bolts remember is named in ``transient``: a snapshot of it is a price of its own.
Times are CPU time. Figures go to standard output; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import random
import statistics
import sys
import threading
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
from tiercel.acker.effects import Effect, LocalEffect, perform_all
from tiercel.acker.ids import RootIds
from tiercel.acker.ledger import Applied, Failure, Ledger, Reply, Token, Updates
from tiercel.acker.metrics.memory import MemoryMetrics
from tiercel.queues.inbox.memory import MemoryInboxes
from tiercel.queues.inbox.records import Bounds, Sender
from tiercel.spark_jobs.bolts.kinds import AnyBolt
from tiercel.spark_jobs.emitting.emission import SpoutEmitter
from tiercel.spark_jobs.running.around import Around
from tiercel.spark_jobs.running.attempt import Attempt
from tiercel.spark_jobs.running.counting import Counting
from tiercel.spark_jobs.running.interpreter import freeze_startup_objects
from tiercel.spark_jobs.running.suspicion import Suspicion
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.spark_jobs.topology.placement import bolt_tasks

WORDS = 10
VOCABULARY = 5_000
# Sentences per round, and rounds of which the median counts.
SENTENCES = 10_000
ROUNDS = 9
# Sentences that a spout worker emits at once, where it has plenty.
_EMITTED = 1_000
_RUN = "run"
_UNBOUNDED = Bounds(tuples=10**9, bytes=10**12)


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


class Nothing:
    """A ledger that takes no time."""

    def fence(self, run: str, task: int, attempt: int) -> bool:  # noqa: ARG002
        return True

    def applying(
        self,
        token: Token,  # noqa: ARG002
        updates: Updates,  # noqa: ARG002
        failures: Sequence[Failure] = (),  # noqa: ARG002
    ) -> list[Effect[Reply]]:
        return [LocalEffect(lambda: Reply(applied=Applied.FRESH))]


def topology_of(split: AnyBolt, count: AnyBolt) -> Topology:
    builder = TopologyBuilder("bench")
    builder.set_spout("sentences", Sentences())
    builder.set_bolt("split", split).shuffle_grouping("sentences")
    builder.set_bolt("count", count, parallelism=2).fields_grouping("split", "word")
    return builder.build()


class Workshop:
    """The bolt tasks of one topology on inboxes in memory, in this thread."""

    def __init__(self, topology: Topology) -> None:
        self._inboxes = MemoryInboxes(_UNBOUNDED)
        self._inboxes.adopt(_RUN, bolt_tasks(topology))
        around = Around(
            run=_RUN,
            topology=topology,
            inboxes=self._inboxes,
            ledger=cast("Ledger", Nothing()),
            state=None,
            counting=Counting(MemoryMetrics()),
            config={},
            key=b"key",
            suspicion=Suspicion(_RUN, None, None),
        )
        self._attempts = {
            bolt: [Attempt(around, task, threading.Event()) for task in topology.task_ids(bolt)]
            for bolt in topology.bolts
        }
        self._emitter = SpoutEmitter(topology, "sentences", 1)
        self._roots = RootIds(timedelta(hours=1))
        self._number = 0

    def emit(self, lines: Sequence[str]) -> float:
        """Emit sentences and append them to the inboxes; CPU seconds of all but the appends."""
        spent = 0.0
        for start in range(0, len(lines), _EMITTED):
            part = lines[start : start + _EMITTED]
            began = time.process_time()
            self._emitter.emit_all(
                [[line] for line in part], self._roots.draw(len(part)), "default"
            )
            emission = self._emitter.take()
            spent += time.process_time() - began
            self._number += 1
            sender = Sender(task=1, attempt=1)
            perform_all(self._inboxes.append(_RUN, sender, self._number, emission.parcels))
        return spent

    def work(self, bolt: str) -> float:
        """Let the tasks of one bolt empty their inboxes; CPU seconds."""
        began = time.process_time()
        for attempt in self._attempts[bolt]:
            while attempt.turn():
                continue
        return time.process_time() - began

    def close(self) -> None:
        """Clean the bolts up."""
        for attempts in self._attempts.values():
            for attempt in attempts:
                attempt.close()


def measure(
    split: AnyBolt,
    count: AnyBolt,
    sentences: int,
    rounds: int,
    profile: cProfile.Profile | None = None,
) -> dict[str, float]:
    """Median CPU seconds of spout, split and count; ``profile`` sees the bolts at work, but for
    the first round.
    """
    workshop = Workshop(topology_of(split, count))
    chance = random.Random(1)
    vocabulary = [f"word{number}" for number in range(VOCABULARY)]
    times: dict[str, list[float]] = {"spout": [], "split": [], "count": []}
    for number in range(rounds):
        times["spout"].append(
            workshop.emit([" ".join(chance.choices(vocabulary, k=WORDS)) for _ in range(sentences)])
        )
        with profile if profile is not None and number else nullcontext():
            for bolt in ("split", "count"):
                times[bolt].append(workshop.work(bolt))
    workshop.close()
    return {part: statistics.median(found) for part, found in times.items()}


def figures(sentences: int = SENTENCES, rounds: int = ROUNDS) -> dict[str, dict[str, float]]:
    """By kind of bolt: microseconds of each part, and tuples per second on one core.

    The tuples are those that the two bolts were given: a sentence and its ten words are eleven.
    """
    freeze_startup_objects()  # as a Spark worker does once it has its imports
    kinds: dict[str, tuple[AnyBolt, AnyBolt]] = {
        "BasicBolt": (Split(), Count()),
        "Bolt": (SplitByHand(), Count()),
        "ArrowBolt": (SplitBatch(), CountBatch()),
    }
    found = {}
    words = sentences * WORDS
    given = sentences * (1 + WORDS)
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
        f"{kind:<10} {row['tuples_per_s']:>11,.0f} tuples/s on one core; us: {row['spout_us']:.2f} "
        f"per sentence emitted, {row['split_us']:.2f} per tuple split, {row['count_us']:.2f} per "
        f"word counted"
        for kind, row in found.items()
    ]


def hot_spots(
    kind: str, sentences: int = SENTENCES, rounds: int = 3, limit: int = 15
) -> list[dict[str, float | str]]:
    """Return where the time of a task goes: the functions with the most time of their own, in
    percent of all of it.
    """
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
    parser.add_argument("--sentences", type=int, default=SENTENCES, help="per round")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--profile", choices=("BasicBolt", "ArrowBolt"), help="say where the time of this kind goes"
    )
    arguments = parser.parse_args()
    if arguments.profile:
        for row in hot_spots(arguments.profile, arguments.sentences, arguments.rounds):
            print(f"{row['percent']:5.1f} %  {row['calls']:>9,} calls  {row['function']}")
        return
    found = figures(arguments.sentences, arguments.rounds)
    print(
        f"{arguments.sentences:,} sentences of {WORDS} words per round, median of "
        f"{arguments.rounds}"
    )
    print(*lines(found), sep="\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
