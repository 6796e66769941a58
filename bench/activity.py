"""CPU time of a word count by activity, in microseconds per sentence.

    python -m bench.activity [--sentences N]

The word count runs as in ``bench.throughput``, but the functions of ``bench.sections`` are timed in
the processes of its bolts. The rest of these processes, mostly threads that wake and wait, is one
row, and each other kind of process too.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.processes import BENCHMARK
from bench.rig import WARM_UP, running, servers
from bench.sections import ACTIVITIES, EVERY_S, PREFIX
from bench.throughput import drain
from tiercel.workers.config import Settings

REST = "the rest of the bolts' processes"


def _totals(folder: Path) -> Counter[str]:
    """Return nanoseconds by activity, summed over the processes."""
    total: Counter[str] = Counter()
    for path in folder.glob(f"{PREFIX}*"):
        if not path.suffix:
            total.update(json.loads(path.read_text()))
    return total


def measure(settings: Settings, sentences: int) -> dict[str, float]:
    """Return microseconds of CPU per sentence by activity of the bolts' processes, then of the
    other kinds of processes.
    """
    with running("activities", settings) as topology:
        topology.warm_up()
        # The first sentences wrap the functions, after the processes have started.
        before = _totals(topology.reading.folder)
        cpu = drain(topology, "activities", sentences).cpu_s
        time.sleep(2 * EVERY_S)
        ns = _totals(topology.reading.folder)
        ns.subtract(before)
    row = {name: ns[name] / 1e3 / sentences for name in ACTIVITIES}
    processes = {role: 1e6 * seconds / sentences for role, seconds in cpu.items()}
    row[REST] = max(0.0, processes.pop("Spark's Python") - sum(row.values()))
    processes.pop(BENCHMARK, None)
    return row | processes


def lines(row: Mapping[str, float]) -> list[str]:
    """For people."""
    return [f"{name:<48} {us:6.1f} us" for name, us in row.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=int, default=10 * WARM_UP)
    arguments = parser.parse_args()
    with servers() as settings:
        row = measure(settings, arguments.sentences)
    print(*lines(row), sep="\n")
    print(json.dumps(row))


if __name__ == "__main__":
    main()
