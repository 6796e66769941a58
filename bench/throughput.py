"""Sentences per second of a word count, which splits sentences and counts words in Redis.

Each sentence is acked when all its words are counted.

    python bench/throughput.py [--sentences N] [--kind basic|arrow|untracked]

The warm topology is deactivated, its queue is filled, and it is activated again. ``whole`` is the
rate from the first delivery to the last ack, which is compared with the peers; ``steady`` is the
rate between a tenth and nine tenths of the acks. Without tracking, a message is acked before the
work is done, so words count instead of acks.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.probe import ProbeResults
from bench.processes import cpu_seconds, spent
from bench.rig import BenchError, Running, fill, running, sentences, servers
from bench.topologies.words import KINDS
from tiercel.workers.config import Settings
from tiercel.workers.control.contract import State

_LOOK_S = 0.1
# Sentences per second below which a run is aborted.
_SLOWEST = 100


@dataclass(frozen=True, kw_only=True)
class Drained:
    """One drained queue. Rates are in sentences per second."""

    what: str
    sentences: int
    whole_per_s: float
    steady_per_s: float | None
    # CPU seconds by kind of process.
    cpu_s: dict[str, float]

    def line(self) -> str:
        """Format the figures as a line."""
        cpu = ", ".join(f"{role} {seconds:.1f}" for role, seconds in self.cpu_s.items())
        steady = f"{self.steady_per_s:,.0f}" if self.steady_per_s else "-"
        return (
            f"{self.what:<10} {self.whole_per_s:>9,.0f}/s whole {steady:>9}/s steady   CPU s: {cpu}"
        )


def rate_between(progress: Sequence[tuple[float, float]], low: float, high: float) -> float:
    """Return units per second between the times at which ``low`` and ``high`` units were done.

    ``progress`` has pairs (time, units done), ascending.
    """
    return (high - low) / (moment(progress, high) - moment(progress, low))


def moment(progress: Sequence[tuple[float, float]], done: float) -> float:
    """Return the time at which ``done`` units were done, interpolated between two samples.

    Raises BenchError if there are fewer.
    """
    before = progress[0]
    for at, count in progress:
        if count >= done:
            share = (done - before[1]) / (count - before[1]) if count > before[1] else 1.0
            return before[0] + share * (at - before[0])
        before = (at, count)
    raise BenchError(f"only {before[1]:,.0f} of {done:,.0f} were done")


def drain(
    topology: Running,
    kind: str,
    count: int,
    publish: Callable[[Settings, str, Iterator[bytes]], int] = fill,
    counted: Callable[[], int] | None = None,
) -> Drained:
    """Drain a queue of ``count`` sentences with a warm topology.

    ``counted`` returns the number of words counted so far, if they are not in a state.
    """
    counted = counted or topology.counted
    topology.turn(State.DEACTIVATED)
    publish(topology.settings, topology.queue, sentences(count))
    acked_before = topology.reading.last().acked
    counted_before = counted()
    cpu_before = cpu_seconds()
    executed = _until_drained(topology, kind, count)
    used = spent(cpu_before, cpu_seconds())
    if (found := counted() - counted_before) != count * topology.words:
        raise BenchError(
            f"{kind}: {found:,} words were counted instead of {count * topology.words:,}"
        )
    first, acks = acks_after(topology.reading, acked_before)
    return drained(kind, count, first, executed if kind == "untracked" else acks, used)


def drained(
    what: str,
    count: int,
    first: float,
    progress: Sequence[tuple[float, float]],
    cpu_s: dict[str, float],
) -> Drained:
    """Make the figures of a queue whose first message was delivered at ``first``."""
    return Drained(
        what=what,
        sentences=count,
        whole_per_s=count / (moment(progress, count) - first),
        steady_per_s=rate_between(progress, 0.1 * count, 0.9 * count),
        cpu_s=cpu_s,
    )


def _until_drained(topology: Running, kind: str, count: int) -> list[tuple[float, float]]:
    """Activate the topology and drain the queue; return pairs (time, sentences executed)."""
    acked_before = topology.reading.last().acked
    words_before = topology.executed()
    executed = [(time.monotonic(), 0.0)]
    topology.turn(State.ACTIVE)
    deadline = time.monotonic() + 60 + count / _SLOWEST
    while topology.reading.last().acked < acked_before + count or topology.waiting():
        topology.check()
        if time.monotonic() > deadline:
            raise BenchError(
                f"{kind}: only {executed[-1][1]:,.0f} of {count:,} sentences were counted"
            )
        time.sleep(_LOOK_S)
        done = (topology.executed() - words_before) / topology.words
        executed.append((time.monotonic(), done))
    # Counters are reported once per second; empty inboxes show at once that the last word is done.
    executed.append((time.monotonic(), float(count)))
    return executed


def acks_after(reading: ProbeResults, before: int) -> tuple[float, list[tuple[float, float]]]:
    """Return the time of the first delivery after ``before``, and pairs (time, acks since)."""
    samples = reading.samples()
    first = next(sample.at for sample in samples if sample.delivered > before)
    return first, [
        (sample.at, float(sample.acked - before)) for sample in samples if sample.at >= first
    ]


def tiercel(kind: str, settings: Settings, count: int) -> Drained:
    """Start the topology of this kind, warm it up, and measure it once."""
    with running(kind, settings) as topology:
        topology.warm_up()
        return drain(topology, kind, count)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Sentences per second of tiercel alone; `make bench` compares."
    )
    parser.add_argument("--sentences", type=int, default=100_000)
    parser.add_argument("--kind", choices=KINDS, action="append", help="default: all")
    arguments = parser.parse_args()
    with servers() as settings:
        for kind in arguments.kind or KINDS:
            found = tiercel(kind, settings, arguments.sentences)
            print(found.line(), flush=True)
            print(json.dumps(asdict(found)), flush=True)


if __name__ == "__main__":
    main()
