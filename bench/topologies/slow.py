"""One slow bolt; each message contains its own cost."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import redis

from bench.topologies.observed import ObservedSpout
from tiercel import (
    BasicBolt,
    BasicCollector,
    Config,
    Topology,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)

# The variable that tells each process the shape of ``slow``, as JSON.
SLOW = "BENCH_SLOW"
# A hash in Redis: number of executions of each message.
EXECUTIONS = "bench-executions"
# A hash in Redis: the monotonic time at which the work of each message ended.
DONE = "bench-done"


@dataclass(frozen=True, kw_only=True)
class SlowShape:
    """The tasks that do the slow work, and how it is spread.

    Each message contains its own cost.
    """

    tasks: int
    # Messages are dealt to the tasks by number. Otherwise they are shuffled, as most users do.
    even: bool = False
    # Each execution is noted in Redis, so that repeats are seen and messages can raise once.
    noted: bool = False
    # The end of each execution is noted in Redis.
    stamped: bool = False
    # The first task takes twice as long for everything.
    half: bool = False

    @classmethod
    def told(cls) -> SlowShape:
        """By the environment."""
        return cls(**json.loads(os.environ[SLOW]))

    def environment(self) -> dict[str, str]:
        return {SLOW: json.dumps(asdict(self))}


def slow_body(number: int, work_ms: float, *, raises: bool = False) -> bytes:
    """A message for ``slow``."""
    return json.dumps({"number": number, "work_ms": work_ms, "raises": raises}).encode()


def slow_bodies(count: int, work_ms: float, raising: int = 0) -> Iterator[bytes]:
    """Messages that take ``work_ms`` each; one of ``raising`` messages raises."""
    for number in range(count):
        yield slow_body(number, work_ms, raises=bool(raising) and number % raising == 0)


class FirstTimeError(Exception):
    """Raised for a message that must fail the first time."""


class Work(BasicBolt):
    """Takes as long as the message says, without using the CPU, like a call to another service."""

    transient = frozenset({"_client"})

    def __init__(self, shape: SlowShape) -> None:
        self._shape = shape
        self._factor = 1

    def prepare(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        super().prepare(config, context)
        self._client = redis.Redis.from_url(config["redis_url"])
        self._factor = 2 if self._shape.half and context.task_index == 0 else 1

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:  # noqa: ARG002 - nothing to emit
        time.sleep(self._factor * tup["work_ms"] / 1000)
        if self._shape.stamped:
            self._client.hset(DONE, tup["number"], str(time.monotonic()))
        if self._shape.noted:
            times: Any = self._client.hincrby(EXECUTIONS, tup["number"], 1)
            if tup["raises"] and times == 1:
                raise FirstTimeError(f"message {tup['number']} raises the first time")

    def cleanup(self) -> None:
        self._client.close()


class ByNumber:
    """Deals messages to the tasks by number."""

    def prepare(self, context: TopologyContext, stream: str, target_tasks: Sequence[int]) -> None:  # noqa: ARG002
        self._tasks = list(target_tasks)

    def choose_tasks(self, task_id: int, values: Sequence[Any]) -> Sequence[int]:  # noqa: ARG002
        return [self._tasks[values[0] % len(self._tasks)]]


def slow() -> Topology:
    """One slow bolt, ``work``. All settings are the default ones."""
    shape = SlowShape.told()
    builder = TopologyBuilder("bench-slow", Config())
    spout = ObservedSpout(
        "bench-slow", fields="number long, work_ms double, raises boolean", format="json"
    )
    builder.set_spout("sentences", spout)
    work = builder.set_bolt("work", Work(shape), parallelism=shape.tasks)
    if shape.even:
        work.custom_grouping("sentences", ByNumber())
    else:
        work.shuffle_grouping("sentences")
    return builder.build()
