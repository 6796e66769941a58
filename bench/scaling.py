"""A model of what grows past one machine: throughput from 1 to 1,000 executors, and what bounds it.

    python bench/scaling.py [--work-us N] [--latency-s N] [--plot docs/images/scaling.png]

A model on paper, not a measurement: it takes the costs below, measured on one machine or rounded from that, and
assumes that they add up.
The table goes to standard output; ``--plot`` needs matplotlib. docs/deploy.md says how to read it.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, replace

EXECUTORS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Rates are of one core. bench/results.json of your machine may tell others."""

    tuple_us: float = 4.0
    """A tuple in a ``BasicBolt``, tracked: 250,000 a second."""
    spout_per_s: float = 20_000.0
    """Messages a second of one spout worker, tracked."""
    queue_per_s: float = 40_000.0
    """Messages a second of one quorum queue, which is one process of the broker."""
    updates_per_s: float = 400_000.0
    """Root updates a second of one ledger shard."""
    chunk_us: float = 16.0
    """A chunk through the relay, whatever is in it: append, read, trim."""
    relay_bytes_per_s: float = 390e6
    """What is in the chunks."""
    batch_s: float = 0.12
    """A micro-batch of two levels, apart from its work: planning, and the start of its stages."""
    task_s: float = 0.0019
    """CPU time of an empty Spark task, driver and executor in one JVM: what it costs the driver, which starts them one
    after the other, is less."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is run."""

    cores_an_executor: int = 2
    tuples: int = 11
    """Of a message: a sentence and its ten words."""
    levels: int = 2
    message_bytes: int = 90
    work_us: float = 0.0
    """CPU time of the bolts a message, beside what tiercel takes."""
    latency_s: float = 1.0
    """How long a micro-batch may last."""
    tasks: int | None = None
    """Of each bolt; None: one a core."""
    queues: int = 1
    shards: int = 1
    flushes_per_s: float = 20.0
    """How often a spout worker sends what it has."""


def tasks_of(setup: Setup, executors: int) -> int:
    return setup.tasks or executors * setup.cores_an_executor


def bounds(setup: Setup, costs: Costs, executors: int) -> dict[str, float]:
    """Messages a second that each part can do at most."""
    tasks = tasks_of(setup, executors)
    busy = min(tasks, executors * setup.cores_an_executor)
    # While the driver plans a micro-batch and starts its tasks, the executors have nothing to do.
    idle_s = costs.batch_s + setup.levels * tasks * costs.task_s
    share = max(0.0, 1 - idle_s / setup.latency_s)
    cpu_us = setup.tuples * costs.tuple_us + setup.work_us
    found = {
        "executors": busy * 1e6 / cpu_us,
        "driver": share * busy * 1e6 / cpu_us,
        "queues": setup.queues * costs.queue_per_s,
        # Registered once, updated once a level at most.
        "ledger": setup.shards * costs.updates_per_s / (1 + setup.levels),
    }
    found["relay"] = _relay(setup, costs, tasks, min(found.values()))
    return found


def _relay(setup: Setup, costs: Costs, tasks: int, wanted: float) -> float:
    """A flush of a spout worker is a chunk for each task that gets a tuple: many tasks, many small chunks."""
    spouts = max(1, math.ceil(wanted / costs.spout_per_s))
    chunks = spouts * setup.flushes_per_s * min(tasks, max(1.0, wanted / spouts / setup.flushes_per_s))
    left = 1 - chunks * costs.chunk_us / 1e6
    return max(0.0, left) * costs.relay_bytes_per_s / setup.message_bytes


def first_of(setup: Setup, costs: Costs, executors: int) -> tuple[float, str]:
    """Messages a second, and what bounds them."""
    found = bounds(setup, costs, executors)
    name = min(found, key=lambda each: found[each])
    mostly_busy = name == "driver" and found["driver"] > 0.75 * found["executors"]
    return found[name], "executors" if mostly_busy else name


def scenarios(setup: Setup) -> dict[str, Setup]:
    """The columns of the table."""
    heavy = replace(setup, work_us=setup.work_us or 5_000.0)
    return {
        "word count, as it is": replace(setup, work_us=0.0),
        "word count, 8 queues, 4 shards, 64 tasks": replace(setup, work_us=0.0, queues=8, shards=4, tasks=64),
        f"{heavy.work_us / 1000:g} ms of work a message": heavy,
        f"{heavy.work_us / 1000:g} ms, batches of 10 s": replace(heavy, latency_s=10.0),
    }


def table(columns: dict[str, Setup], costs: Costs) -> list[str]:
    """As Markdown."""
    lines = ["| executors | " + " | ".join(columns) + " |", "| ---: |" + " --- |" * len(columns)]
    for executors in EXECUTORS:
        cells = []
        for setup in columns.values():
            rate, bound = first_of(setup, costs, executors)
            cells.append(f"{rate:,.0f} ({bound})")
        lines.append(f"| {executors:,} | " + " | ".join(cells) + " |")
    return lines


def plot(columns: dict[str, Setup], costs: Costs, path: str) -> None:
    """Messages a second by executors, both on logarithmic axes."""
    import matplotlib as mpl  # noqa: PLC0415 - only for the plot

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(8, 4.5), dpi=110)
    for name, setup in columns.items():
        axes.plot(
            EXECUTORS, [max(1.0, first_of(setup, costs, executors)[0]) for executors in EXECUTORS], marker="o", label=name
        )
    axes.set(
        xscale="log", yscale="log", xlabel="executors, two cores each", ylabel="messages a second (model)", ylim=(100, 1e6)
    )
    axes.grid(which="both", alpha=0.25)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work-us", type=float, default=0.0, help="CPU time of your bolts a message, in microseconds")
    parser.add_argument("--latency-s", type=float, default=1.0, help="how long a micro-batch may last")
    parser.add_argument("--plot", help="also draw it into this file")
    given = parser.parse_args()
    columns, costs = scenarios(Setup(work_us=given.work_us, latency_s=given.latency_s)), Costs()
    print("\n".join(table(columns, costs)))
    if given.plot:
        plot(columns, costs, given.plot)


if __name__ == "__main__":
    main()
