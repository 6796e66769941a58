"""Latency at a steady rate: from the time a message was scheduled for to the ack that the broker is given.

    python bench/latency.py [--rate N ...] [--seconds N]

The publisher follows its schedule whatever happens: a message that leaves late, or waits because everything is slow, has waited
from its scheduled time on. The word count runs with the defaults and is warm; the first seconds of each rate do not count.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from pika import BasicProperties

from bench.processes import cpu_seconds, spent
from bench.rig import BenchError, Running, running, sentences, servers
from queues.address import Address
from queues.errors import QueuesError
from queues.outlet import Outgoing, Outlet

RATES = (100, 1_000, 5_000)
_SETTLE_S = 5.0
"""What does not count, at the beginning of each rate."""
_STEP_S = 0.001
_PATIENCE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Of one rate, in milliseconds."""

    rate: int
    messages: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    late_ms: float
    """How late the publisher handed 99 % of the messages over, at most: a part of the latency that is not tiercel's."""
    cpu_s: dict[str, float]

    def line(self) -> str:
        """For people."""
        return (
            f"{self.rate:>6,} a second: p50 {self.p50_ms:7.1f} ms  p99 {self.p99_ms:7.1f} ms  p99.9 {self.p999_ms:7.1f} ms"
            f"  ({self.messages:,} messages, published at most {self.late_ms:.1f} ms late)"
        )


class Schedule:
    """Publishes with confirms, each message stamped with the time that it was due at."""

    def __init__(self, amqp_url: str, queue: str) -> None:
        self._outlet = Outlet(Address.parse(amqp_url), "bench schedule")
        self._queue = queue
        self._confirmed = 0
        self._error: QueuesError | None = None

    def run(self, rate: int, seconds: float) -> tuple[int, float, list[float]]:
        """Returns how many were published, the time of the first, and by how many seconds each was late."""
        bodies = list(sentences(min(int(rate * seconds), 20_000)))
        count, began, late = int(rate * seconds), time.monotonic() + 0.1, []
        sent = self._confirmed = 0
        while sent < count:
            now = time.monotonic()
            due = min(count, int((now - began) * rate) + 1) if now >= began else 0
            for number in range(sent, due):
                at = began + number / rate
                properties = BasicProperties(delivery_mode=2, message_id=str(round(at * 1e6)))
                self._outlet.submit(Outgoing(self._queue, bodies[number % len(bodies)], properties, self._done))
                late.append(now - at)
            sent = due
            time.sleep(_STEP_S)
        deadline = time.monotonic() + _PATIENCE_S
        while self._confirmed < count:
            if self._error is not None or time.monotonic() > deadline:
                raise BenchError(f"only {self._confirmed:,} of {count:,} messages were confirmed: {self._error}")
            time.sleep(_STEP_S)
        return count, began, late

    def close(self) -> None:
        self._outlet.close(5.0)

    def _done(self, error: QueuesError | None) -> None:
        self._error = self._error or error
        self._confirmed += 1


def measure(topology: Running, rate: int, seconds: float) -> Latency:
    """With a topology that is warm and runs with its probe ``timed``."""
    acked_before, cpu_before = topology.reading.last().acked, cpu_seconds()
    schedule = Schedule(topology.settings.amqp or "", topology.queue)
    try:
        count, began, late = schedule.run(rate, _SETTLE_S + seconds)
        topology.wait_for_acks(acked_before + count, _PATIENCE_S)
    finally:
        schedule.close()
    used = spent(cpu_before, cpu_seconds())
    found = topology.reading.latencies()
    found = found[found[:, 0] >= began + _SETTLE_S - 1e-6]
    p50, p99, p999 = 1000 * np.percentile(found[:, 1], [50, 99, 99.9])
    late_ms = 1000 * float(np.percentile(late, 99))
    return Latency(
        rate=rate,
        messages=len(found),
        p50_ms=float(p50),
        p99_ms=float(p99),
        p999_ms=float(p999),
        late_ms=late_ms,
        cpu_s=used,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Latency of the word count at steady rates.")
    parser.add_argument("--rate", type=int, action="append", help=f"messages a second; default: {RATES}")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--kind", choices=("basic", "arrow"), default="basic")
    arguments = parser.parse_args()
    with servers() as settings, running(arguments.kind, settings, timed=True) as topology:
        topology.warm_up()
        for rate in arguments.rate or RATES:
            found = measure(topology, rate, arguments.seconds)
            print(found.line(), flush=True)
            print(json.dumps(asdict(found)), flush=True)


if __name__ == "__main__":
    main()
