"""The memory of applied tuples, on every backend: marks are written, undone and read with the
state.
"""

from __future__ import annotations

import re
import secrets
import struct
import threading
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.marks import key_of, marks_of
from tests.support.states import begin, break_off, commit_turn
from tiercel.acker.ids import Said
from tiercel.acker.ledger import Applied
from tiercel.acker.redis.clients import connect
from tiercel.spark_jobs.errors import StaleTurnError, StateLayoutError, TurnAgainError
from tiercel.spark_jobs.running.once import pack_emissions
from tiercel.spark_jobs.state import redis_shard, redis_store
from tiercel.spark_jobs.state.memory import MemoryStateStore
from tiercel.spark_jobs.state.redis_shard import StateKeys
from tiercel.spark_jobs.state.redis_store import RedisStateStore, check_layout
from tiercel.spark_jobs.state.store import Writes

DAY = 86_400
TASKS = 3
NAMES = [f"tuple-{n}" for n in range(40)]
DOCS = Path(__file__).parents[4] / "docs"


def applying(*names, **entries):
    increments = {b'"%s"' % name.encode(): amount for name, amount in entries.items()}
    return Writes(increments=increments, marks=marks_of(*names))


def recalled(store, *names, task=0, step=99):
    found = begin(store, "count", task, step).recall([key_of(name) for name in names], TASKS)
    return {name: found[key_of(name)] for name in names if key_of(name) in found}


def now(store):
    return {field.decode().strip('"'): int(value) for field, value in store.entries("count")}


@pytest.fixture
def small_slices(monkeypatch):
    monkeypatch.setattr(redis_shard, "SLICE", 3)
    monkeypatch.setattr(redis_shard, "MARKS_AT_ONCE", 3)
    monkeypatch.setattr(redis_store, "_PATIENCE_S", 0.05)


def test_what_was_applied_is_recalled_by_every_task_with_its_record(store):
    turn = begin(store, "count", 0, 1)
    assert turn.recall([key_of("a")], TASKS) == {}
    assert commit_turn(turn, applying(*NAMES, n=3), "d") is Applied.FRESH
    for task in range(TASKS):
        found = recalled(store, "other", *NAMES, task=task)
        assert found == {name: bytes(16) + name.encode() for name in NAMES}
    assert now(store) == {"n": 3}


def test_marks_alone_are_a_commit(store):
    assert commit_turn(begin(store, "count", 1, 1), applying("a"), "d") is Applied.FRESH
    assert begin(store, "count", 1, 1).committed_digest == "d"
    assert list(recalled(store, "a")) == ["a"]


def test_a_tuple_that_another_task_has_applied_is_refused_and_nothing_stays(store, small_slices):
    mine = begin(store, "count", 0, 1)
    other = begin(store, "count", 1, 1)
    assert mine.recall([key_of("a")], TASKS) == other.recall([key_of("a")], TASKS) == {}
    commit_turn(other, applying("a", n=1), "d")
    with pytest.raises(TurnAgainError):
        commit_turn(mine, applying("b", "c", "d", "e", "a", n=1, m=1), "d")
    again = begin(store, "count", 0, 1)
    assert again.committed_digest is None
    assert now(store) == {"n": 1}
    found = again.recall([key_of(name) for name in "abcde"], TASKS)
    assert list(found) == [key_of("a")]
    assert commit_turn(again, applying("b", "c", "d", "e", m=1), "d") is Applied.FRESH
    assert now(store) == {"n": 1, "m": 1}


def test_a_repeated_step_recalls_what_was_before_it(store, small_slices):
    commit_turn(begin(store, "count", 0, 1), applying("early"), "d")
    commit_turn(begin(store, "count", 0, 2), applying(*NAMES, n=1), "d")
    again = begin(store, "count", 0, 2)
    assert again.committed_digest == "d"
    found = again.recall([key_of(name) for name in ("early", *NAMES)], TASKS)
    assert list(found) == [key_of("early")]
    assert commit_turn(again, applying(*NAMES, n=1), "d") is Applied.REPEATED
    assert now(store) == {"n": 1}
    assert len(recalled(store, *NAMES, step=3)) == len(NAMES)


@pytest.mark.parametrize("calls", range(12))
def test_marks_of_a_commit_that_broke_off_are_taken_back_with_its_entries(
    store, small_slices, calls
):
    commit_turn(begin(store, "count", 0, 1), applying("early", n=1), "d")
    doomed = begin(store, "count", 0, 2)
    writes = applying(*NAMES[:10], a=1, b=1, c=1, n=1)
    whole = len(doomed.writing(writes, "d"))
    break_off(doomed, writes, calls)
    again = begin(store, "count", 0, 2)
    if calls >= whole:
        assert again.committed_digest is not None
        return
    assert again.committed_digest is None
    assert now(store) == {"n": 1}
    keys = [key_of(name) for name in ("early", *NAMES[:10])]
    assert list(again.recall(keys, TASKS)) == keys[:1]
    assert commit_turn(again, writes, "d") is Applied.FRESH
    assert now(store) == {"n": 2, "a": 1, "b": 1, "c": 1}
    assert len(recalled(store, *NAMES[:10], step=3)) == 10


@pytest.mark.parametrize("calls", range(1, 12))
def test_a_mark_that_may_be_taken_back_is_not_trusted_by_another_task(store, small_slices, calls):
    """Otherwise it could ack a message whose effect is undone when the run ends."""
    doomed = begin(store, "count", 0, 1)
    writes = applying(*NAMES[:10], a=1, b=1, c=1, d=1)
    whole = len(doomed.writing(writes, "d"))
    break_off(doomed, writes, calls)
    turn = begin(store, "count", 1, 1)
    keys = [key_of(name) for name in NAMES[:10]]
    if calls >= whole:
        assert turn.recall(keys, TASKS).keys() == set(keys)
        return
    with pytest.raises(TurnAgainError):
        turn.recall(keys, TASKS)
    assert turn.recall([key_of("another")], TASKS) == {}


def test_a_mark_that_becomes_final_meanwhile_is_waited_for(store, small_slices, monkeypatch):
    monkeypatch.setattr(redis_store, "_PATIENCE_S", 10.0)
    slow = begin(store, "count", 0, 1)
    # The last call, to the home shard, writes entries; all marks are written before it.
    effects = slow.writing(applying(*NAMES[:10], **dict.fromkeys("abcdefghij", 1)), "d")
    for effect in effects[:-1]:
        effect.perform()
    turn = begin(store, "count", 1, 1)
    rest = threading.Timer(0.1, lambda: [effect.perform() for effect in effects[-1:]])
    rest.start()
    found = turn.recall([key_of(name) for name in NAMES[:10]], TASKS)
    rest.join()
    if len(effects) > 1:
        assert len(found) == 10


def test_what_an_older_run_left_half_done_is_taken_back(run, small_slices):
    first = run(1)
    doomed = begin(first, "count", 2, 5)
    writes = applying(*NAMES[:10], a=1, b=1, c=1, d=1)
    whole = len(doomed.writing(writes, "d"))
    break_off(doomed, writes, whole - 1)
    second = run(2)
    second.begin_run("count")
    assert now(second) == {}
    assert recalled(second, *NAMES[:10], task=1) == {}
    with pytest.raises(StaleTurnError):
        break_off(doomed, writes, whole)
    assert commit_turn(begin(second, "count", 0, 1), writes, "d") is Applied.FRESH
    third = run(3)
    third.begin_run("count")
    assert len(recalled(third, *NAMES[:10], task=1)) == 10


def test_calls_that_come_twice_count_once(store, small_slices):
    turn = begin(store, "count", 0, 1)
    for effect in turn.writing(applying(*NAMES[:10], n=1), "d"):
        assert effect.perform()
        assert effect.perform()
    assert now(store) == {"n": 1}
    assert len(recalled(store, *NAMES[:10])) == 10


def test_marks_bind_the_number_of_shards(redis_url, make_spec):
    spec = make_spec(shards=1)
    with_one = RedisStateStore(spec, 1)
    commit_turn(begin(with_one, "count", 0, 1), applying("a"), "d")
    with_one.close()
    changed = make_spec(topology=spec.topology, shards=2)
    with pytest.raises(StateLayoutError, match="set ackers=1 again"):
        check_layout(changed, ["count"])
    with_two = RedisStateStore(changed, 2)
    with pytest.raises(StateLayoutError):
        begin(with_two, "count", 0, 1)
    with_two.close()


def delete_as(page, redis_url, names):
    """Delete the keys that the commands of a page delete, with these names in place of its own."""
    commands = re.findall(r"    redis-cli (--scan --pattern|hdel) '(.*?)'(.*)", page.read_text())
    with connect(redis_url) as client:
        for kind, pattern, fields in commands:
            for theirs, ours in names.items():
                pattern = pattern.replace(theirs, ours)  # noqa: PLW2901
            if kind == "hdel":
                client.hdel(pattern, *fields.split())
            elif keys := list(client.scan_iter(pattern)):
                client.unlink(*keys)


def test_nothing_is_left_of_a_state_that_is_deleted_as_documented(make_spec, redis_url):
    spec = make_spec()
    store = RedisStateStore(spec, 1)
    commit_turn(begin(store, "count", 0, 1), applying("a", x=1), "d")
    begin(store, "counts", 0, 1)
    delete_as(DOCS / "state.md", redis_url, {"word-count": spec.topology})
    with connect(redis_url) as client:
        left = list(client.scan_iter(f"*{spec.topology}*"))
    assert len(left) == 2, "of another bolt"
    check_layout(replace(spec, shards=2), ["count"])
    store.close()


def test_remembered_keys_that_are_deleted_as_documented_are_not_counted(make_spec, redis_url):
    store = RedisStateStore(spec := make_spec(), 1)
    commit_turn(begin(store, "count", 0, 1), applying("a", "b", x=1), "d")
    delete_as(DOCS / "exactly-once.md", redis_url, {"orders": spec.topology, "book": "count"})
    assert not marks_in(store)
    assert recalled(store, "a", "b", step=2) == {}
    commit_turn(begin(store, "count", 0, 3), applying("b", x=1), "d")
    assert marks_in(store) == 1
    assert now(store) == {"x": 2}
    store.close()


def marks_in(store):
    return store.marks(["count"]).get("count", 0)


def test_marks_are_counted_as_they_come_and_are_taken_back(store, small_slices):
    assert store.marks(["count", "other"]).get("other", 0) == 0
    commit_turn(begin(store, "count", 0, 1), applying(*NAMES[:20], n=1), "d")
    assert marks_in(store) == 20
    doomed = begin(store, "count", 0, 2)
    writes = applying(*NAMES[20:], **dict.fromkeys("abcdefghij", 1))
    break_off(doomed, writes, len(doomed.writing(writes, "d")) - 1)
    begin(store, "count", 0, 2)
    assert marks_in(store) == 20


class Clock:
    """The clock of the marks of a store in Redis, with few buckets."""

    def __init__(self, spec) -> None:
        self.spec = spec
        self.store = RedisStateStore(spec, 1)
        self.shard = self.store._shards_of("count", 0)[0]

    def moved(self, field, seconds):
        run = self.shard.marks._keys.run
        self.shard._server.command(
            "HINCRBY", run, field, seconds, read=int, verb="move the clock"
        ).perform()

    def idle(self, seconds, retention_s=DAY):
        """Pass this time without tuples, while the driver is there."""
        for _ in range(seconds // 5):
            self.moved("ran_at", -5)
            self.store.age("count", retention_s)


@pytest.fixture
def aging(make_spec, monkeypatch):
    monkeypatch.setattr(redis_shard, "BUCKETS", 16)
    made = Clock(make_spec())
    yield made
    made.store.close()


def test_old_marks_are_forgotten_and_none_before_its_time(aging):
    store = aging.store
    commit_turn(begin(store, "count", 0, 1), applying(*NAMES[:20]), "d")
    aging.moved("ran", DAY - 400)
    aging.idle(300)
    commit_turn(begin(store, "count", 0, 2), applying("a"), "d")
    assert len(recalled(store, *NAMES[:20], step=3)) == 20
    aging.moved("ran", 300)
    aging.idle(3600)
    assert recalled(store, *NAMES[:20], step=4) == {}
    assert list(recalled(store, "a", step=5)) == ["a"]
    assert marks_in(store) == 1


def test_a_burst_per_night_is_remembered_for_its_retention_and_not_for_months(aging):
    retention_s = 600
    for night in range(8):
        names = [f"{night}-{number}" for number in range(200)]
        commit_turn(begin(aging.store, "count", 0, night + 1), applying(*names), "d")
        aging.idle(900, retention_s)
        assert marks_in(aging.store) <= 200


def test_a_topology_that_stands_for_weeks_forgets_nothing(aging):
    store = aging.store
    for week in range(1, 30):
        commit_turn(begin(store, "count", 0, week), applying(f"{week}"), "d")
        store.age("count", DAY)
        aging.moved("ran_at", -7 * DAY)
    assert marks_in(store) == 29


def test_the_clock_goes_on_when_its_units_come_round(aging):
    store = aging.store
    commit_turn(begin(store, "count", 0, 1), applying("long ago"), "d")
    aging.moved("ran", 64 * (1 << 23) - 3 * DAY)
    commit_turn(begin(store, "count", 0, 2), applying("before"), "d")
    aging.moved("ran", 3 * DAY)
    commit_turn(begin(store, "count", 0, 3), applying("after"), "d")
    aging.idle(3600, 7 * DAY)
    assert list(recalled(store, "before", "after", step=4)) == ["before", "after"]


def test_marks_of_a_version_before_are_read_counted_and_forgotten(aging):
    keys = aging.shard.marks._keys
    old = {key_of(f"old-{number}"): struct.pack("<I", number) for number in range(1, 30)}
    for key, digest in old.items():
        bucket = keys.buckets([key[15] % 4])[0]
        mark = struct.pack(">I", 1000)[1:] + digest + b"emitted"
        aging.shard._server.command(
            "HSET", bucket, key[:11], mark, read=int, verb="write as it was"
        ).perform()
    aging.shard._server.command(
        "HSET", keys.run, "run_number", 1, "shards", 1, "tasks", 1, "ran", 16_100, "ran_at", 1,
        read=int, verb="write as it was",
    ).perform()  # fmt: skip
    later = RedisStateStore(aging.spec, 2)
    later.begin_run("count")
    assert marks_in(later) == len(old)
    found = begin(later, "count", 0, 1).recall(list(old), TASKS)
    assert found == {key: digest + bytes(12) + b"emitted" for key, digest in old.items()}
    for key, record in found.items():
        short = int.from_bytes(old[key], "little")
        then = int.from_bytes(record[:16], "little")
        assert not Said(content=1 << 100, short=short).contradicts(then)
        assert Said(content=1 << 100, short=short + 1).contradicts(then)
    aging.moved("ran", DAY)
    commit_turn(begin(later, "count", 0, 2), applying("new"), "d")
    aging.idle(3600)
    assert marks_in(later) == 1
    later.close()


@pytest.fixture
def version_before(monkeypatch, redis_url):
    """Return a function that does something as a version with fewer buckets."""

    def do(spec, action):
        with monkeypatch.context() as patched, connect(redis_url) as client:
            patched.setattr(redis_shard, "BUCKETS", 1 << 13)
            patched.setattr(redis_shard, "PARTS", 1)
            done = action()
            for shard in range(spec.shards):
                client.hdel(StateKeys(spec.topology, shard, "count").run, "layout")
        return done

    return do


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("split", [0, 100], ids=["whole", "died while it split them"])
def test_a_version_with_fewer_buckets_is_taken_over(
    make_spec, small_slices, version_before, shards, split
):
    spec = make_spec(shards=shards)
    first = RedisStateStore(spec, 1)
    others = [f"other-{number}" for number in range(200)]
    commit_turn(begin(first, "count", 0, 1), applying("warm"), "d")
    version_before(
        spec, lambda: commit_turn(begin(first, "count", 0, 2), applying(*others, n=1), "d")
    )
    doomed = begin(first, "count", 1, 1)
    writes = applying(*NAMES, **dict.fromkeys("abcdefgh", 1))
    effects = version_before(spec, lambda: list(doomed.writing(writes, "d")))
    version_before(spec, lambda: [effect.perform() for effect in effects[:-1]])

    second = RedisStateStore(spec, 2)
    for shard in second._shards_of("count", 0):
        for effect in shard.marks.split(2)[:split]:
            effect.perform()
    second.begin_run("count")
    assert len(recalled(second, *others, task=2)) == len(others)
    assert recalled(second, *NAMES, task=2) == {}
    assert now(second) == {"n": 1}
    with pytest.raises(StaleTurnError):
        effects[-1].perform()
    with pytest.raises(StaleTurnError):
        second._shards_of("count", 0)[0].marks.split(1)[0].perform()
    assert commit_turn(begin(second, "count", 0, 1), writes, "d") is Applied.FRESH
    third = RedisStateStore(spec, 3)
    third.begin_run("count")
    assert len(recalled(third, *others, *NAMES, task=1)) == len(others) + len(NAMES)
    assert marks_in(third) == len(others) + len(NAMES) + 1
    for store in (first, second, third):
        store.close()


def test_a_mark_in_a_savepoint_of_an_older_version_goes_to_the_bucket_of_its_key(make_spec):
    store = RedisStateStore(make_spec(), 1)
    marks = store._shards_of("count", 0)[0].marks
    for name in NAMES:
        key = key_of(name)
        old = int.from_bytes(key[14:]) % (1 << 13)
        new = redis_shard.bucket_of(key[:11], old)
        assert redis_shard.bucket_of(key[:11], new) == new
        assert marks._keys.buckets([new]) == marks._buckets([key])
    store.close()


@pytest.mark.parametrize("shards", [1, 2])
def test_many_that_are_known_do_not_hold_up_redis(make_spec, redis_url, shards):
    """For example when everything in flight comes again after a restart."""
    tasks = 16
    store = RedisStateStore(make_spec(shards=shards), 1)
    names = [[f"{task}-{number}" for number in range(2_000)] for task in range(tasks)]
    for task in range(tasks):
        commit_turn(begin(store, "count", task, 1), applying(*names[task]), "d")
    turn = begin(store, "count", 0, 2)
    turn.recall([key_of("unknown")], tasks)

    with connect(redis_url) as client:
        before = client.info("commandstats")["cmdstat_evalsha"]["usec"]
        found = turn.recall([key_of(name) for name in names[1]], tasks)
        took_us = client.info("commandstats")["cmdstat_evalsha"]["usec"] - before
    store.close()
    assert len(found) == 2_000
    assert took_us < 500_000


@pytest.mark.parametrize(
    ("record", "most"),
    [
        pytest.param(pack_emissions([("default", ("falcon", 1_234), None, 0)]), 54, id="emission"),
        pytest.param(bytes(range(5)), 48, id="length of a window in event time"),
        pytest.param(bytes(range(10)), 53, id="length and slide"),
        pytest.param(bytes(range(16)), 59, id="name of a window"),
    ],
)
def test_a_remembered_tuple_takes_fifty_four_bytes(make_spec, redis_url, monkeypatch, record, most):
    """Measured with a word and an emitted number, and with buckets as full as for a million marks.

    16 of the bytes are a digest that tells another message with the same identity apart. A digest
    of four bytes would save twelve, but a second body for it is found in a minute.
    """
    monkeypatch.setattr(redis_shard, "BUCKETS", 128)
    spec = make_spec()
    store = RedisStateStore(spec, 1)
    count = 128 * (1_000_000 >> 15)
    for step, start in enumerate(range(0, count, 1_000), start=1):
        marks = {
            key_of(f"{number}"): secrets.token_bytes(16) + record
            for number in range(start, min(start + 1_000, count))
        }
        commit_turn(begin(store, "count", 0, step), Writes(marks=marks), "d")
    store.close()
    buckets = StateKeys(spec.topology, 0, "count").buckets(range(128))
    with connect(redis_url) as client:
        assert sum(client.hlen(bucket) for bucket in buckets) == count
        assert sum(client.memory_usage(bucket) for bucket in buckets) / count <= most


# -- any number of tasks, deaths anywhere ------------------------------------------------------

UNHURRIED = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


class World:
    """Tasks that receive the same tuples, and apply each tuple that they do not recall.

    A turn begins, recalls and commits; in between, other turns go on, and each may die anywhere.
    """

    def __init__(self, random: Random, open_store) -> None:
        self.random = random
        self.open_store = open_store
        self.run_number = 0
        self.acked: set[str] = set()
        self.offered: set[str] = set()

    def play(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            self.begin_run()
            for _ in range(self.random.randint(1, 6)):
                self.round()
        self.begin_run()
        for name in sorted(self.offered):
            self.whole_step(self.random.randrange(TASKS), [name])
        found = now(self.store)
        assert found == dict.fromkeys(sorted(self.offered), 1)

    def begin_run(self) -> None:
        self.run_number += 1
        self.store = self.open_store(self.run_number)
        self.store.begin_run("count")
        self.steps = [0] * TASKS
        self.sealed: dict[int, list[str]] = {}

    def round(self) -> None:
        """Run several tasks at once, each with some of the same few tuples."""
        tasks = self.random.sample(range(TASKS), self.random.randint(1, TASKS))
        turns = []
        for task in tasks:
            names = self.sealed.get(task) or self.random.sample(
                NAMES[:12], self.random.randint(1, 6)
            )
            self.offered.update(names)
            if task not in self.sealed:
                self.steps[task] += 1
            self.sealed[task] = names
            turns.append((task, self.work(task, names)))
        while turns:
            at = self.random.randrange(len(turns))
            task, going = turns[at]
            if self.random.random() < 0.08:
                turns.pop(at)  # its process dies; the step is repeated later, or the run ends
                continue
            try:
                next(going)
            except StopIteration:
                self.acked.update(self.sealed.pop(task))
                turns.pop(at)
            except TurnAgainError:
                turns.pop(at)

    def whole_step(self, task: int, names: list[str]) -> None:
        self.steps[task] += 1
        for _ in range(50):
            try:
                for _ in self.work(task, names):
                    pass
            except TurnAgainError:
                continue
            return
        raise AssertionError("it never ends")

    def work(self, task: int, names: list[str]):
        turn = begin(self.store, "count", task, self.steps[task])
        yield
        keys = [key_of(name) for name in names]
        found = turn.recall(keys, TASKS)
        yield
        fresh = [name for name in names if key_of(name) not in found]
        digest = " ".join(sorted(fresh))
        if turn.committed_digest is not None:
            return  # whatever this attempt did, the first one's effects stay
        if fresh:
            for effect in turn.writing(applying(*fresh, **dict.fromkeys(fresh, 1)), digest):
                yield
                effect.perform()


@UNHURRIED
@given(seed=st.integers(0, 1 << 32))
def test_in_memory_each_tuple_is_applied_once(seed) -> None:
    first = MemoryStateStore()
    World(Random(seed), lambda number: MemoryStateStore(number, beneath=first)).play()


@pytest.mark.parametrize("shards", [1, 3])
@settings(UNHURRIED, max_examples=40)
@given(seed=st.integers(0, 1 << 32))
def test_in_redis_each_tuple_is_applied_once(make_spec, shards, seed) -> None:
    spec = make_spec(shards=shards)
    made = []

    def open_store(number):
        made.append(RedisStateStore(spec, number))
        return made[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(redis_shard, "SLICE", 2)
        patched.setattr(redis_shard, "MARKS_AT_ONCE", 2)
        patched.setattr(redis_store, "_PATIENCE_S", 0.0)
        World(Random(seed), open_store).play()
    for store in made:
        store.close()
