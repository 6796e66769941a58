"""Order per key, whatever fails, is given back, times out or dies: a tuple begins when its
predecessor has succeeded.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.pump import Pump, Source, killed_after
from tiercel import (
    ArrowBolt,
    AsyncBolt,
    BasicBolt,
    BatchBolt,
    Bolt,
    Config,
    StatefulBolt,
    Topology,
    TopologyBuilder,
)
from tiercel.spark_jobs.running.calling import CallingAttempt
from tiercel.workers.testing.clock import SimulatedClock

FIRST_OF_A_KEY = 0


class Script:
    """Things that the bolts of one test do, and did."""

    def __init__(self, seed: int, fails: float) -> None:
        self.random = random.Random(seed)
        self.fails = fails
        self.succeeded: set[tuple[str, int]] = set()
        self.inversions: list[tuple[str, int]] = []
        self.given_up: set[tuple[str, int]] = set()
        self.executions = 0
        self.lock = threading.Lock()

    def begin(self, key: str, number: int) -> None:
        with self.lock:
            self.executions += 1
            before = {(key, each) for each in range(FIRST_OF_A_KEY, number)}
            if before - self.succeeded - self.given_up:
                self.inversions.append((key, number))

    def end(self, key: str, number: int) -> None:
        with self.lock:
            if self.random.random() < self.fails:
                raise ValueError(f"{key} {number} fails")
            self.succeeded.add((key, number))

    def do(self, key: str, number: int) -> None:
        self.begin(key, number)
        self.end(key, number)


class Scripted:
    script: ClassVar[Script]


class Basic(Scripted, BasicBolt):
    def execute(self, tup, collector):
        self.script.do(*tup.values)


class Rich(Scripted, Bolt):
    def execute(self, tup, collector):
        self.script.do(*tup.values)
        collector.ack(tup)


class Flushing(Scripted, BasicBolt):
    """Fails when its step ends."""

    def execute(self, tup, collector):
        self.script.begin(*tup.values)
        self.done.append(tup.values)

    def prepare(self, config, context):
        self.done: list[Any] = []

    def flush(self, collector):
        done, self.done = self.done, []
        for values in done:
            self.script.end(*values)


class Stateful(Scripted, StatefulBolt):
    state_types: ClassVar[Any] = {}

    def execute(self, tup, collector):
        self.script.do(*tup.values)


class Arrow(Scripted, ArrowBolt):
    def execute(self, batch, collector):
        for row in batch.to_pylist():
            self.script.begin(row["key"], row["number"])
        failed = []
        for at, row in enumerate(batch.to_pylist()):
            try:
                self.script.end(row["key"], row["number"])
            except ValueError:
                failed.append(at)
        if failed:
            collector.fail(pa.array(failed), "fails")


class Batches(Scripted, BatchBolt):
    size = 5
    wait_ms = 0

    def execute_batch(self, tuples, collector):
        for tup in tuples:
            try:
                self.script.do(*tup.values)
            except ValueError as error:
                collector.fail(tup, error)


class Async(Scripted, AsyncBolt):
    concurrency = 4

    async def execute(self, tup, collector):
        self.script.begin(*tup.values)
        if self.script.random.random() < 0.3:
            await asyncio.sleep(self.script.random.random())
        self.script.end(*tup.values)


class Misfit(Scripted, AsyncBolt):
    """Fails when its step ends: what it emits does not fit."""

    output_fields = "number long"
    concurrency = 4

    async def execute(self, tup, collector):
        self.script.begin(*tup.values)
        try:
            self.script.end(*tup.values)
        except ValueError:
            collector.emit(["no number"])


def topology(bolt: Any, **config: Any) -> Topology:
    builder = TopologyBuilder("order", Config(message_timeout_secs=30))
    builder.set_spout("spout", GivenBack("key string, number long"))
    builder.set_bolt("bolt", bolt, config={"ordered_by": "key", **config}).fields_grouping(
        "spout", "key"
    )
    if bolt.output_fields:
        # Values that no bolt receives are not looked at.
        builder.set_bolt("next", Ignoring()).shuffle_grouping("bolt")
    return builder.build()


class Ignoring(BasicBolt):
    def execute(self, tup, collector):
        pass


class GivenBack(Source):
    """A spout that emits again what is given back."""

    def release(self, msg_id: Any) -> None:
        pass


KINDS = {
    "basic": (Basic(), {}),
    "rich": (Rich(), {}),
    "flushing": (Flushing(), {}),
    "stateful": (Stateful(), {}),
    "arrow": (Arrow(), {}),
    "batches": (Batches(), {}),
    "async": (Async(), {}),
    "misfit": (Misfit(), {}),
    "threads": (Basic(), {"threads": 3}),
}
every_kind = pytest.mark.parametrize(("bolt", "config"), KINDS.values(), ids=KINDS.keys())


@dataclass
class Message:
    key: str
    number: int
    # Seconds at which it may be delivered again.
    at: float = 0.0


class Broker:
    """A queue, a spout and a process that dies now and then, around one bolt task."""

    def __init__(self, bolt: Any, config: Any, script: Script, *, bound: int) -> None:
        self.clock = SimulatedClock()
        self.pump = Pump(topology(bolt, **config), simulated=self.clock)
        self.script = script
        self.bound = bound
        self.queue: deque[Message] = deque()
        self.again: list[Message] = []
        self.flying: dict[int, Message] = {}
        self.acked: list[Message] = []

    def run(self, *, kills: float = 0.0, timeouts: float = 0.0, rounds: int = 4_000) -> None:
        """Until everything is acked."""
        chance = self.script.random
        for _ in range(rounds):
            if not (self.queue or self.again or self.flying):
                return
            self._deliver()
            if self.flying and chance.random() < timeouts:
                root = chance.choice(list(self.flying))
                self.pump.ledger.forget([root])
                self.again.append(self.flying.pop(root))
            if chance.random() < kills:
                self._die(chance.randrange(12))
            self.pump.work()
            self._hear()
            self.clock.move_to(self.clock() + 0.5)
        pytest.fail(f"it stands: {self.queue}, {self.again}, {self.flying}")

    def _deliver(self) -> None:
        # What came again is handed out first.
        due = [message for message in self.again if message.at <= self.clock()]
        while len(self.flying) < self.bound and (due or self.queue):
            message = due.pop(0) if due else self.queue.popleft()
            if message in self.again:
                self.again.remove(message)
            [root] = self.pump.feed([message.key, message.number])
            self.flying[root] = message
        self.pump.send()

    def _die(self, effects: int) -> None:
        attempt = self.pump.attempts[self.pump.tasks[0]]
        with killed_after(effects):
            self.pump.work()
        if isinstance(attempt, CallingAttempt):
            attempt._caller.cancel()
        self.pump.take_over()
        if isinstance(attempt, CallingAttempt):
            attempt._caller.close()

    def close(self) -> None:
        for attempt in self.pump.attempts.values():
            attempt.close()

    def _hear(self) -> None:
        outcomes = self.pump.feeds[0].read(timedelta(0))
        for root in outcomes.acked:
            if root in self.flying:
                self.acked.append(self.flying.pop(root))
        back_off = self.script.random.random() * 3
        for root in [*outcomes.released, *(failure.root for failure in outcomes.failed)]:
            if root in self.flying:
                message = self.flying.pop(root)
                message.at = self.clock() + back_off * (root not in outcomes.released)
                self.again.append(message)


@every_kind
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), data=st.data())
def test_no_tuple_begins_before_its_predecessor_has_succeeded(bolt, config, seed, data) -> None:
    script = Scripted.script = Script(seed, data.draw(st.sampled_from([0.0, 0.1, 0.4])))
    broker = Broker(bolt, config, script, bound=data.draw(st.sampled_from([1, 4, 12, 100])))
    keys = data.draw(st.integers(1, 5))
    for number in range(8):
        broker.queue += [Message(f"k{key}", number) for key in range(keys)]
    with closing(broker):
        broker.run(kills=data.draw(st.sampled_from([0.0, 0.2])))
    assert script.inversions == []
    assert len(broker.acked) == 8 * keys
