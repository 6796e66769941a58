"""Random trees under random deaths: a message is acked only when its whole tree was processed.

Bolts of the trees answer from threads, between steps and late; they hold tuples in attributes; they
emit at random, and other tuples when a step is repeated; and they die between any two effects of a
commit.

``pytest --random-trees=2000 --soak-seed=N tests/semantics/test_random_trees.py`` runs 2,000 seeds
from N on; a seed that fails is in the message.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any

import pytest

from tests.support.pump import Pump, Source, killed_after
from tiercel import BasicBolt, Bolt, Topology, TopologyBuilder
from tiercel.acker.inbox.contract import Bounds
from tiercel.acker.inbox.redis import RedisInboxes
from tiercel.acker.layout import LedgerSpec
from tiercel.acker.redis.scripts import RedisServers
from tiercel.acker.redis_ledger import RedisLedger
from tiercel.spark_jobs.errors import ForeignTupleError

pytestmark = pytest.mark.timeout(3600)

# A process dies after this many effects at most, which is all that a step has.
EFFECTS = 8


class World:
    """State outside the topology: randomness, the tuples that threads have, the truth."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        # (task, tuple, collector) of each.
        self.with_threads: list[tuple[int, Any, Any]] = []
        # Names of messages in tuples that the last bolt stored or refused, or that a bolt filtered
        # out, in steps that were sealed.
        self.stored: set[str] = set()
        self.refused: set[str] = set()
        self.filtered: set[str] = set()
        # The same names of the current step. A process that dies before the seal has done nothing:
        # in a row of bolts, the step may then emit other tuples, which the last bolt executes.
        self._unsealed: list[tuple[set[str], list[str]]] = []
        # If True, bolts let go of the tuples that they hold.
        self.is_ending = False

    def text(self, names: str) -> str:
        """Return a tuple's text; the last bolt refuses one in eight."""
        return ("bad:" if self.chance.random() < 0.12 else "") + names

    def note(self, to: set[str], names: list[str]) -> None:
        """Add names to one of the sets once the current step is sealed."""
        self._unsealed.append((to, names))

    def sealed(self) -> None:
        """Note that the current step is sealed."""
        for to, names in self._unsealed:
            to.update(names)
        self.forget()

    def forget(self) -> None:
        """Forget the names of a step that has no effect."""
        self._unsealed = []

    def answer_one(self) -> None:
        """Let a thread answer a random tuple."""
        if not self.with_threads:
            return
        _, tup, collector = self.with_threads.pop(self.chance.randrange(len(self.with_threads)))
        thread = threading.Thread(target=self._answer, args=(tup, collector))
        thread.start()
        thread.join()

    def _answer(self, tup: Any, collector: Any) -> None:
        try:
            if self.chance.random() < 0.1:
                collector.fail(tup, "no")
                return
            for _ in range(self.chance.randint(1, 2)):
                collector.emit([self.text(names_in(tup["text"]))], tup)
            collector.ack(tup)
        except ForeignTupleError:
            # The tuple's task was restarted in this process, and fails the message itself.
            pass


def names_in(text: str) -> str:
    return text.removeprefix("bad:")


WORLD: dict[str, World] = {}


class Worldly:
    """Knows its world by name, so that every copy of the bolt has the same world."""

    output_fields = "text string"
    world_name: str

    @property
    def world(self) -> World:
        return WORLD[self.world_name]


class Pass(Worldly, BasicBolt):
    """Does the same at each attempt."""

    def execute(self, tup, collector):
        collector.emit([tup["text"]])


class ByChance(Worldly, BasicBolt):
    """Emits none, one or two tuples, or raises, at random: a repeat does other work."""

    def execute(self, tup, collector):
        number = self.world.chance.choice([0, 1, 1, 1, 2])
        if self.world.chance.random() < 0.05:
            raise ValueError("by chance")
        for _ in range(number):
            collector.emit([self.world.text(names_in(tup["text"]))])
        if not number:
            self.world.note(self.world.filtered, names_in(tup["text"]).split("+"))


class FlushesByChance(Worldly, Bolt):
    """Raises in flush at random: the step fails, and its held tuples are held again."""

    def flush(self, collector):
        if self.world.chance.random() < 0.05:
            raise ConnectionError("by chance")


class InThreads(FlushesByChance):
    """Hands its tuples to threads, which answer at any time, some during other tuples."""

    def prepare(self, config, context):
        self.task = context.task_id

    def execute(self, tup, collector):
        self.world.with_threads.append((self.task, tup, collector))
        if self.world.chance.random() < 0.3:
            self.world.answer_one()


class Window(FlushesByChance):
    """Holds tuples, emits at random the names of all of them, and acks the oldest."""

    def prepare(self, config, context):
        self.held = []

    def execute(self, tup, collector):
        self.held.append(tup)
        chance = self.world.chance
        if self.world.is_ending or chance.random() < 0.5:
            names = "+".join(names_in(one["text"]) for one in self.held)
            collector.emit([self.world.text(names)], anchors=self.held)
            least = 0 if self.world.is_ending else chance.randint(0, len(self.held))
            while len(self.held) > least:
                collector.ack(self.held.pop(0))


class Store(Worldly, BasicBolt):
    """Refuses bad tuples, and stores the others."""

    def execute(self, tup, collector):
        names = names_in(tup["text"]).split("+")
        if tup["text"].startswith("bad:"):
            self.world.note(self.world.refused, names)
            raise ValueError("refused")
        self.world.note(self.world.stored, names)


KINDS = (Pass, ByChance, InThreads, Window)


def topology_of(world_name: str) -> Topology:
    """Build one to three bolts in a row, some with a second one beside them, then the store."""
    chance = WORLD[world_name].chance
    builder = TopologyBuilder("random-trees")
    builder.set_spout("spout", Source("text string"))
    before = ["spout"]
    for layer in range(chance.randint(1, 3)):
        names = [f"bolt{layer}{side}" for side in range(chance.choice([1, 1, 2]))]
        for name in names:
            bolt = chance.choice(KINDS)()
            bolt.world_name = world_name
            added = builder.set_bolt(name, bolt, parallelism=chance.choice([1, 2]))
            for source in before:
                added.fields_grouping(source, "text")
        before = names
    store = Store()
    store.world_name = world_name
    last = builder.set_bolt("store", store)
    for source in before:
        last.shuffle_grouping(source)
    return builder.build()


def walk(world: World, pump: Pump, seed: int) -> None:
    """Feed messages one by one amid answers and deaths, then let everything end."""
    chance = world.chance
    messages: dict[int, str] = {}
    tasks = list(pump.tasks)
    for number in range(chance.randint(3, 14)):
        [root] = pump.feed([str(number)])
        messages[root] = str(number)
        pump.send()
        for _ in range(chance.randint(0, 2)):
            world.answer_one()
        if chance.random() < 0.4:
            killed = tasks[0]
            with killed_after(chance.randint(0, EFFECTS), world.sealed):
                for killed in tasks:
                    pump.work(killed)
            with_it = chance.sample(tasks, chance.randint(0, len(tasks)))
            die(world, pump, sorted({killed, *with_it}))
        if chance.random() < 0.7:
            pump.work()
        check(world, pump, messages, seed)
    world.is_ending = True
    # Feed each task until no bolt holds any tuple.
    for number in range(200):
        pump.run()
        while world.with_threads:
            world.answer_one()
            pump.run()
        if len(pump.acked) + len(pump.failed) == len(messages):
            break
        [root] = pump.feed([f"end{number}"])
        messages[root] = f"end{number}"
    check(world, pump, messages, seed)
    left = [name for root, name in messages.items() if root not in {*pump.acked, *pump.failed}]
    assert not [name for name in left if not name.startswith("end")], f"seed {seed}: stuck: {left}"


def die(world: World, pump: Pump, dead: list[int]) -> None:
    """Start these tasks again; their threads end too, or live on beside a closed copy."""
    for task in dead:
        if world.chance.random() < 0.5:
            world.with_threads = [one for one in world.with_threads if one[0] != task]
        else:
            pump.attempts[task].close()
    pump.take_over(*dead)
    # A step that was not sealed has no effect. One that was sealed has been repeated: the same work
    # is noted already, and other work has no effect.
    world.forget()


def check(world: World, pump: Pump, messages: dict[int, str], seed: int) -> None:
    world.sealed()
    pump.read()
    for root in pump.acked:
        name = messages[root]
        assert name not in world.refused, f"seed {seed}: {name} was acked, and refused"
        assert name in world.stored | world.filtered, f"seed {seed}: {name} was acked, not stored"


@contextmanager
def world_of(seed: int) -> Iterator[tuple[World, str]]:
    name = uuid.uuid4().hex
    WORLD[name] = World(seed)
    try:
        yield WORLD[name], name
    finally:
        del WORLD[name]


def seeds_of(pytestconfig: pytest.Config, share: int = 1) -> Iterator[int]:
    first = pytestconfig.getoption("soak_seed") or 0
    yield from range(first, first + pytestconfig.getoption("random_trees") // share)


def test_soak_of_random_trees_acks_nothing_that_was_not_processed(pytestconfig):
    for seed in seeds_of(pytestconfig):
        with world_of(seed) as (world, name):
            walk(world, Pump(topology_of(name)), seed)


def test_soak_of_random_trees_on_two_servers(pytestconfig, redis_url):
    """Inboxes and ledger are in two databases, which count as two servers."""
    urls = (redis_url, f"{redis_url.rpartition('/')[0]}/1")
    for seed in seeds_of(pytestconfig, share=10):
        with world_of(seed) as (world, name):
            topology = topology_of(name)
            spec = LedgerSpec(
                topology=f"random-{name}",
                urls=urls,
                shards=2,
                owners=topology.spout_tasks,
                message_timeout=timedelta(seconds=30),
            )
            bounds = Bounds(tuples=1 << 30, bytes=1 << 30)
            inboxes = RedisInboxes(RedisServers(urls), f"random-{name}", bounds)
            with closing(inboxes), closing(RedisLedger(spec)) as ledger:
                walk(world, Pump(topology, inboxes=inboxes, ledger=ledger), seed)
