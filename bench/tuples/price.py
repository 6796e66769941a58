"""Microseconds per tuple, by kind of bolt."""

from __future__ import annotations

import cProfile
import random
import statistics
from contextlib import nullcontext

from bench.tuples.bolts import Count, CountBatch, Split, SplitBatch, SplitByHand, topology_of
from bench.tuples.workshop import Workshop
from tiercel.spark_jobs.bolts.windowed_bolt import AnyBolt
from tiercel.spark_jobs.process.interpreter import freeze_startup_objects

WORDS = 10
VOCABULARY = 5_000
# Sentences per round, and rounds; the median of the rounds counts.
SENTENCES = 10_000
ROUNDS = 9


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
    """Return microseconds of each part, and tuples per second on one core, by kind of bolt.

    The tuples are the inputs of the two bolts: a sentence and its ten words are eleven.
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
