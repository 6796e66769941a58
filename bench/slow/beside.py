"""Latency of all other messages while one tuple takes long."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bench.latency import Schedule
from bench.probe import environment
from bench.rig import BenchError, running
from bench.slow.amount import PATIENCE_S, Slow
from bench.topologies.slow import SlowShape, slow_body
from tiercel.workers.config import Settings

_WARM_UP_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Beside:
    """Latency of all other messages while one tuple takes long. In milliseconds."""

    messages: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    # Largest delay of the publisher: above some milliseconds, other work on the machine has
    # distorted the figures.
    late_ms: float = 0.0

    def line(self) -> str:
        """For people."""
        return (
            f"beside one long tuple: p50 {self.p50_ms:.1f} ms  p99 {self.p99_ms:.1f} ms"
            f"  max {self.max_ms:.1f} ms  (all {self.messages:,} other messages,"
            f" published at most {self.late_ms:.0f} ms late)"
        )


def beside(settings: Settings, how: Slow) -> Beside:
    """Shuffle fast messages at a steady rate, with one long message among them."""
    shape = SlowShape(tasks=how.tasks)
    long_s = how.long_ms / 1000
    number = int(_WARM_UP_S * how.rate)
    seconds = _WARM_UP_S + long_s + 1.0
    bodies = [
        slow_body(each, how.long_ms if each == number else 0.0)
        for each in range(int(seconds * how.rate))
    ]
    with (
        environment(shape.environment()),
        running("slow", settings, timed=True, module="bench.topologies.slow") as topology,
    ):
        topology.wait_until_ready()
        schedule = Schedule(topology.settings.amqp or "", topology.queue)
        try:
            count, began, late = schedule.run(how.rate, seconds, bodies)
            topology.wait_for_acks(count, PATIENCE_S)
        finally:
            schedule.close()
        found = topology.reading.latencies()
    others = late[number + 1 : number + 1 + int(how.rate * long_s)]
    return replace(beside_of(found, began, how, number), late_ms=1000 * max(others))


def beside_of(found: np.ndarray, began: float, how: Slow, number: int) -> Beside:
    """Return the latencies of messages due while message ``number`` was executed. Pure.

    ``found`` has a row per message: scheduled time and seconds to the ack.
    """
    numbers = np.rint((found[:, 0] - began) * how.rate).astype(np.int64)
    last = number + int(how.rate * how.long_ms / 1000)
    others = (numbers > number) & (numbers <= last)
    if not others.any():
        raise BenchError("no message was acked beside the long one")
    if found[numbers == number, 1].max(initial=0.0) < how.long_ms / 1000:
        raise BenchError("the long tuple was not at work")
    p50, p99, longest = 1000 * np.percentile(found[others, 1], [50, 99, 100])
    return Beside(
        messages=int(others.sum()), p50_ms=float(p50), p99_ms=float(p99), max_ms=float(longest)
    )
