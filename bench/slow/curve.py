"""Throughput of slow work by milliseconds per tuple and number of tasks, against tasks / time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from bench.growth import seconds_to_drain
from bench.probe import environment
from bench.rig import BenchError, Running, fill, running
from bench.slow.amount import PATIENCE_S, Slow, within_s
from bench.topologies.slow import SlowShape, slow_bodies
from tiercel.workers.config import Settings

# With more messages, a point would measure only the speed of publishing.
_MESSAGES = 40_000
Say = Callable[[str], None]


def curve(settings: Settings, how: Slow, say: Say) -> list[dict[str, Any]]:
    """Measure one row per number of tasks and milliseconds per tuple.

    The row of a failed measurement says why it failed.
    """
    rows: list[dict[str, Any]] = []
    for tasks in how.curve_tasks:
        try:
            for row in _with_tasks(settings, how, tasks):
                rows.append(row)
                say(line(row))
        except BenchError as error:
            say(f"slow work, {tasks} tasks: {error}")
            rows.append({"tasks": tasks, "error": str(error)})
    return rows


def _with_tasks(settings: Settings, how: Slow, tasks: int) -> Iterator[dict[str, float]]:
    shape = SlowShape(tasks=tasks, even=True)
    with (
        environment(shape.environment()),
        running("slow", settings, module="bench.topologies.slow") as topology,
    ):
        topology.wait_until_ready()
        fill(settings, topology.queue, slow_bodies(4 * tasks, 1.0))
        topology.wait_for_acks(4 * tasks, PATIENCE_S)
        for work_ms in how.curve_ms:
            yield _point(topology, tasks, work_ms, how.curve_s)


def _point(topology: Running, tasks: int, work_ms: float, seconds: float) -> dict[str, float]:
    count = messages_of_point(tasks, work_ms, seconds)
    best_s = count * work_ms / 1000 / tasks
    wall_s = seconds_to_drain(topology, slow_bodies(count, work_ms), within_s(best_s))
    return {
        "tasks": tasks,
        "work_ms": work_ms,
        "messages": count,
        "messages_per_s": count / wall_s,
        "share": best_s / wall_s,
    }


def messages_of_point(tasks: int, work_ms: float, seconds: float) -> int:
    """Return the number of messages: equal per task, for this many seconds, at least two. Pure."""
    each = max(2, int(seconds * 1000 / work_ms))
    return tasks * max(2, min(each, _MESSAGES // tasks))


def line(row: dict[str, float]) -> str:
    """For people."""
    return (
        f"{row['work_ms']:>6,g} ms per tuple, {row['tasks']:>2} tasks: "
        f"{row['messages_per_s']:>9,.1f} messages/s, {row['share']:.0%} of tasks / time"
    )
