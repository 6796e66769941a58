"""A task caches its own entries from step to step, and never an entry that another task changed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.states import begin, commit_turn
from tiercel import KeyValueState
from tiercel.acker.ids import hash_values
from tiercel.acker.redis.clients import connect
from tiercel.spark_jobs.errors import StaleTurnError
from tiercel.spark_jobs.state import key_value, redis_shard
from tiercel.spark_jobs.state.encoding import decode_key, decode_value, encode_key
from tiercel.spark_jobs.state.key_value import StateCache
from tiercel.spark_jobs.state.memory import MemoryStateStore
from tiercel.spark_jobs.state.redis_shard import StateKeys
from tiercel.spark_jobs.state.redis_store import RedisStateStore
from tiercel.spark_jobs.state.store import StateStore, Writes

TASKS = 2
WORDS = [f"word {number}" for number in range(20)]
MINE = [[word for word in WORDS if hash_values((word,)) % TASKS == task] for task in range(TASKS)]
OWN, OTHERS = MINE[0][0], MINE[1][0]


class Task:
    """The steps of one attempt at one task, with its cache."""

    def __init__(self, store: StateStore, index: int) -> None:
        self.store = store
        self.index = index
        self.cache = StateCache(index, TASKS)
        self.asked: list[bytes] = []

    def open(self, step: int, *keys: str) -> KeyValueState:
        state = KeyValueState(self.cache)
        self.asked = state.unread(keys)
        state.open(self.store.begin("count", self.index, step, self.asked).perform(), keys)
        return state

    def commit(self, state: KeyValueState, digest: str = "d", calls: int | None = None) -> bool:
        """Make these calls of the commit, or all; return True if it is complete."""
        effects = state.writing(digest)[:calls]
        for effect in effects:
            assert effect.perform()
        if calls is None:
            state.written()
        return calls is None

    def add(self, step: int, key: str, by: int = 1) -> int:
        state = self.open(step, key)
        total = state.increment(key, by)
        self.commit(state)
        return total


def now(store: StateStore) -> dict:
    return {decode_key(field): decode_value(raw) for field, raw in store.entries("count")}


@pytest.fixture
def pair(store) -> list[Task]:
    return [Task(store, index) for index in range(TASKS)]


def test_an_entry_is_read_once(pair):
    one = pair[0]
    assert [one.add(step, OWN) for step in range(1, 4)] == [1, 2, 3]
    assert one.asked == []
    state = one.open(4, OWN)
    state.put("new", [1])
    state.delete(OWN)
    one.commit(state)
    state = one.open(5, OWN)
    assert one.asked == []
    assert state.get(OWN, "gone") == "gone"
    assert state.get("new") == [1]
    assert state.increment(OWN, 7) == 7
    one.commit(state)
    assert now(one.store) == {OWN: 7, "new": [1]}


def test_an_entry_of_another_task_is_read_in_each_step(pair):
    one, two = pair
    one.add(1, OTHERS)
    assert two.add(1, OTHERS) == 2
    assert one.add(2, OTHERS) == 3
    assert one.asked == [encode_key(OTHERS)]
    assert two.add(2, OTHERS) == 4


def test_two_tasks_that_write_one_key_lose_nothing_and_see_each_other(pair):
    one, two = pair
    for step in range(1, 20):
        assert one.add(step, OWN) == 2 * step - 1
        assert two.add(step, OWN) == 2 * step
    assert now(one.store) == {OWN: 38}


def test_two_tasks_that_write_one_key_in_one_step_both_count(pair):
    one, two = pair
    one.add(1, OWN)
    first, second = one.open(2, OWN), two.open(1, OWN)
    assert first.increment(OWN) == second.increment(OWN) == 2
    two.commit(second)
    one.commit(first)
    assert one.add(3, OWN) == 4


def test_a_write_that_does_not_say_whose_entries_it_has_is_seen_by_all(pair):
    one, two = pair
    one.add(1, OWN)
    two.add(1, OTHERS)
    outside = Writes(puts={encode_key(OWN): b"10", encode_key(OTHERS): b"20"})
    commit_turn(begin(one.store, "count", 7, 1), outside, "d")
    assert (one.add(2, OWN), two.add(2, OTHERS)) == (11, 21)


def test_a_task_that_others_disturb_in_each_step_pauses_and_goes_on_when_they_stop(pair):
    one, two = pair
    kept = 0
    for step in range(1, 40):
        one.add(step, OWN)
        kept += bool(one.cache.values)
        two.add(step, OWN)
    assert kept < 10
    for step in range(40, 120):
        one.add(step, OWN)
    assert one.asked == []
    assert now(one.store) == {OWN: 39 + 119}


def test_another_attempt_at_the_task_is_noticed(pair):
    one = pair[0]
    one.add(1, OWN)
    Task(one.store, 0).add(2, OWN, 5)
    assert one.add(3, OWN) == 7


def test_a_step_that_was_not_written_or_only_begun_is_not_known(pair):
    one = pair[0]
    one.add(1, OWN)
    one.open(2, OWN).increment(OWN, 100)
    assert one.add(3, OWN) == 2
    state = one.open(4, OWN)
    state.increment(OWN, 100)
    state.writing("never made")
    assert one.add(5, OWN) == 3


def test_a_repeat_of_a_committed_step_reads_what_was_before_and_keeps_none_of_it(pair):
    one = pair[0]
    one.add(1, OWN)
    one.add(2, OWN, 5)
    again = Task(one.store, 0)
    assert again.add(2, OWN, 5) == 6
    assert again.add(3, OWN) == 7


def test_what_another_task_has_undone_is_read_again(pair, monkeypatch):
    monkeypatch.setattr(redis_shard, "SLICE", 1)
    one, two = pair
    one.add(1, OWN)
    state = two.open(1)
    for key in (OWN, OTHERS, *MINE[1]):
        state.increment(key, 10)
    two.commit(state, calls=1)
    for step in range(2, 5):
        assert one.add(step, OWN) == now(one.store)[OWN]
    assert one.asked == [], "it knows the value with the incomplete write"
    Task(two.store, 1).open(1)
    undone = now(one.store)[OWN]
    assert one.add(5, OWN) == undone + 1


def test_a_run_after_this_one_knows_nothing_of_it_and_ends_it(run):
    earlier, later = Task(run(1), 0), Task(run(2), 0)
    earlier.add(1, OWN)
    assert later.add(1, OWN) == 2
    with pytest.raises(StaleTurnError):
        earlier.add(2, OWN)


def test_a_server_that_lost_its_last_second_is_read_again(make_spec):
    """The server has the turn, but not the commit."""
    spec = make_spec()
    store = RedisStateStore(spec, 1)
    one = Task(store, 0)
    assert [one.add(step, OWN) for step in (1, 2)] == [1, 2]
    entries, _, turn, undo = StateKeys(spec.topology, 0, "count").of(0)
    with connect(spec.urls[0]) as client:
        client.hset(entries, encode_key(OWN), 1)
        client.hset(turn, mapping={"calls": 0, "committed": "1 1"})
        client.delete(undo)
    assert one.add(3, OWN) == 2
    store.close()


def test_what_is_known_is_bounded(pair, monkeypatch):
    monkeypatch.setattr(key_value, "CACHE_BYTES", 20_000)
    one = pair[0]
    largest = 0
    for step in range(1, 60):
        keys = [f"step {step} key {number}" for number in range(10)]
        state = one.open(step, *keys)
        for key in keys:
            state.put(key, "x" * 50)
        one.commit(state)
        largest = max(largest, len(one.cache.values))
    assert 10 < largest < 100
    assert one.cache.values.keys() <= {encode_key(key) for key in now(one.store)}


def test_a_value_that_grows_and_shrinks_is_counted_once(pair):
    one = pair[0]
    for step in range(1, 200):
        state = one.open(step, OWN)
        state.put(OWN, "x" * 1000 if step % 2 else 5)
        state.increment(OTHERS)
        one.commit(state)
    assert one.cache._size < 2_000


# -- two tasks, any order, deaths between any two calls ------------------------------------------


class Fate:
    """Two tasks write each other's keys in random order. Some die on the way, or go on without
    knowing that they were replaced.
    """

    def __init__(self, random: Random, open_store: Callable[[], StateStore]) -> None:
        self.random = random
        self.open_store = open_store
        self.tasks = [Task(open_store(), index) for index in range(TASKS)]
        self.steps = [1] * TASKS
        self.expected = dict.fromkeys(WORDS, 0)

    def run(self, turns: int) -> None:
        for _ in range(turns):
            self.step(self.random.randrange(TASKS))
        store = self.tasks[0].store
        for index in range(TASKS):
            self.open_store().begin("count", index, self.steps[index]).perform()
        assert {key: value for key, value in now(store).items() if value} == {
            key: value for key, value in self.expected.items() if value
        }

    def step(self, index: int) -> None:
        random, task = self.random, self.tasks[index]
        if random.random() < 0.1:
            other = Task(self.open_store(), index)
            other.open(self.steps[index], *random.sample(WORDS, 3))  # and dies
        keys = random.sample(WORDS, 4)
        state = task.open(self.steps[index], *keys[:2])
        for key in keys:
            self.check(state, key)
        work = {key: random.choice([1, 2, -1, 2**51]) for key in keys if random.random() < 0.7}
        for key, by in work.items():
            assert state.increment(key, by) == self.expected[key] + by
        effects = state.writing("d")
        if effects and random.random() < 0.2:
            # The task dies in its commit; its successor undoes it, before or after the other task's
            # step.
            for effect in effects[: random.randrange(len(effects))]:
                assert effect.perform()
            self.tasks[index] = Task(self.open_store(), index)
            self.tasks[index].open(self.steps[index])
            return
        for effect in effects:
            assert effect.perform()
        state.written()
        for key, by in work.items():
            self.expected[key] += by
        self.steps[index] += 1
        if random.random() < 0.1:
            with suppress(StaleTurnError):
                # A successor repeats the step: it reads the earlier values, and writes nothing.
                self.tasks[index] = again = Task(self.open_store(), index)
                repeated = again.open(self.steps[index] - 1, *keys)
                for key in keys:
                    found = repeated.get(key, 0)
                    assert found == self.expected[key] - work.get(key, 0)
                again.commit(repeated)

    def check(self, state: KeyValueState, key: str) -> None:
        assert (state.get(key) or 0) == self.expected[key]


UNHURRIED = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture
def _never_pauses(monkeypatch):
    """Use the cache in every step."""
    monkeypatch.setattr(key_value, "_LONGEST_PAUSE", 0)


@pytest.mark.usefixtures("_never_pauses")
@settings(UNHURRIED, max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_in_memory_no_task_reads_an_old_value(seed):
    first = MemoryStateStore()
    Fate(Random(seed), lambda: MemoryStateStore(beneath=first)).run(30)


@pytest.mark.usefixtures("_never_pauses")
@pytest.mark.parametrize("shards", [1, 3])
@settings(UNHURRIED, max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_in_redis_no_task_reads_an_old_value_also_where_commits_break_off(
    make_spec, monkeypatch, shards, seed
):
    monkeypatch.setattr(redis_shard, "SLICE", 2)
    spec = make_spec(shards=shards)
    opened = []

    def open_store():
        opened.append(RedisStateStore(spec, 1))
        return opened[-1]

    Fate(Random(seed), open_store).run(30)
    for store in opened:
        store.close()
