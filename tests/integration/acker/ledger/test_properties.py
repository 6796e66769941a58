"""Random topologies and faults: the ledger against an expectation made of sets, and Redis against
memory.

In every generated run, a root is acked only when every tuple of its tree known to the ledger has
been processed, and has at most one outcome. If the bolts are deterministic and everything arrived,
each root has an outcome.
"""

from __future__ import annotations

import itertools
import uuid
from datetime import timedelta
from random import Random

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tiercel.acker.redis_ledger
from tests.support.ledgers import NOW, token, updates
from tests.support.trees import Attempt, Expectation, make_run
from tiercel.acker.effects import perform_all
from tiercel.acker.layout import LedgerSpec
from tiercel.acker.ledger import Applied
from tiercel.acker.memory import MemoryLedger
from tiercel.acker.redis_ledger import RedisLedger, shards_of

UNHURRIED = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
SEEDS = st.integers(0, 2**32)


def spec_of(url: str, shards: int) -> LedgerSpec:
    return LedgerSpec(
        topology=f"property-{uuid.uuid4().hex}",
        urls=(url,),
        shards=shards,
        owners=1,
        message_timeout=timedelta(seconds=60),
    )


def deliveries(random: Random, expected: Expectation) -> list[Attempt]:
    """Deliver surviving calls at least once, any call possibly several times, and calls of dead
    attempts possibly never, in any order.
    """
    calls: list[Attempt] = []
    for attempts in expected.run.attempts.values():
        for attempt in attempts[:-1]:
            calls += [attempt] * random.choice((0, 1, 1, 2))
        calls += [attempts[-1]] * random.choice((1, 1, 2))
    random.shuffle(calls)
    return calls


def outcomes_of(feed) -> dict[int, str]:
    found: dict[int, str] = {}
    while outcomes := feed.read(NOW):
        failed = [failure.root for failure in outcomes.failed]
        for root, outcome in itertools.chain(
            ((root, "acked") for root in outcomes.acked), ((root, "failed") for root in failed)
        ):
            assert root not in found, "two outcomes"
            found[root] = outcome
    return found


def begin(ledger, run):
    feed = ledger.feed(1)
    for _ in range(2):
        assert ledger.register(1, run.roots, [run.ack_val(root) for root in run.roots]) == []
    return feed


def check(ledger, feed, expected: Expectation) -> None:
    assert outcomes_of(feed) == expected.outcomes
    assert ledger.pending() == len(expected.run.roots) - len(expected.outcomes)


@settings(UNHURRIED, max_examples=400)
@given(seed=SEEDS, temper=st.sampled_from((0, 0.2, 0.8)))
def test_in_memory_a_root_is_acked_if_and_only_if_its_tree_is_processed(seed, temper):
    random = Random(seed)
    run = make_run(random, roots=random.randint(1, 4), temper=temper)
    ledger = MemoryLedger(spec_of("", 1))
    expected = Expectation(run)
    feed = begin(ledger, run)
    for attempt in deliveries(random, expected):
        ledger.apply(*attempt.arguments())
        expected.deliver(attempt)
    check(ledger, feed, expected)
    if temper == 0:
        assert expected.outcomes == expected.survivors()


@settings(UNHURRIED, max_examples=100)
@given(seed=SEEDS, temper=st.sampled_from((0, 0.2, 0.8)))
def test_redis_answers_as_memory_does(redis_url, seed, temper):
    random = Random(seed)
    run = make_run(random, roots=random.randint(1, 6), temper=temper)
    spec = spec_of(redis_url, 1)
    memory = MemoryLedger(spec)
    redis = RedisLedger(spec)
    expected = Expectation(run)
    memory_feed = begin(memory, run)
    redis_feed = begin(redis, run)
    for attempt in deliveries(random, expected):
        if random.random() < 0.05:
            root = random.choice(run.roots)
            assert memory.release([root]) == redis.release([root])
        memory_reply = memory.apply(*attempt.arguments())
        redis_reply = redis.apply(*attempt.arguments())
        assert memory_reply == redis_reply
        assert memory.pending() == redis.pending()
    assert outcomes_of(memory_feed) == outcomes_of(redis_feed)
    redis_feed.close()
    redis.close()


@settings(UNHURRIED, max_examples=60)
@given(seed=SEEDS, temper=st.sampled_from((0, 0.2, 0.8)))
def test_in_several_shards_a_root_is_acked_if_and_only_if_its_tree_is_processed(
    redis_url, seed, temper
):
    random = Random(seed)
    run = make_run(random, roots=random.randint(1, 8), temper=temper)
    ledger = RedisLedger(spec_of(redis_url, 3))
    expected = Expectation(
        run, shard_of=lambda root: int(shards_of(np.array([root], np.uint64), 3)[0])
    )
    feed = begin(ledger, run)
    for attempt in deliveries(random, expected):
        ledger.apply(*attempt.arguments())
        expected.deliver(attempt)
    check(ledger, feed, expected)
    if temper == 0:
        assert expected.outcomes == expected.survivors()
    feed.close()
    ledger.close()


@settings(UNHURRIED, max_examples=100)
@given(seed=SEEDS, temper=st.sampled_from((0, 0.2, 0.8)))
def test_an_attempt_that_died_between_two_slices_is_completed_or_failed(
    redis_url, monkeypatch, seed, temper
):
    monkeypatch.setattr(tiercel.acker.redis_ledger, "SLICE", 1)
    random = Random(seed)
    run = make_run(random, roots=random.randint(2, 6), temper=temper)
    ledger = RedisLedger(spec_of(redis_url, 1))
    expected = Expectation(run)
    feed = begin(ledger, run)
    for attempt in deliveries(random, expected):
        if len(attempt.roots) > 1 and random.random() < 0.4:
            slices = random.randint(1, len(attempt.roots) - 1)
            perform_all(ledger.applying(*attempt.arguments())[:slices])
            expected.deliver(attempt, slices)
        # A surviving attempt is repeated until it succeeds.
        ledger.apply(*attempt.arguments())
        expected.deliver(attempt)
    check(ledger, feed, expected)
    if temper == 0:
        assert expected.outcomes == expected.survivors()
    feed.close()
    ledger.close()


class Steps:
    """Several steps of each task, one after the other, and zombies of the steps before."""

    def __init__(self, random: Random, temper: float, shards: int) -> None:
        self._shard_of = lambda root: int(shards_of(np.array([root], np.uint64), shards)[0])
        runs = [
            make_run(random, roots=random.randint(1, 4), temper=temper, step=step)
            for step in range(3)
        ]
        self.expected = [Expectation(run, self._shard_of) for run in runs]
        # Last step known to a shard, by task and shard.
        self._last: dict[tuple[int, int], int] = {}

    def deliver(self, attempt: Attempt) -> bool:
        """Tell the expectation; return True if the call should be refused as stale."""
        task = attempt.token.task
        step = attempt.token.step
        last = {root: self._last.get((task, self._shard_of(root)), 0) for root in attempt.roots}
        for root in sorted(attempt.roots):
            if last[root] <= step:
                self._last[task, self._shard_of(root)] = step
                self.expected[step].deliver_root(attempt, root)
        return any(found > step for found in last.values())

    def calls(self, random: Random) -> list[Attempt]:
        """Put each step's calls after those of the step before, some of which come again at any
        later time.
        """
        calls: list[Attempt] = []
        for expected in self.expected:
            new = deliveries(random, expected)
            zombies = random.sample(calls, min(len(calls), random.randint(0, 4)))
            for zombie in zombies:
                new.insert(random.randint(0, len(new)), zombie)
            calls += new
        return calls


@settings(UNHURRIED, max_examples=100)
@given(seed=SEEDS, temper=st.sampled_from((0, 0.2, 0.8)), shards=st.sampled_from((0, 1, 3)))
def test_zombies_of_earlier_steps_change_nothing(redis_url, seed, temper, shards):
    """``shards`` 0 means in memory."""
    random = Random(seed)
    steps = Steps(random, temper, shards or 1)
    spec = spec_of(redis_url, shards or 1)
    ledger = RedisLedger(spec) if shards else MemoryLedger(spec)
    feed = ledger.feed(1)
    for expected in steps.expected:
        ledger.register(
            1, expected.run.roots, [expected.run.ack_val(root) for root in expected.run.roots]
        )
    for attempt in steps.calls(random):
        stale = steps.deliver(attempt)
        assert (ledger.apply(*attempt.arguments()).applied is Applied.STALE) == stale
    every = {
        root: outcome for expected in steps.expected for root, outcome in expected.outcomes.items()
    }
    assert outcomes_of(feed) == every
    if temper == 0:
        assert every == {
            root: fate for expected in steps.expected for root, fate in expected.survivors().items()
        }
    feed.close()
    ledger.close()


RUNS = st.sampled_from("abc")
TASKS = st.integers(0, 1)
APPLY = st.tuples(
    st.just("apply"),
    RUNS,
    TASKS,
    st.integers(0, 3),
    st.integers(0, 2),
    st.dictionaries(st.integers(1, 3), st.integers(0, 3)),
)
FENCE = st.tuples(st.just("fence"), RUNS, TASKS, st.integers(0, 2))
BEGIN = st.tuples(st.just("begin"), RUNS)


@settings(UNHURRIED, max_examples=200)
@given(calls=st.lists(st.one_of(APPLY, APPLY, FENCE, BEGIN), max_size=30))
def test_whatever_is_begun_fenced_and_applied_redis_answers_as_memory_does(redis_url, calls):
    spec = spec_of(redis_url, 1)
    memory = MemoryLedger(spec)
    redis = RedisLedger(spec)
    feeds = [memory.feed(1), redis.feed(1)]
    for ledger in (memory, redis):
        ledger.register(1, [1, 2, 3], [1, 2, 3])
    for name, *given_ in calls:
        replies = []
        for ledger in (memory, redis):
            if name == "apply":
                run, task, step, attempt, xors = given_
                replies.append(
                    ledger.apply(token(task, step=step, attempt=attempt, run=run), updates(xors))
                )
            else:
                replies.append(getattr(ledger, name)(*given_))
        assert replies[0] == replies[1], (name, given_)
    assert memory.pending() == redis.pending()
    assert outcomes_of(feeds[0]) == outcomes_of(feeds[1])
    feeds[1].close()
    redis.close()
