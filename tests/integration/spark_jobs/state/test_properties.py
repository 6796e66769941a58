"""Random steps and faults: the entries equal a plain dict to which each step was applied once."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.states import begun, verdict
from tiercel import KeyValueState, RedisUnavailableError
from tiercel.acker.ledger import Applied
from tiercel.spark_jobs.errors import StaleTurnError
from tiercel.spark_jobs.state import redis_shard
from tiercel.spark_jobs.state.encoding import decode_key, decode_value
from tiercel.spark_jobs.state.memory import MemoryStateStore
from tiercel.spark_jobs.state.redis_store import RedisStateStore

UNHURRIED = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
TASKS = 2
SHARED = "counted by all"
# More than a Lua number can hold, and so small that no sum overflows 64 bits.
LARGE = 2**54
# Keys of each task: a fields grouping gives no key to two tasks.
KEYS = [["a", 1, b"\xff", ("x", 1), "é"], ["b", 2, b"", ("x", 2), ""]]


class PlainDict(dict[Any, Any]):
    """Model of a ``KeyValueState``."""

    def put(self, key, value):
        self[key] = value

    def delete(self, key):
        self.pop(key, None)

    def increment(self, key, by=1):
        self[key] = self.get(key, 0) + by
        return self[key]

    def iterate(self):
        return iter(list(self.items()))


def handle(random: Random, state: Any, task: int) -> None:
    """Execute one tuple; the effect is the same for the same ``random`` and the same state."""
    for _ in range(random.randint(1, 3)):
        key = random.choice(KEYS[task])
        found = state.get(key)
        match random.randrange(6):
            case 0:
                state.put(
                    key, random.choice([None, True, 1.5, "text", b"\x00", [found], {"was": found}])
                )
            case 1:
                state.delete(key)
            case 2:
                state.put(key, found + 1 if type(found) is int else 0)
            case 3 if found is None or type(found) is int:
                state.delete(key) if found is None else None
                state.increment(key, random.randint(-5, 5))
            case 4:
                state.increment(SHARED, random.choice([1, 2, LARGE]))
                state.increment(SHARED, -LARGE if random.random() < 0.3 else 1)
            case 5:
                state.put(
                    key,
                    sorted(
                        map(repr, dict(pair for pair in state.iterate() if pair[0] in KEYS[task]))
                    ),
                )


def work(seed: int, state: Any, task: int) -> None:
    """Execute the tuples of one task's share of a step; some raise half way, and have no effect."""
    random = Random(seed)
    # A step that writes nothing commits nothing, and another attempt may then do anything.
    state.put(("seed", task), seed)
    for _ in range(random.randint(0, 4)):
        own = Random(random.random())
        raises = random.random() < 0.2
        if isinstance(state, PlainDict):
            if not raises:
                handle(own, state, task)
            continue

        def execute(own=own, raises=raises):
            handle(own, state, task)
            if raises:
                raise RuntimeError

        with suppress(RuntimeError):
            state.guarded(execute)()


@dataclass
class Attempt:
    state: KeyValueState
    seed: int


@dataclass
class World:
    """A topology with one stateful component, and its expected entries."""

    random: Random
    open_store: Any
    expected: PlainDict = field(default_factory=PlainDict)
    zombies: list[Attempt] = field(default_factory=list)
    run_number: int = 0
    flaky: bool = False

    def run(self, steps: int) -> None:
        self.run_number += 1
        self.store = self.open_store(self.run_number)
        for step in range(steps):
            final = {task: self.share(step, task) for task in range(TASKS)}
            for task, seed in final.items():
                work(seed, self.expected, task)
            assert without_nothing(entries(self.store)) == without_nothing(self.expected)

    def share(self, step: int, task: int) -> int:
        """Run all attempts at one share; return the seed of the one that counts."""
        counts: int | None = None
        seed = self.random.getrandbits(32)
        while counts is None or self.random.random() < 0.3:
            # Most attempts do the same work again.
            seed = seed if self.random.random() < 0.7 else self.random.getrandbits(32)
            before = PlainDict(
                {key: value for key, value in self.expected.items() if key in KEYS[task]}
            )
            state = begun(self.store, "bolt", task, step, self.random.sample(KEYS[task], 2))
            assert {key: value for key, value in state.iterate() if key in KEYS[task]} == before
            work(seed, state, task)
            if self.random.random() < 0.3:
                self.zombies.append(Attempt(state, seed))
                continue
            with suppress(RedisUnavailableError):
                applied = self.commit(state, seed)
                counts = seed if counts is None else counts
                assert (applied is Applied.CONFLICTING) == (counts != seed)
                self.disturb()
        self.disturb()
        return counts

    def commit(self, state: KeyValueState, seed: int) -> Applied:
        """Commit, and break off if ``flaky``; a call may be made twice."""
        committed_digest = state.committed_digest
        for effect in state.writing(str(seed)):
            if self.flaky and self.random.random() < 0.15:
                raise RedisUnavailableError("gone")
            for _ in range(2 if self.flaky and self.random.random() < 0.1 else 1):
                assert effect.perform()
        return verdict(committed_digest, str(seed))

    def disturb(self) -> None:
        """Let abandoned attempts end late."""
        for zombie in [one for one in self.zombies if self.random.random() < 0.3]:
            self.zombies.remove(zombie)
            # The attempt is refused, or gets the result of an earlier commit.
            with suppress(StaleTurnError, RedisUnavailableError):
                assert self.commit(zombie.state, zombie.seed) is not Applied.FRESH


def entries(store) -> dict[Any, Any]:
    return {decode_key(field): decode_value(raw) for field, raw in store.entries("bolt")}


def without_nothing(found: dict[Any, Any]) -> dict[Any, Any]:
    """Drop zeros: one remains if a task's first count is undone after another task has counted."""
    return {key: value for key, value in found.items() if key != SHARED or value != 0}


def play(world: World) -> None:
    for _ in range(world.random.randint(1, 3)):
        world.run(world.random.randint(1, 4))


@settings(UNHURRIED, max_examples=100)
@given(seed=st.integers(0, 2**32))
def test_in_memory_each_step_counts_once(seed):
    first = MemoryStateStore()
    play(World(Random(seed), lambda run_number: MemoryStateStore(run_number, beneath=first)))


@pytest.mark.parametrize("shards", [1, 3])
@settings(UNHURRIED, max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_in_redis_each_step_counts_once_also_where_commits_break_off(
    make_spec, monkeypatch, shards, seed
):
    monkeypatch.setattr(redis_shard, "SLICE", 2)
    spec = make_spec(shards=shards)
    opened = []

    def open_store(run_number):
        opened.append(RedisStateStore(spec, run_number))
        return opened[-1]

    play(World(Random(seed), open_store, flaky=True))
    for store in opened:
        store.close()
