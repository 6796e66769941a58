"""Rate limits on private servers: the accuracy of the rate, and latency beside a limited tenant.

    python bench/limited.py [--seconds 60] [--waiting 10000] [--rate 50]

The first measurement counts the tuples that a ``BasicBolt`` begins in a minute, with four tasks,
``rate_limit="100/s"`` and a full queue. The second has a bolt with ``rate_limit="1/s"`` by tenant:
one tenant has 10,000 messages in the queue, and behind them messages come at a steady rate, each of
a different tenant. Their latency counts from their scheduled times. Figures go to standard output;
the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from bench.latency import Schedule
from bench.rig import Running, fill, running, servers, until
from tiercel.workers.config import Settings

LIMIT_PER_S = 100
# Messages, and seconds, that do not count.
_WARM_UP = 3 * LIMIT_PER_S
_WARM_UP_S = 5.0
_WITHIN_S = 300
# All of the tenant's messages were taken once when there are no more deliveries than this.
_STILL_PER_S = 5


@dataclass(frozen=True, kw_only=True)
class Rated:
    """Messages that a limited bolt began."""

    begun: int
    wall_s: float

    @property
    def percent(self) -> float:
        """The rate in percent of the limit."""
        return 100 * self.begun / self.wall_s / LIMIT_PER_S

    def line(self) -> str:
        """Format the figures as a line."""
        return (
            f"{LIMIT_PER_S}/s over four tasks: {self.begun:,} in {self.wall_s:.1f} s, "
            f"{self.percent:.1f} %"
        )


@dataclass(frozen=True, kw_only=True)
class Beside:
    """Latency of messages that wait behind a limited tenant's messages, in milliseconds."""

    waiting: int
    messages: int
    p50_ms: float
    p99_ms: float
    # Acks of the limited tenant during the measurement.
    limited: int
    wall_s: float
    # Time until all of the tenant's messages had been taken once.
    settled_s: float

    def line(self) -> str:
        """Format the figures as a line."""
        return (
            f"beside {self.waiting:,} that wait: p50 {self.p50_ms:.1f} ms  p99 {self.p99_ms:.1f} ms"
            f"  ({self.messages:,} messages); limited to 1/s: {self.limited} in "
            f"{self.wall_s:.0f} s; after {self.settled_s:.0f} s in which all were taken once"
        )


def measure_rate(settings: Settings, seconds: float) -> Rated:
    """Count the acks of a bolt that is limited over all its tasks."""
    with running("limited", settings, module="bench.topologies.limits") as topology:
        topology.wait_until_ready()
        count = _WARM_UP + round(LIMIT_PER_S * (seconds + 10))
        fill(settings, topology.queue, repeat(b"one", count))
        topology.wait_for_acks(_WARM_UP, _WITHIN_S)
        first = topology.reading.last()
        until(lambda: topology.reading.last().at - first.at >= seconds, _WITHIN_S, "the end")
        last = topology.reading.last()
    return Rated(begun=last.acked - first.acked, wall_s=last.at - first.at)


def measure_beside(settings: Settings, waiting: int, rate: int, seconds: float) -> Beside:
    """Measure the latency of many tenants' messages behind a limited tenant's messages."""
    with running("tenants", settings, timed=True, module="bench.topologies.limits") as topology:
        topology.wait_until_ready()
        settled_s = _fill_and_settle(settings, topology, waiting)
        first = topology.totals("count")["acked"]
        schedule = Schedule(settings.amqp or "", topology.queue)
        try:
            tenants = list(_tenants(int(rate * (_WARM_UP_S + seconds))))
            count, offered, _ = schedule.run(rate, _WARM_UP_S + seconds, tenants)
            until(lambda: len(topology.reading.latencies()) >= count, _WITHIN_S, f"{count:,} acks")
        finally:
            schedule.close()
        wall_s = time.monotonic() - offered
        found = topology.reading.latencies()
        found = found[found[:, 0] >= offered + _WARM_UP_S - 1e-6]
        # Counters are reported once per second.
        time.sleep(2.0)
        limited = topology.totals("count")["acked"] - first - count
    p50, p99 = 1000 * np.percentile(found[:, 1], [50, 99])
    return Beside(
        waiting=waiting,
        messages=len(found),
        p50_ms=float(p50),
        p99_ms=float(p99),
        limited=limited,
        wall_s=wall_s,
        settled_s=settled_s,
    )


def _fill_and_settle(settings: Settings, topology: Running, waiting: int) -> float:
    """Publish the limited tenant's messages; return the seconds until the surplus messages are back
    in the queue.
    """
    began = time.monotonic()
    fill(settings, topology.queue, repeat(b"big", waiting))
    delivered = 0

    def settled() -> bool:
        nonlocal delivered
        before = delivered
        delivered = topology.reading.last().delivered
        time.sleep(1.0)
        return delivered >= waiting and delivered - before <= _STILL_PER_S

    until(settled, _WITHIN_S, f"{waiting:,} messages to be taken")
    return time.monotonic() - began


def _tenants(count: int) -> Iterator[bytes]:
    return (f"small {number}".encode() for number in range(count))


def main() -> None:
    parser = argparse.ArgumentParser(description="Rate limits: how near, and what waits beside.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--rate", type=int, default=50)
    arguments = parser.parse_args()
    with servers() as settings:
        rated = measure_rate(settings, arguments.seconds)
        print(rated.line(), flush=True)
        beside = measure_beside(settings, arguments.waiting, arguments.rate, arguments.seconds)
        print(beside.line(), flush=True)
    print(json.dumps({"rate": asdict(rated), "beside": asdict(beside)}))


if __name__ == "__main__":
    main()
