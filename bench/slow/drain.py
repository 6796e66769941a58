"""The time to empty a queue of slow messages, against work / tasks."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import redis

from bench.growth import seconds_to_drain
from bench.probe import environment
from bench.rig import BenchError, Running, running
from bench.slow.amount import Slow, within_s
from bench.topologies.slow import EXECUTIONS, SlowShape, slow_bodies
from tiercel.queues.broker.depths import depths
from tiercel.workers.config import Settings


@dataclass(frozen=True, kw_only=True)
class SlowDrained:
    """Figures of an emptied queue of slow messages."""

    tasks: int
    work_ms: float
    messages: int
    raised: int
    # From the first delivery to the last ack.
    wall_s: float
    # Tasks x wall seconds / seconds of work: 1 is perfect.
    ratio: float
    # Messages of the busiest task: shuffling may give it one more than its share, which limits
    # the ratio.
    busiest: int

    def line(self) -> str:
        """For people."""
        least = self.busiest * self.tasks / (self.messages + self.raised)
        return (
            f"{self.messages:,} messages of {self.work_ms:,g} ms, {self.tasks} tasks, "
            f"{self.raised} raised: {self.wall_s:.1f} s, {self.ratio:.2f} x the work / tasks"
            f" (the busiest task had {self.busiest}, so {least:.2f} at best)"
        )


def drain(settings: Settings, how: Slow, raising: int = 0) -> SlowDrained:
    """Empty a queue with a topology that has just started.

    One of ``raising`` messages raises once.
    """
    shape = SlowShape(tasks=how.tasks, noted=True)
    raised = len(range(0, how.messages, raising)) if raising else 0
    work_s = (how.messages + raised) * how.work_ms / 1000
    with (
        environment(shape.environment()),
        running("slow", settings, module="bench.topologies.slow") as topology,
    ):
        topology.tolerated = raised
        bodies = slow_bodies(how.messages, how.work_ms, raising)
        wall_s = seconds_to_drain(topology, bodies, within_s(work_s / how.tasks))
        _check_once(topology, how.messages, raising)
        busiest = _busiest(topology, how.messages + raised)
    return SlowDrained(
        tasks=how.tasks,
        work_ms=how.work_ms,
        messages=how.messages,
        raised=raised,
        wall_s=wall_s,
        ratio=how.tasks * wall_s / work_s,
        busiest=busiest,
    )


def _check_once(topology: Running, messages: int, raising: int) -> None:
    """Raise BenchError for a message that was not executed once and acked.

    It was executed too often, timed out or was dead-lettered.
    """
    with redis.Redis.from_url(topology.settings.redis_urls[0]) as client:
        found: Any = client.hgetall(EXECUTIONS)
    executions = {int(number): int(times) for number, times in found.items()}
    check_executions(executions, messages, raising)
    counts = topology.totals("sentences")
    [depth] = depths(topology.settings.amqp or "", [topology.queue])
    if counts["timeout"] or depth.dead_lettered:
        raise BenchError(
            f"{counts['timeout']} messages timed out, {depth.dead_lettered} were dead-lettered"
        )


def check_executions(executions: dict[int, int], messages: int, raising: int) -> None:
    """Raise BenchError unless each message was executed once, and once more where it raised.

    Pure.
    """
    asked = Counter(range(messages))
    if raising:
        asked.update(range(0, messages, raising))
    strange = sum(executions.get(number, 0) != times for number, times in asked.items())
    if strange or len(executions) != messages:
        raise BenchError(
            f"{strange} of {messages} messages were not executed just as often as needed"
        )


def _busiest(topology: Running, executions: int) -> int:
    """Return the count of the busiest task; processes report their counts once per second."""
    deadline = time.monotonic() + 5.0
    while True:
        by_task = topology.executed_by_task("work")
        if sum(by_task.values()) >= executions or time.monotonic() > deadline:
            return max(by_task.values(), default=0)
        time.sleep(0.2)
