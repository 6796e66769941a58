"""Slow work: what tiercel is for.

Bolts that wait for something else, from a millisecond to ten seconds per tuple.

    python bench/slow.py [--only drain|raising|beside|curve ...]

``drain``    a bolt of one second per tuple, four tasks: how near the wall time comes to work /
             tasks
``raising``  the same, and one message in twenty raises the first time
``beside``   one tuple of ten seconds beside fast ones: the latency of those for the other tasks
``curve``    throughput by milliseconds per tuple and by tasks, against tasks / time

The topology runs with the defaults. A run in which a message times out, is dead-lettered, or is
executed once more than it raised does not count.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import redis

from bench.growth import seconds_to_drain
from bench.latency import Schedule
from bench.probe import environment
from bench.rig import BenchError, Running, fill, running, servers
from bench.topologies import EXECUTIONS, SlowShape, slow_body
from tiercel.queues.broker.depths import depths
from tiercel.workers.config import Settings

# One message in so many raises the first time.
RAISING = 20
# Factor by which a run may be slower than tasks / time before it is given up, and the least
# that it is given.
_SLOWEST = 6.0
_LEAST_S = 60.0
# More messages for one point would only measure how fast they are published.
_MESSAGES = 40_000
_WARM_UP_S = 10.0
_PATIENCE_S = 90.0
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Slow:
    """Amount of slow work. Milliseconds are per tuple."""

    # Of the bolt in ``drain``, ``raising`` and ``beside``.
    tasks: int = 4
    work_ms: float = 1_000
    messages: int = 600
    # The one long tuple of ``beside``.
    long_ms: float = 10_000
    # Fast messages per second beside it.
    rate: int = 20
    # Descending: a bound that fast work has let grow is too large for the slow work after it.
    curve_ms: Sequence[float] = (1_000, 100, 10, 1)
    curve_tasks: Sequence[int] = (1, 2, 4, 8, 16)
    # Time that a point of the curve takes where nothing but the work takes time.
    curve_s: float = 10.0


@dataclass(frozen=True, kw_only=True)
class SlowDrained:
    """A queue of slow messages, emptied."""

    tasks: int
    work_ms: float
    messages: int
    raised: int
    # From the first delivery to the last ack.
    wall_s: float
    # Tasks x wall seconds / seconds of work: 1 is perfect.
    ratio: float
    # Messages of the task that had most: shuffling gives one more than its share, which
    # bounds the ratio.
    busiest: int

    def line(self) -> str:
        """For people."""
        least = self.busiest * self.tasks / (self.messages + self.raised)
        return (
            f"{self.messages:,} messages of {self.work_ms:,g} ms, {self.tasks} tasks, "
            f"{self.raised} raised: {self.wall_s:.1f} s, {self.ratio:.2f} x the work / tasks"
            f" (the busiest task had {self.busiest}, so {least:.2f} at best)"
        )


@dataclass(frozen=True, kw_only=True)
class Beside:
    """Latency of fast messages for other tasks while one tuple takes long. In milliseconds."""

    messages: int
    p50_ms: float
    p99_ms: float
    max_ms: float

    def line(self) -> str:
        """For people."""
        return (
            f"beside one long tuple: p50 {self.p50_ms:.1f} ms  p99 {self.p99_ms:.1f} ms"
            f"  max {self.max_ms:.1f} ms  ({self.messages:,} messages for other tasks)"
        )


def drain(settings: Settings, how: Slow, raising: int = 0) -> SlowDrained:
    """Empty a queue with a topology that has just started.

    Of ``raising`` messages one raises once.
    """
    shape = SlowShape(tasks=how.tasks, noted=True)
    raised = len(range(0, how.messages, raising)) if raising else 0
    work_s = (how.messages + raised) * how.work_ms / 1000
    with environment(shape.environment()), running("slow", settings) as topology:
        topology.tolerated = raised
        within_s = _LEAST_S + _SLOWEST * work_s / how.tasks
        wall_s = seconds_to_drain(topology, _bodies(how.messages, how.work_ms, raising), within_s)
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


def _bodies(count: int, work_ms: float, raising: int = 0) -> Iterator[bytes]:
    for number in range(count):
        yield slow_body(number, work_ms, raises=bool(raising) and number % raising == 0)


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
    """Of the task that had most. The processes tell their counts once per second."""
    deadline = time.monotonic() + 5.0
    while True:
        by_task = topology.executed_by_task("work")
        if sum(by_task.values()) >= executions or time.monotonic() > deadline:
            return max(by_task.values(), default=0)
        time.sleep(0.2)


def beside(settings: Settings, how: Slow) -> Beside:
    """Fast messages at a steady rate, each task its share.

    In their midst one for the first task is long.
    """
    shape = SlowShape(tasks=how.tasks, even=True)
    long_s = how.long_ms / 1000
    # A message for the first task, some seconds after the beginning.
    number = _first_of_task_zero(int(_WARM_UP_S * how.rate), how.tasks)
    seconds = _WARM_UP_S + long_s + how.tasks / how.rate + 1.0
    bodies = [
        slow_body(each, how.long_ms if each == number else 0.0)
        for each in range(int(seconds * how.rate))
    ]
    with environment(shape.environment()), running("slow", settings, timed=True) as topology:
        topology.wait_until_ready()
        schedule = Schedule(topology.settings.amqp or "", topology.queue)
        try:
            count, began, _ = schedule.run(how.rate, seconds, bodies)
            topology.wait_for_acks(count, _PATIENCE_S)
        finally:
            schedule.close()
        found = topology.reading.latencies()
    return beside_of(found, began, how, number)


def _first_of_task_zero(number: int, tasks: int) -> int:
    return -(-number // tasks) * tasks


def beside_of(found: np.ndarray, began: float, how: Slow, number: int) -> Beside:
    """Rows for other tasks, due while ``number`` was at work. Pure.

    From rows of scheduled time and seconds to the ack.
    """
    numbers = np.rint((found[:, 0] - began) * how.rate).astype(np.int64)
    last = number + int(how.rate * how.long_ms / 1000)
    mine = (numbers > number) & (numbers <= last) & (numbers % how.tasks != 0)
    if not mine.any():
        raise BenchError("no message was acked beside the long one")
    if found[numbers == number, 1].max(initial=0.0) < how.long_ms / 1000:
        raise BenchError("the long tuple was not at work")
    p50, p99, longest = 1000 * np.percentile(found[mine, 1], [50, 99, 100])
    return Beside(
        messages=int(mine.sum()), p50_ms=float(p50), p99_ms=float(p99), max_ms=float(longest)
    )


def curve(settings: Settings, how: Slow, say: Say) -> list[dict[str, Any]]:
    """One row per number of tasks and milliseconds per tuple.

    What failed has a row that says why.
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
    with environment(shape.environment()), running("slow", settings) as topology:
        topology.wait_until_ready()
        fill(settings, topology.queue, _bodies(4 * tasks, 1.0))
        topology.wait_for_acks(4 * tasks, _PATIENCE_S)
        for work_ms in how.curve_ms:
            yield _point(topology, tasks, work_ms, how.curve_s)


def _point(topology: Running, tasks: int, work_ms: float, seconds: float) -> dict[str, float]:
    count = messages_of_point(tasks, work_ms, seconds)
    best_s = count * work_ms / 1000 / tasks
    wall_s = seconds_to_drain(topology, _bodies(count, work_ms), _LEAST_S + _SLOWEST * best_s)
    return {
        "tasks": tasks,
        "work_ms": work_ms,
        "messages": count,
        "messages_per_s": count / wall_s,
        "share": best_s / wall_s,
    }


def messages_of_point(tasks: int, work_ms: float, seconds: float) -> int:
    """As many for each task; enough for so many seconds, two at least. Pure."""
    each = max(2, int(seconds * 1000 / work_ms))
    return tasks * max(2, min(each, _MESSAGES // tasks))


def line(row: dict[str, float]) -> str:
    """For people."""
    return (
        f"{row['work_ms']:>6,g} ms per tuple, {row['tasks']:>2} tasks: "
        f"{row['messages_per_s']:>9,.1f} messages/s, {row['share']:.0%} of tasks / time"
    )


def main() -> None:
    parts = ("drain", "raising", "beside", "curve")
    parser = argparse.ArgumentParser(description="Slow work.")
    parser.add_argument("--only", choices=parts, action="append", help="default: all")
    only = parser.parse_args().only or parts
    how = Slow()
    with servers() as settings:
        for raising in [n for name, n in (("drain", 0), ("raising", RAISING)) if name in only]:
            drained = drain(settings, how, raising)
            print(drained.line(), flush=True)
            print(json.dumps(asdict(drained)), flush=True)
        if "beside" in only:
            found = beside(settings, how)
            print(found.line(), flush=True)
            print(json.dumps(asdict(found)), flush=True)
        if "curve" in only:
            print(json.dumps(curve(settings, how, lambda said: print(said, flush=True))))


if __name__ == "__main__":
    main()
