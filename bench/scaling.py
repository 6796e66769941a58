"""Scaling past one machine: throughput of 1 to 1,000 executors, and its bottlenecks.

    python bench/scaling.py [--work-us N] [--results bench/results.json]
                            [--plot docs/images/scaling.png]

This is a model, not a measurement: it assumes that the costs below add up. ``--results`` replaces
them by the costs that ``make bench`` has measured on your machine. The table goes to standard
output; ``--plot`` needs matplotlib. docs/sizing.md says how to read the table.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

EXECUTORS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
# Time that a step executes before it commits, and its most tuples: see ``running/step``.
_STEP_US = 20_000.0
_LARGEST_STEP = 8_000
_TUPLE_BYTES = 30
_SECOND_US = 1e6


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The costs of the model. Microseconds are CPU time, rates are for one core."""

    # A tuple in a ``BasicBolt``, tracked.
    tuple_us: float = 4.2
    # A step of a bolt task without its tuples, in the task: take, seal, append, update, finish.
    step_us: float = 1_350.0
    # A step on the server of the task's inbox, without appends: take, seal, finish.
    step_server_us: float = 150.0
    # An append to one inbox on the server, without the bytes of its content.
    append_us: float = 52.0
    # Bytes of chunks, in and out of one server.
    bytes_per_s: float = 490e6
    # A bolt task on its server per second, even without tuples: heartbeats, and the driver's
    # monitoring.
    idle_us: float = 100.0
    # Root updates per second of one ledger shard.
    updates_per_s: float = 590_000.0
    # Messages per second of one spout worker, tracked.
    spout_per_s: float = 20_000.0
    # Messages per second of one quorum queue, which is one process of the broker.
    queue_per_s: float = 40_000.0

    def measured(self, results: Mapping[str, Any]) -> Costs:
        """Return the costs with the measured ones replaced."""
        return replace(self, **constants(results))


def constants(results: Mapping[str, Any]) -> dict[str, float]:
    """Return the costs in a file of results by name. Pure."""
    parts = results.get("parts", {})
    inbox = (parts.get("inbox", {}).get("found") or {}).get("costs", {})
    basic = (parts.get("tuples", {}).get("found") or {}).get("price", {}).get("BasicBolt", {})
    found = dict(inbox)
    if basic:
        found["tuple_us"] = _SECOND_US / basic["tuples_per_s"]
    known = asdict(Costs())
    return {name: value for name, value in found.items() if name in known}


def costs_of(inbox: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, float]:
    """Return the costs that ``bench.inbox`` measured by their names in ``Costs``. Pure."""
    calls = inbox["calls"]
    take_us = calls["take 2 KB"]["server_us"]
    # A step's appends to one server take one round trip, whose cost is part of the step's.
    trip_us = calls["ping"]["server_us"]
    small = max(1.0, calls["append 2 KB"]["server_us"] - trip_us)
    large = calls["append 64 KB"]["server_us"] - trip_us
    # The cost of 62 KB more; not 0, even if the server rounds its CPU time.
    per_byte_us = max(1e-6, (large - small) / (62 * 1_000))
    return {
        "step_us": inbox["steps"]["pass"]["client_us"],
        "step_server_us": take_us + calls["seal and finish"]["server_us"],
        "append_us": small,
        "bytes_per_s": _SECOND_US / per_byte_us,
    }


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The topology, the cluster and the load of a run."""

    cores_an_executor: int = 2
    # Tuples per message: a sentence and its ten words.
    tuples: int = 11
    # Number of bolts in a row; the first one has shuffle grouping.
    bolts: int = 2
    # True if the other bolts have fields grouping: a step appends to each task that gets one of its
    # tuples. With shuffle grouping a step appends to one line.
    fields: bool = True
    message_bytes: int = 90
    # CPU time of the bolts' own work per message.
    work_us: float = 0.0
    # Number of tasks of each bolt; None means one per core.
    tasks: int | None = None
    queues: int = 1
    # Number of Redis servers, over which inboxes and ledger shards are spread.
    servers: int = 1
    # Sends per second of a spout worker under load with Redis busy: each send waits for the one
    # before, and admission lets trees take a quarter of a second.
    flushes_per_s: float = 4.0


def tasks_of(setup: Setup, executors: int) -> int:
    return setup.tasks or executors * setup.cores_an_executor


def tuples_of_step(setup: Setup, costs: Costs) -> float:
    """Return the number of tuples in a step under load: as many as fit into its time."""
    each_us = costs.tuple_us + setup.work_us / setup.tuples
    return max(1.0, min(float(_LARGEST_STEP), _STEP_US / each_us))


def bounds(setup: Setup, costs: Costs, executors: int) -> dict[str, float]:
    """Return the maximum of messages per second for each part of the system."""
    cores = executors * setup.cores_an_executor
    # More tasks than cores share the cores; fewer tasks leave some cores idle.
    busy = min(tasks_of(setup, executors) * setup.bolts, cores)
    steps = setup.tuples / tuples_of_step(setup, costs)
    cpu_us = setup.tuples * costs.tuple_us + setup.work_us + steps * costs.step_us
    found = {
        "executors": busy * _SECOND_US / cpu_us,
        "queues": setup.queues * costs.queue_per_s,
        # A root is registered once, and updated at most once per bolt.
        "ledger": setup.servers * costs.updates_per_s / (1 + setup.bolts),
    }
    found["inboxes"] = _inboxes(setup, costs, executors, min(found.values()))
    return found


def _inboxes(setup: Setup, costs: Costs, executors: int, wanted: float) -> float:
    """Return the messages per second of the Redis servers: a step appends once to a line, or with
    fields grouping to each task that gets a tuple.
    """
    tasks = tasks_of(setup, executors)
    free_us = setup.servers * _SECOND_US - setup.bolts * tasks * costs.idle_us
    spouts = max(1, math.ceil(wanted / costs.spout_per_s))
    free_us -= spouts * setup.flushes_per_s * costs.append_us
    size = tuples_of_step(setup, costs)
    steps = setup.tuples / size
    # The last bolt appends nothing.
    receivers = min(tasks, size) if setup.fields else 1
    appends = steps * (setup.bolts - 1) / setup.bolts * receivers
    carried = setup.message_bytes + setup.tuples * _TUPLE_BYTES
    message_us = steps * costs.step_server_us + appends * costs.append_us
    message_us += carried / costs.bytes_per_s * _SECOND_US
    return max(0.0, free_us) / message_us


def first_of(setup: Setup, costs: Costs, executors: int) -> tuple[float, str]:
    """Return the messages per second, and the name of the bottleneck."""
    found = bounds(setup, costs, executors)
    name = min(found, key=lambda each: found[each])
    return found[name], name


def scenarios(setup: Setup) -> dict[str, Setup]:
    """Return the setups of the table's columns by title."""
    heavy = replace(setup, work_us=setup.work_us or 5_000.0)
    return {
        "word count, as it is": replace(setup, work_us=0.0),
        "word count, 8 queues, 4 Redis servers, 64 tasks": replace(
            setup, work_us=0.0, queues=8, servers=4, tasks=64
        ),
        f"{heavy.work_us / 1000:g} ms of work per message": heavy,
        f"{heavy.work_us / 1000:g} ms, shuffled": replace(heavy, fields=False),
        f"{heavy.work_us / 1000:g} ms, shuffled, 10 queues, 16 Redis servers": replace(
            heavy, fields=False, queues=10, servers=16
        ),
        "1 s of work in one tuple": replace(setup, work_us=1e6, tuples=1, bolts=1),
    }


def table(columns: dict[str, Setup], costs: Costs) -> list[str]:
    """Format the table as Markdown."""
    lines = ["| executors | " + " | ".join(columns) + " |", "| ---: |" + " --- |" * len(columns)]
    for executors in EXECUTORS:
        cells = []
        for setup in columns.values():
            rate, bound = first_of(setup, costs, executors)
            cells.append(f"{rate:,.0f} ({bound})")
        lines.append(f"| {executors:,} | " + " | ".join(cells) + " |")
    return lines


def plot(columns: dict[str, Setup], costs: Costs, path: str) -> None:
    """Draw messages per second by executors, on logarithmic axes."""
    import matplotlib as mpl  # noqa: PLC0415 - only for the plot

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415 - as above

    figure, axes = plt.subplots(figsize=(8, 4.5), dpi=110)
    for name, setup in columns.items():
        rates = [max(1.0, first_of(setup, costs, executors)[0]) for executors in EXECUTORS]
        axes.plot(EXECUTORS, rates, marker="o", label=name)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="executors, two cores each",
        ylabel="messages per second (model)",
        ylim=(1, 1e6),
    )
    axes.grid(which="both", alpha=0.25)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--work-us",
        type=float,
        default=0.0,
        help="CPU time of your bolts per message, in microseconds",
    )
    parser.add_argument(
        "--results", type=Path, help="take the costs that were measured from this file"
    )
    parser.add_argument("--plot", help="also draw it into this file")
    given = parser.parse_args()
    costs = Costs()
    if given.results:
        costs = costs.measured(json.loads(given.results.read_text()))
    columns = scenarios(Setup(work_us=given.work_us))
    print("\n".join(table(columns, costs)))
    if given.plot:
        plot(columns, costs, given.plot)


if __name__ == "__main__":
    main()
