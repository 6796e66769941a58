"""tiercel and Storm in one round, on the same servers.

    python -m bench.storm.beside [--sentences N] [--only arrow|basic|java|python|uneven ...]

``arrow`` and ``basic`` are tiercel's word counts, ``java`` and ``python`` are Storm's. A run in
which a message failed, or a word was not counted once, does not count.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from bench import latency, throughput
from bench.latency import Latency, Schedule
from bench.processes import cpu_seconds, spent
from bench.rig import BenchError, fill, running, sentences, servers
from bench.slow.amount import PATIENCE_S, Slow
from bench.slow.uneven import KINDS, Kind, arrivals, ideal_s
from bench.storm.build import StormMissingError, classpath
from bench.storm.cluster import StormRunning, storm_running
from bench.throughput import Drained
from tiercel.workers.config import Settings

Say = Callable[[str], None]
# Sentences per second below which a run is aborted.
_SLOWEST = 100
# Storm's Python bolts have a tenth of the speed: a tenth of the sentences takes long enough.
_PYTHON_SHARE = 10


@dataclass(frozen=True, kw_only=True)
class StormAmount:
    """Amount of work of tiercel and Storm in one round."""

    # Messages per second at which the latency of each is measured.
    rates: Mapping[str, Sequence[int]] = field(
        default_factory=lambda: {
            "basic": latency.RATES,
            "java": latency.RATES,
            # 5,000 per second are more than Storm's Python bolts can do.
            "python": latency.RATES[:-1],
        }
    )
    latency_s: float = 10.0
    # Time for which uneven work arrives; 0: not measured.
    uneven_s: float = 75.0


@dataclass(frozen=True, kw_only=True)
class StormUneven:
    """Latencies of uneven work in Storm, in milliseconds, and those of one ideal queue."""

    kind: Kind
    messages: int
    p50_ms: float
    p99_ms: float
    ideal_p50_ms: float
    ideal_p99_ms: float

    def line(self) -> str:
        """Format the figures as a line."""
        return (
            f"uneven work, {self.kind}: Storm p50 / p99 {self.p50_ms:,.0f} / {self.p99_ms:,.0f} ms,"
            f" one ideal queue {self.ideal_p50_ms:,.0f} / {self.ideal_p99_ms:,.0f} ms"
            f"  ({self.messages:,} messages)"
        )


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """Throughput, and latency by rate, of one word count."""

    drained: Drained
    latencies: Sequence[Latency]

    def lines(self) -> list[str]:
        """Format the figures as lines."""
        what = self.drained.what
        return [self.drained.line(), *(f"{what}: {row.line().strip()}" for row in self.latencies)]

    def row(self) -> dict[str, Any]:
        """Return data for ``results.json``."""
        return {**asdict(self.drained), "latency": [asdict(row) for row in self.latencies]}


def contestants(
    settings: Settings, count: int, how: StormAmount
) -> dict[str, Callable[[], Contestant]]:
    """Return the four word counts by name; those of a ratio run one after the other."""
    return {
        "arrow": lambda: _tiercel("arrow", settings, count, how),
        "java": lambda: _storm("java", settings, count, how),
        "basic": lambda: _tiercel("basic", settings, count, how),
        "python": lambda: _storm("python", settings, count // _PYTHON_SHARE, how),
    }


def _tiercel(
    kind: Literal["arrow", "basic"], settings: Settings, count: int, how: StormAmount
) -> Contestant:
    with running(kind, settings, timed=kind in how.rates) as topology:
        topology.warm_up()
        return Contestant(
            drained=throughput.drain(topology, kind, count),
            latencies=[
                latency.measure(topology, rate, how.latency_s) for rate in how.rates.get(kind, ())
            ],
        )


def _storm(
    kind: Literal["java", "python"], settings: Settings, count: int, how: StormAmount
) -> Contestant:
    with storm_running(kind, settings) as topology:
        topology.warm_up()
        drained = drain(topology, count)
        latencies = []
        for rate in how.rates.get(kind, ()):
            load = (rate, latency.WARM_UP_S, how.latency_s)
            latencies.append(
                latency.offered(
                    settings, topology.queue, topology.reading, topology.wait_for_acks, load
                )
            )
        topology.check_words()
        return Contestant(drained=drained, latencies=latencies)


def drain(topology: StormRunning, count: int) -> Drained:
    """Drain a queue of ``count`` sentences with a warm topology of Storm."""
    topology.turn(active=False)
    fill(topology.settings, topology.queue, sentences(count))
    acked_before = topology.reading.last().acked
    cpu_before = cpu_seconds()
    topology.turn(active=True)
    topology.wait_for_acks(acked_before + count, 60 + count / _SLOWEST)
    used = spent(cpu_before, cpu_seconds())
    topology.check_words()
    first, acks = throughput.acks_after(topology.reading, acked_before)
    return throughput.drained(f"storm, {topology.kind}", count, first, acks, used)


def uneven(settings: Settings, tasks: int, kind: Kind, seconds: float) -> StormUneven:
    """Measure uneven work, which Storm shuffles by the load of the tasks, its default.

    The latency is the time from the moment that a message was due to its ack.
    """
    schedule = arrivals(kind, tasks, seconds)
    with storm_running("sleep", settings, tasks=tasks) as topology:
        # tiercel's processes have executed tuples before, too.
        before = fill(settings, topology.queue, iter([b"1"] * (4 * tasks)))
        topology.wait_for_acks(before, PATIENCE_S)
        publisher = Schedule(settings.amqp or "", topology.queue)
        try:
            publisher.at(
                [one.at_s for one in schedule], [str(one.work_ms).encode() for one in schedule]
            )
        finally:
            publisher.close()
        topology.wait_for_acks(before + len(schedule), PATIENCE_S)
        found = topology.reading.latencies()[:, 1]
    if len(found) != len(schedule):
        raise BenchError(f"{len(found):,} latencies of {len(schedule):,} messages were noted")
    p50, p99 = 1000 * np.percentile(found, [50, 99])
    ideal_p50, ideal_p99 = 1000 * np.percentile(ideal_s(schedule, tasks), [50, 99])
    return StormUneven(
        kind=kind,
        messages=len(schedule),
        p50_ms=float(p50),
        p99_ms=float(p99),
        ideal_p50_ms=float(ideal_p50),
        ideal_p99_ms=float(ideal_p99),
    )


def main() -> None:
    choices = ("arrow", "basic", "java", "python", "uneven")
    parser = argparse.ArgumentParser(
        prog="python -m bench.storm.beside", description="tiercel beside Storm."
    )
    parser.add_argument("--sentences", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each rate")
    parser.add_argument("--only", choices=choices, action="append", help="default: all")
    arguments = parser.parse_args()
    only = arguments.only or choices
    how = StormAmount(latency_s=arguments.seconds)
    try:
        classpath()
    except StormMissingError as missing:
        sys.exit(f"Storm cannot be measured: {missing}")
    with servers() as settings:
        for what, run in contestants(settings, arguments.sentences, how).items():
            if what in only:
                found = run()
                print("\n".join(found.lines()), flush=True)
                print(json.dumps(found.row()), flush=True)
        if "uneven" in only:
            for kind in KINDS:
                row = uneven(settings, Slow().tasks, kind, how.uneven_s)
                print(row.line(), flush=True)
                print(json.dumps(asdict(row)), flush=True)


if __name__ == "__main__":
    main()
