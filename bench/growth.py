"""Growth of throughput with five parameters: tuples per tree, bolts in a row, message size, spout
and bolt tasks, shards.

    python bench/growth.py [--curve NAME ...]

Each point is a chain of ``BasicBolt``s with default settings except for the curve's parameter. One
run of the topology drains its queue several times; the first time is a warm-up and does not count.
The curve of slow work is in ``bench.slow``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.probe import environment
from bench.rig import Running, fill, running, servers
from bench.throughput import moment
from bench.topologies.chains import Shape
from tiercel.workers.config import Settings
from tiercel.workers.control.contract import State

# Bytes of a message in curves with another parameter.
_SMALL = 100
_BYTES_AT_MOST = 256 * 2**20
_TUPLES = 500_000
_MESSAGES = 40_000
_WITHIN_S = 300


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One curve: its parameter with the values, and the topology of a point."""

    name: str
    axis: str
    # The unit that is counted per second: messages or tuples.
    unit: str
    values: Sequence[int]
    shape: Callable[[int], Shape]
    size: Callable[[int], int] = lambda _value: _SMALL

    def messages(self, value: int) -> int:
        """Return the number of messages: enough for seconds of work, but not for minutes."""
        shape = self.shape(value)
        tuples = 1 + shape.tuples * max(1, shape.depth - 1)
        return max(50, min(_MESSAGES, _TUPLES // tuples, _BYTES_AT_MOST // self.size(value)))


_BASE = Shape(tuples=10)
CURVES = {
    curve.name: curve
    for curve in (
        Curve(
            name="tuples", axis="tuples per tree", unit="tuples",
            values=(1, 10, 100, 1_000, 10_000),
            shape=lambda value: Shape(tuples=value),
        ),
        Curve(
            name="depth", axis="bolts in a row", unit="messages", values=(1, 2, 4, 8),
            shape=lambda value: Shape(depth=value),
        ),
        Curve(
            name="size", axis="bytes per message", unit="messages",
            values=(100, 1_024, 10_240, 102_400, 1_048_576),
            shape=lambda _value: Shape(depth=1), size=lambda value: value,
        ),
        Curve(
            name="spouts", axis="spout tasks", unit="messages", values=(1, 2, 4),
            shape=lambda value: replace(_BASE, spout_tasks=value),
        ),
        Curve(
            name="bolts", axis="tasks of each bolt", unit="messages", values=(1, 2, 4, 8),
            shape=lambda value: replace(_BASE, bolt_tasks=value),
        ),
        Curve(
            name="shards", axis="ledger shards", unit="messages", values=(1, 2, 4),
            shape=lambda value: replace(_BASE, shards=value),
        ),
    )
}  # fmt: skip


def point(settings: Settings, curve: Curve, value: int, runs: int) -> dict[str, float]:
    """Measure messages and tuples per second, the medians over ``runs`` full queues."""
    shape = curve.shape(value)
    count = curve.messages(value)
    size = curve.size(value)
    rates = []
    with (
        environment(shape.environment()),
        running("shaped", settings, module="bench.topologies.chains") as topology,
    ):
        for run in range(runs + 1):
            rate = _drain(topology, count, size)
            if run:
                rates.append(rate)
    rate = statistics.median(rates)
    # Count tuples as Storm does: each emission of a spout or a bolt.
    tuples = 1 + shape.tuples * max(0, shape.depth - 1)
    return {
        "value": value,
        "messages": count,
        "messages_per_s": rate,
        "tuples_per_s": rate * tuples,
    }


def _drain(topology: Running, count: int, size: int) -> float:
    """Return messages per second, from the first delivery to the last ack."""
    return count / seconds_to_drain(topology, _bodies(count, size), _WITHIN_S)


def seconds_to_drain(topology: Running, bodies: Iterator[bytes], within_s: float) -> float:
    """Fill the queue while the topology is deactivated, then drain it.

    Returns the seconds from the first delivery to the last ack.
    """
    topology.wait_until_ready()
    topology.turn(State.DEACTIVATED)
    before = topology.reading.last()
    count = fill(topology.settings, topology.queue, bodies)
    topology.turn(State.ACTIVE)
    topology.wait_for_acks(before.acked + count, within_s)
    samples = topology.reading.samples()
    first = next(sample.at for sample in samples if sample.delivered > before.delivered)
    acks = [
        (sample.at, float(sample.acked - before.acked)) for sample in samples if sample.at >= first
    ]
    return moment(acks, count) - first


def _bodies(count: int, size: int) -> Iterator[bytes]:
    body = b"x" * size
    return (body for _ in range(count))


def measure(
    settings: Settings, curves: Sequence[str], runs: int, say: Callable[[str], None]
) -> dict[str, list[dict[str, float]]]:
    """Measure all points of these curves."""
    found: dict[str, list[dict[str, float]]] = {}
    for name in curves:
        curve = CURVES[name]
        for value in curve.values:
            began = time.monotonic()
            row = point(settings, curve, value, runs)
            found.setdefault(name, []).append(row)
            say(line(curve, row) + f"  (took {time.monotonic() - began:.0f} s)")
    return found


def line(curve: Curve, row: dict[str, float]) -> str:
    """Format a point as a line."""
    return (
        f"{curve.axis:>18} {row['value']:>9,.0f}: {row['messages_per_s']:>9,.0f} messages/s,"
        f" {row['tuples_per_s']:>9,.0f} tuples/s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="How throughput grows.")
    parser.add_argument("--curve", choices=CURVES, action="append", help="default: all")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    with servers() as settings:
        found = measure(
            settings,
            arguments.curve or list(CURVES),
            arguments.runs,
            lambda said: print(said, flush=True),
        )
        print(json.dumps(found))


if __name__ == "__main__":
    main()
