"""Uneven work at four fifths of the tasks' capacity, compared with Celery and an ideal queue.

Messages arrive by a Poisson process. The latency of a message is the time from the moment that it
was due to be published to the end of its work, which the worker notes in Redis: the same for both.
The ideal is one queue with as many servers as there are tasks, simulated for the same schedule.
"""

from __future__ import annotations

import heapq
import json
import random
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import redis

from bench.contest import peer_process
from bench.growth import seconds_to_drain
from bench.latency import Schedule
from bench.probe import environment
from bench.rig import ROOT, clear, fill, running, until
from bench.slow.amount import PATIENCE_S, Slow, within_s
from bench.topologies.slow import DONE, SlowShape, slow_bodies, slow_body
from tiercel.workers.config import Settings, child_environment, python_path

Kind = Literal["exponential", "heavy"]
KINDS: tuple[Kind, ...] = ("exponential", "heavy")
MEAN_MS = 200.0
# One in twenty takes ten times the mean, the others share the rest.
_ONE_IN = 20
_LONG_MS = 2_000.0
_LOAD = 0.8
_CELERY = "bench.peers.celery_uneven"


@dataclass(frozen=True, kw_only=True)
class Uneven:
    """Latencies of one kind of work, in milliseconds."""

    kind: Kind
    messages: int
    p50_ms: float
    p99_ms: float
    ideal_p50_ms: float
    ideal_p99_ms: float
    # None without a Python that has Celery.
    celery_p50_ms: float | None
    celery_p99_ms: float | None

    def line(self) -> str:
        """For people."""
        celery = (
            "not measured"
            if self.celery_p50_ms is None
            else f"{self.celery_p50_ms:,.0f} / {self.celery_p99_ms:,.0f} ms"
        )
        return (
            f"uneven work, {self.kind}: p50 / p99 {self.p50_ms:,.0f} / {self.p99_ms:,.0f} ms,"
            f" Celery {celery}, one ideal queue {self.ideal_p50_ms:,.0f} /"
            f" {self.ideal_p99_ms:,.0f} ms  ({self.messages:,} messages)"
        )


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """One message: when it is due, in seconds from the first, and how long it takes."""

    at_s: float
    work_ms: float


def arrivals(kind: Kind, tasks: int, seconds: float, seed: int = 1) -> list[Arrival]:
    """Return a Poisson process that keeps ``tasks`` busy for four fifths of the time. Pure."""
    chance = random.Random(f"{kind} {seed}")
    rate = _LOAD * tasks * 1000 / MEAN_MS
    found = []
    at_s = 0.0
    while at_s < seconds:
        found.append(Arrival(at_s=at_s, work_ms=_work_ms(kind, chance)))
        at_s += chance.expovariate(rate)
    return found


def _work_ms(kind: Kind, chance: random.Random) -> float:
    if kind == "exponential":
        return chance.expovariate(1 / MEAN_MS)
    short_ms = (_ONE_IN * MEAN_MS - _LONG_MS) / (_ONE_IN - 1)
    return _LONG_MS if chance.random() < 1 / _ONE_IN else short_ms


def ideal_s(schedule: Sequence[Arrival], servers: int) -> list[float]:
    """Return the seconds from arrival to end if all servers share one queue. Pure."""
    free_at = [0.0] * servers
    latencies = []
    for one in schedule:
        end_s = max(one.at_s, heapq.heappop(free_at)) + one.work_ms / 1000
        heapq.heappush(free_at, end_s)
        latencies.append(end_s - one.at_s)
    return latencies


def uneven(settings: Settings, how: Slow, kind: Kind, peers: str | None) -> Uneven:
    """Measure one kind of work; ``peers`` names a Python that has Celery."""
    schedule = arrivals(kind, how.tasks, how.uneven_s)
    ours = np.percentile(_tiercel(settings, how.tasks, schedule), [50, 99])
    ideal = np.percentile(ideal_s(schedule, how.tasks), [50, 99])
    theirs: Any = (
        (None, None)
        if peers is None
        else np.percentile(_celery(settings, how.tasks, schedule, peers), [50, 99])
    )
    p50, p99, ideal_p50, ideal_p99, celery_p50, celery_p99 = (
        None if one is None else 1000 * float(one) for one in (*ours, *ideal, *theirs)
    )
    return Uneven(
        kind=kind,
        messages=len(schedule),
        p50_ms=p50 or 0.0,
        p99_ms=p99 or 0.0,
        ideal_p50_ms=ideal_p50 or 0.0,
        ideal_p99_ms=ideal_p99 or 0.0,
        celery_p50_ms=celery_p50,
        celery_p99_ms=celery_p99,
    )


def half_speed(settings: Settings, how: Slow) -> float:
    """Measure throughput / sum of the tasks' speeds, with one task half as fast as the others.

    A perfect split gives 1.
    """
    shape = SlowShape(tasks=how.tasks, half=True)
    work_ms = how.half_ms
    speed_per_s = (how.tasks - 0.5) * 1000 / work_ms
    with (
        environment(shape.environment()),
        running("slow", settings, module="bench.topologies.slow") as topology,
    ):
        best_s = how.messages / speed_per_s
        bodies = slow_bodies(how.messages, work_ms)
        return best_s / seconds_to_drain(topology, bodies, within_s(best_s))


def _tiercel(settings: Settings, tasks: int, schedule: Sequence[Arrival]) -> list[float]:
    shape = SlowShape(tasks=tasks, stamped=True)
    bodies = [slow_body(number, one.work_ms) for number, one in enumerate(schedule)]
    with (
        environment(shape.environment()),
        running("slow", settings, module="bench.topologies.slow") as topology,
    ):
        topology.wait_until_ready()
        # Celery's processes have run a task before, too.
        fill(settings, topology.queue, slow_bodies(4 * tasks, 1.0))
        topology.wait_for_acks(4 * tasks, PATIENCE_S)
        _forget(settings)
        publisher = Schedule(settings.amqp or "", topology.queue)
        try:
            began, _ = publisher.at([one.at_s for one in schedule], bodies)
        finally:
            publisher.close()
        return _latencies(settings, schedule, began)


def _celery(
    settings: Settings, tasks: int, schedule: Sequence[Arrival], python: str
) -> list[float]:
    worker = [python, "-m", "celery", "-A", _CELERY, "worker", "--loglevel", "error"]
    argv = [*worker, "--concurrency", str(tasks)]
    try:
        with peer_process(argv, settings, {}) as check:
            _publish(settings, [Arrival(at_s=0.0, work_ms=1.0)] * (4 * tasks), python)
            until(lambda: check() or _noted(settings) == 4 * tasks, PATIENCE_S, "Celery's start")
            _forget(settings)
            began = _publish(settings, schedule, python)
            return _latencies(settings, schedule, began)
    finally:
        clear(settings, ["celery"])


def _publish(settings: Settings, schedule: Sequence[Arrival], python: str) -> float:
    """Publish tasks of Celery; returns the time at which the first was due."""
    lines = [json.dumps([one.at_s, one.work_ms]) for one in schedule]
    done = subprocess.run(  # noqa: S603 - our own module
        [python, "-m", _CELERY],
        input="\n".join(lines).encode(),
        env=child_environment({**settings.as_environment(), **python_path(ROOT)}),
        check=True,
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    return float(done.stdout)


def _latencies(settings: Settings, schedule: Sequence[Arrival], began: float) -> list[float]:
    """Return the seconds from the due time of each message to the end of its work."""
    until(
        lambda: _noted(settings) == len(schedule),
        PATIENCE_S,
        f"the end of {len(schedule):,} messages",
    )
    done = _done(settings)
    return [done[number] - began - one.at_s for number, one in enumerate(schedule)]


def _noted(settings: Settings) -> int:
    with redis.Redis.from_url(settings.redis_urls[0]) as client:
        count: Any = client.hlen(DONE)
        return int(count)


def _done(settings: Settings) -> Mapping[int, float]:
    with redis.Redis.from_url(settings.redis_urls[0]) as client:
        found: Any = client.hgetall(DONE)
    return {int(number): float(at) for number, at in found.items()}


def _forget(settings: Settings) -> None:
    with redis.Redis.from_url(settings.redis_urls[0]) as client:
        client.delete(DONE)
