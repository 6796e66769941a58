"""Latency at a steady rate: from the time for which a message was scheduled to its ack.

    python bench/latency.py [--rate N ...] [--seconds N] [--kind basic|arrow|bare]

The publisher never changes its schedule: the latency of a message that is published late, or has to
wait, counts from its scheduled time. The word count runs warm with default settings; the first
seconds of each rate do not count. ``bare`` is the consumer that only acks: it measures publisher,
broker and one Python process on this machine without tiercel.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from pika import BasicProperties

from bench.contest import consuming
from bench.probe import ProbeResults
from bench.processes import BENCHMARK, cpu_seconds, spent
from bench.rig import BenchError, Running, clear, fill, running, sentences, servers, until
from tiercel.queues.broker.address import Address
from tiercel.queues.errors import QueuesError
from tiercel.queues.publishing.outlet import Outlet, Publication
from tiercel.workers.config import Settings

# Messages per second at which each message is alone.
ALONE = 2
RATES = (ALONE, 100, 1_000, 5_000)
# Time at the beginning of each rate that does not count.
WARM_UP_S = 5.0
_BARE_WARM_UP_S = 1.0
_STEP_S = 0.001
_PATIENCE_S = 60.0
_BODIES = 20_000


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Latency at one rate, in milliseconds."""

    rate: int
    messages: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    # p99 of the publisher's delay, a part of the latency that tiercel does not cause.
    late_ms: float
    cpu_s: dict[str, float]
    # Cores that all processes kept busy, servers included, without the publisher.
    cores: float

    def line(self) -> str:
        """Format the figures as a line."""
        return (
            f"{self.rate:>6,} per second: p50 {self.p50_ms:7.1f} ms  p99 {self.p99_ms:7.1f} "
            f"ms  p99.9 {self.p999_ms:7.1f} ms  {self.cores:.2f} cores  "
            f"({self.messages:,} messages, published at most {self.late_ms:.1f} ms late)"
        )


class Schedule:
    """Publishes with confirms; each message carries its scheduled time."""

    def __init__(self, amqp_url: str, queue: str) -> None:
        self._outlet = Outlet(Address.parse(amqp_url), "bench schedule")
        self._queue = queue
        self._confirmed = 0
        self._error: QueuesError | None = None

    def run(
        self, rate: int, seconds: float, bodies: Sequence[bytes] = ()
    ) -> tuple[int, float, list[float]]:
        """Publish at a steady rate, cycling through the bodies; sentences by default.

        Returns the number of messages, the time of the first, and the delay of each in seconds.
        """
        count = int(rate * seconds)
        began, late = self.at(
            [number / rate for number in range(count)],
            bodies or list(sentences(min(count, _BODIES))),
        )
        return count, began, late

    def at(self, times_s: Sequence[float], bodies: Sequence[bytes]) -> tuple[float, list[float]]:
        """Publish at these times, ascending, in seconds from the first.

        Returns the time of the first message, and the delay of each in seconds.
        """
        count = len(times_s)
        began = time.monotonic() + 0.1
        late: list[float] = []
        sent = self._confirmed = 0
        while sent < count:
            now = time.monotonic()
            due = bisect_right(times_s, now - began)
            for number in range(sent, due):
                at = began + times_s[number]
                properties = BasicProperties(delivery_mode=2, message_id=str(round(at * 1e6)))
                self._outlet.submit(
                    Publication(
                        "", self._queue, bodies[number % len(bodies)], properties, self._done
                    )
                )
                late.append(now - at)
            sent = due
            time.sleep(_STEP_S)
        deadline = time.monotonic() + _PATIENCE_S
        while self._confirmed < count:
            if self._error is not None or time.monotonic() > deadline:
                raise BenchError(
                    f"only {self._confirmed:,} of {count:,} messages were confirmed: {self._error}"
                )
            time.sleep(_STEP_S)
        return began, late

    def close(self) -> None:
        self._outlet.close(5.0)

    def _done(self, error: QueuesError | None) -> None:
        self._error = self._error or error
        self._confirmed += 1


# Waits until this many messages are acked in total, for at most this many seconds. Raises
# BenchError.
Wait = Callable[[int, float], None]


def measure(topology: Running, rate: int, seconds: float) -> Latency:
    """Measure a warm topology, which must run with ``timed``."""
    return offered(
        topology.settings, topology.queue, topology.reading, topology.wait_for_acks,
        (rate, WARM_UP_S, seconds),
    )  # fmt: skip


def measure_bare(settings: Settings, rate: int, seconds: float) -> Latency:
    """Measure a consumer that only acks."""
    queue = "bench-bare"
    fill(settings, queue, iter(()))
    try:
        with consuming("bare", queue, settings, timed=True) as (reading, check):

            def wait(count: int, within_s: float) -> None:
                until(lambda: check() or reading.last().acked >= count, within_s, f"{count:,} acks")

            # Publish one message first: its ack shows that the process has started.
            fill(settings, queue, sentences(1))
            wait(1, _PATIENCE_S)
            return offered(settings, queue, reading, wait, (rate, _BARE_WARM_UP_S, seconds))
    finally:
        clear(settings, [queue])


def offered(
    settings: Settings,
    queue: str,
    reading: ProbeResults,
    wait: Wait,
    load: tuple[int, float, float],
) -> Latency:
    """Publish at a rate, and measure after the seconds of warm-up."""
    rate, warm_up_s, seconds = load
    acked_before = reading.last().acked
    cpu_before, cpu_from = cpu_seconds(), time.monotonic()
    schedule = Schedule(settings.amqp or "", queue)
    try:
        count, began, late = schedule.run(rate, warm_up_s + seconds)
        wait(acked_before + count, _PATIENCE_S)
    finally:
        schedule.close()
    used, took_s = spent(cpu_before, cpu_seconds()), time.monotonic() - cpu_from
    found = reading.latencies()
    found = found[found[:, 0] >= began + warm_up_s - 1e-6]
    p50, p99, p999 = 1000 * np.percentile(found[:, 1], [50, 99, 99.9])
    return Latency(
        rate=rate,
        messages=len(found),
        p50_ms=float(p50),
        p99_ms=float(p99),
        p999_ms=float(p999),
        late_ms=1000 * float(np.percentile(late, 99)),
        cpu_s=used,
        cores=sum(seconds for role, seconds in used.items() if role != BENCHMARK) / took_s,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Latency of the word count at steady rates.")
    parser.add_argument(
        "--rate", type=int, action="append", help=f"messages per second; default: {RATES}"
    )
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--kind", choices=("basic", "arrow", "bare"), default="basic")
    arguments = parser.parse_args()
    rates = arguments.rate or RATES
    with servers() as settings:
        if arguments.kind == "bare":
            for rate in rates:
                _print(measure_bare(settings, rate, arguments.seconds))
            return
        with running(arguments.kind, settings, timed=True) as topology:
            topology.warm_up()
            for rate in rates:
                _print(measure(topology, rate, arguments.seconds))


def _print(found: Latency) -> None:
    print(found.line(), flush=True)
    print(json.dumps(asdict(found)), flush=True)


if __name__ == "__main__":
    main()
