"""Chains of bolts that only emit, of any length and width."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

from bench.topologies.observed import ObservedSpout
from tiercel import BasicBolt, BasicCollector, Config, Topology, TopologyBuilder, Tuple

# The variable that tells each process the shape of ``shaped``, as JSON.
SHAPE = "BENCH_SHAPE"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One point of a growth curve; all other settings are the defaults."""

    # Tuples that the first bolt emits for each message.
    tuples: int = 1
    # Number of bolts in the chain, including the first and the last; each has a shuffle grouping.
    depth: int = 2
    spout_tasks: int = 1
    bolt_tasks: int = 2
    shards: int = 1

    @classmethod
    def told(cls) -> Shape:
        """By the environment."""
        return cls(**json.loads(os.environ[SHAPE]))

    def environment(self) -> dict[str, str]:
        return {SHAPE: json.dumps(asdict(self))}


class Fan(BasicBolt):
    """Emit this many tuples per message."""

    output_fields = "n long"

    def __init__(self, tuples: int) -> None:
        self._tuples = tuples

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:  # noqa: ARG002 - the body does not matter
        for number in range(self._tuples):
            collector.emit([number])


class Pass(BasicBolt):
    output_fields = "n long"

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:
        collector.emit(tup.values)


class Drop(BasicBolt):
    def execute(self, tup: Tuple, collector: BasicCollector) -> None:
        pass


def shaped() -> Topology:
    """A chain of bolts: the first fans out, the last (``count``) drops its tuples."""
    shape = Shape.told()
    builder = TopologyBuilder("bench-shaped", Config(ackers=shape.shards))
    builder.set_spout(
        "sentences",
        ObservedSpout("bench-shaped", fields="body string"),
        parallelism=shape.spout_tasks,
    )
    before = "sentences"
    if shape.depth > 1:
        builder.set_bolt("fan", Fan(shape.tuples), parallelism=shape.bolt_tasks).shuffle_grouping(
            before
        )
        before = "fan"
    for place in range(2, shape.depth):
        builder.set_bolt(f"pass{place}", Pass(), parallelism=shape.bolt_tasks).shuffle_grouping(
            before
        )
        before = f"pass{place}"
    builder.set_bolt("count", Drop(), parallelism=shape.bolt_tasks).shuffle_grouping(before)
    return builder.build()
