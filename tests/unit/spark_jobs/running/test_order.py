"""Order per key despite failures, timeouts and deaths: a tuple begins once its predecessor has
succeeded.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import deque
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pika import BasicProperties

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
from tiercel.queues.consuming.channel import HandOut
from tiercel.queues.consuming.messages import Delivery
from tiercel.spark_jobs.kinds.ordered import CallsInOrder
from tiercel.workers.testing.engine import SimulatedClock

FIRST_OF_A_KEY = 0


class Script:
    """Plan and record of the bolts of one test."""

    def __init__(self, seed: int, fails: float) -> None:
        self.random = random.Random(seed)
        self.fails = fails
        self.succeeded: set[tuple[str, int]] = set()
        self.inversions: list[tuple[str, int]] = []
        self.given_up: set[tuple[str, int]] = set()
        self.executions = 0
        # Numbers of each key in order of first arrival at the task. A spout worker that dies twice
        # puts a message behind its former successors.
        self.arrived: dict[str, list[int]] = {}
        self.lock = threading.Lock()

    def arrives(self, key: str, number: int) -> None:
        numbers = self.arrived.setdefault(key, [])
        if number not in numbers:
            numbers.append(number)

    def begin(self, key: str, number: int) -> None:
        with self.lock:
            self.executions += 1
            arrived = self.arrived.get(key, range(FIRST_OF_A_KEY, number + 1))
            before = {(key, each) for each in arrived[: arrived.index(number)]}
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
    """Fails when its step ends, because its output does not fit."""

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
        # Values are only checked if a bolt receives them.
        next_bolt = builder.set_bolt("next", Second(), config=_order_of(bolt))
        if _order_of(bolt):
            next_bolt.fields_grouping("bolt", "key")
        else:
            next_bolt.shuffle_grouping("bolt")
    return builder.build()


def _order_of(bolt: Any) -> dict[str, str]:
    return {"ordered_by": "key"} if "key" in bolt.output_fields else {}


class Second(BasicBolt):
    """Receives the first bolt's output."""

    script: ClassVar[Script]

    def execute(self, tup, collector):
        if tup.fields == ("key", "number"):
            self.script.do(*tup.values)


class Passing(Scripted, BasicBolt):
    output_fields = "key string, number long"

    def execute(self, tup, collector):
        self.script.do(*tup.values)
        collector.emit(tup.values)


class PassingLater(Scripted, AsyncBolt):
    output_fields = "key string, number long"

    async def execute(self, tup, collector):
        self.script.begin(*tup.values)
        await asyncio.sleep(self.script.random.random())
        self.script.end(*tup.values)
        collector.emit(tup.values)


class GivenBack(Source):
    """A spout that emits returned messages again."""

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
    # Number of returns to the queue.
    count: int = 0


class Broker:
    """A queue, a spout worker and the process of a bolt task; the last two die now and then.

    The worker holds twice as many messages as may be in flight.
    """

    def __init__(self, bolt: Any, config: Any, script: Script, *, bound: int) -> None:
        self.clock = SimulatedClock()
        self.pump = Pump(topology(bolt, **config), simulated=self.clock)
        self.script = script
        self.bound = bound
        # RabbitMQ delivers returned messages first.
        self.returned: deque[Message] = deque()
        self.queue: deque[Message] = deque()
        self.held: dict[int, Message] = {}
        self.hand_out = HandOut()
        # Tags in flight, by root; failed tags, with the end of their back-off.
        self.flying: dict[int, int] = {}
        # Roots that wait for their predecessors, outside the bound.
        self.apart: set[int] = set()
        self.failed: list[tuple[float, int]] = []
        self.acked: list[Message] = []
        self._tags = count(1)

    def run(
        self, *, kills: float = 0.0, timeouts: float = 0.0, deaths: float = 0.0, rounds: int = 4_000
    ) -> None:
        """Run until everything is acked, with ``kills`` of the bolt's process and ``deaths`` of the
        worker.
        """
        chance = self.script.random
        for _ in range(rounds):
            if not (self.queue or self.returned or self.held):
                return
            self._deliver()
            if self.flying and chance.random() < timeouts:
                root = chance.choice(list(self.flying))
                self.pump.ledger.forget([root])
                self._fail(self.flying.pop(root))
            if chance.random() < deaths:
                self._lose_worker()
            if chance.random() < kills:
                self._die(chance.randrange(12))
            self.pump.work()
            self._hear()
            self.clock.move_to(self.clock() + 0.5)
        pytest.fail(f"it stands: {self.queue}, {self.returned}, {self.held}")

    def _deliver(self) -> None:
        for end, tag in [one for one in self.failed if one[0] <= self.clock()]:
            self.failed.remove((end, tag))
            self._give_back(tag)
        self.apart &= self.flying.keys()
        bound = self.bound + len(self.apart)
        while len(self.held) < 2 * bound and (self.returned or self.queue):
            message = (self.returned or self.queue).popleft()
            tag = next(self._tags)
            self.held[tag] = message
            self.hand_out.add(Delivery(1, tag, b"", message.count, BasicProperties()))
        for delivery in self.hand_out.take(bound - len(self.flying)):
            message = self.held[delivery.tag]
            [root] = self.pump.feed([message.key, message.number])
            self.script.arrives(message.key, message.number)
            self.flying[root] = delivery.tag
        self.pump.send()

    def _give_back(self, tag: int) -> None:
        message = self.held.pop(tag)
        message.count += 1
        self.returned.append(message)

    def _fail(self, tag: int) -> None:
        self.failed.append((self.clock() + 3 * self.script.random.random(), tag))

    def _lose_worker(self) -> None:
        self.hand_out.clear()
        self.flying.clear()
        self.failed.clear()
        for tag in sorted(self.held):
            self._give_back(tag)

    def _die(self, effects: int) -> None:
        attempt = self.pump.attempts[self.pump.tasks[0]]
        with killed_after(effects):
            self.pump.work()
        calls = attempt.kind._calls if isinstance(attempt.kind, CallsInOrder) else None
        if calls is not None:
            calls._caller.cancel()
        self.pump.take_over()
        if calls is not None:
            calls._caller.close()

    def close(self) -> None:
        for attempt in self.pump.attempts.values():
            attempt.close()

    def _hear(self) -> None:
        outcomes = self.pump.feeds[0].read(timedelta(0))
        self.apart.update(outcomes.waiting)
        for root in outcomes.acked:
            if root in self.flying:
                self.acked.append(self.held.pop(self.flying.pop(root)))
        for failure in outcomes.failed:
            if failure.root in self.flying:
                self._fail(self.flying.pop(failure.root))
        # An ordered bolt gives nothing back to the spout.
        assert not outcomes.released


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
        broker.run(
            kills=data.draw(st.sampled_from([0.0, 0.2])),
            deaths=data.draw(st.sampled_from([0.0, 0.03])),
        )
    assert script.inversions == []
    assert len(broker.acked) == 8 * keys


@every_kind
def test_what_waits_for_its_predecessor_leaves_room_for_others(bolt, config) -> None:
    script = Scripted.script = Script(1, 1.0)
    broker = Broker(bolt, config, script, bound=4)
    broker.queue += [Message("k0", number) for number in range(3)]
    with closing(broker):
        broker._deliver()
        for _ in range(10):
            broker.pump.work()
            broker._hear()
            broker.clock.move_to(broker.clock() + 0.15)
    assert 1 < script.executions < 5
    assert script.inversions == []
    assert len(broker.flying) == 3
    assert broker.apart == broker.flying.keys()


class Quick(Scripted, AsyncBolt):
    async def execute(self, tup, collector):
        self.script.do(*tup.values)


@pytest.mark.parametrize(
    ("bolt", "config"), [(Quick(), {}), (Basic(), {"threads": 3})], ids=["async", "threads"]
)
def test_a_successor_waits_for_nothing_but_its_predecessor(bolt, config) -> None:
    """It does not wait for more tuples, unlike a task that has nothing to begin."""
    script = Scripted.script = Script(1, 0.0)
    pump = Pump(topology(bolt, **config))
    [attempt] = pump.attempts.values()
    pump.feed(*[["k0", number] for number in range(4)])
    pump.send()
    began = time.monotonic()
    with closing(attempt):
        while len(script.succeeded) < 4:
            attempt.turn(10.0)
    assert time.monotonic() - began < 10


def overtaking(bolt: Any, config: Any, seed: int, fails: float, bound: int, keys: int) -> list[Any]:
    """Run tuples through two ordered bolts whose processes die; return the premature ones."""
    script = Scripted.script = Script(seed, fails)
    second = Second.script = Script(seed + 1, 0.1)
    broker = Broker(bolt, config, script, bound=bound)
    for number in range(8):
        broker.queue += [Message(f"k{key}", number) for key in range(keys)]
    with closing(broker):
        broker.run(kills=0.3)
    assert len(broker.acked) == 8 * keys
    return script.inversions + second.inversions


@pytest.mark.parametrize(
    ("bolt", "config"),
    [(Passing(), {}), (Passing(), {"threads": 3}), (PassingLater(), {})],
    ids=["basic", "threads", "async"],
)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), data=st.data())
def test_no_tuple_overtakes_another_on_its_way_to_the_next_bolt(bolt, config, seed, data) -> None:
    """This holds even if a repeated step does other work: the first execution's effects stay."""
    fails = data.draw(st.sampled_from([0.1, 0.3]))
    bound = data.draw(st.sampled_from([4, 12, 100]))
    assert overtaking(bolt, config, seed, fails, bound, data.draw(st.integers(1, 5))) == []


@pytest.mark.parametrize(
    ("bolt", "seed", "bound", "keys"),
    [
        # A tuple that was given back, and not sealed, was given back a second time.
        (PassingLater(), 1, 100, 5),
        (Passing(), 5412, 4, 2),
        # The second seal of a step that did other work lacked the failed tuples.
        (PassingLater(), 2810, 4, 3),
        (PassingLater(), 8056, 4, 4),
    ],
)
def test_what_has_overtaken_once(bolt, seed, bound, keys) -> None:
    assert overtaking(bolt, {}, seed, 0.3, bound, keys) == []


@pytest.mark.parametrize("seed", [9, 41, 343, 416, 501])
def test_messages_that_two_deaths_of_their_spout_worker_put_behind_others(seed) -> None:
    """The order is that of the first arrival at the task."""
    script = Scripted.script = Script(seed, 0.1)
    broker = Broker(Async(), {}, script, bound=4)
    for number in range(8):
        broker.queue += [Message(f"k{key}", number) for key in range(3)]
    with closing(broker):
        broker.run(kills=0.2, deaths=0.03)
    assert script.inversions == []
    assert len(broker.acked) == 24
