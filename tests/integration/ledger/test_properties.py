"""Random topologies, random faults: the ledger against an expectation made of sets, and Redis against memory.

For every run that can be made up: a root is acked only when every tuple of its tree that the ledger heard of has been
processed; it has one outcome at most; and where the bolts are deterministic and everything arrived, none is left without.
"""

from __future__ import annotations

import itertools
import uuid
from datetime import timedelta
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import acker.layout
from acker import LedgerSpec, LedgerUnavailableError, MemoryLedger, RedisLedger
from acker.layout import shards_of
from tests.ledgers import NOW
from tests.trees import Attempt, Expectation, make_run

UNHURRIED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
SEEDS = st.integers(0, 2**32)


def spec_of(url: str, shards: int) -> LedgerSpec:
    return LedgerSpec(
        topology=f"property-{uuid.uuid4().hex}", urls=(url,), shards=shards, owners=1, message_timeout=timedelta(seconds=60)
    )


def deliveries(random: Random, expected: Expectation) -> list[Attempt]:
    """In any order: what survives at least once, everything perhaps several times, what died perhaps never."""
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
    ledger, expected = MemoryLedger(spec_of("", 1)), Expectation(run)
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
    memory, redis, expected = MemoryLedger(spec), RedisLedger(spec), Expectation(run)
    memory_feed, redis_feed = begin(memory, run), begin(redis, run)
    for attempt in deliveries(random, expected):
        if random.random() < 0.05:
            root = random.choice(run.roots)
            assert memory.release([root]) == redis.release([root])
        memory_reply, redis_reply = memory.apply(*attempt.arguments()), redis.apply(*attempt.arguments())
        assert memory_reply == redis_reply
        assert memory.pending() == redis.pending()
    assert outcomes_of(memory_feed) == outcomes_of(redis_feed)
    redis_feed.close()
    redis.close()


@settings(UNHURRIED, max_examples=60)
@given(seed=SEEDS, temper=st.sampled_from((0, 0.2, 0.8)))
def test_in_several_shards_a_root_is_acked_if_and_only_if_its_tree_is_processed(redis_url, seed, temper):
    random = Random(seed)
    run = make_run(random, roots=random.randint(1, 8), temper=temper)
    ledger = RedisLedger(spec_of(redis_url, 3))
    expected = Expectation(run, shard_of=lambda root: int(shards_of(np.array([root], np.uint64), 3)[0]))
    feed = begin(ledger, run)
    for attempt in deliveries(random, expected):
        ledger.apply(*attempt.arguments())
        expected.deliver(attempt)
    check(ledger, feed, expected)
    if temper == 0:
        assert expected.outcomes == expected.survivors()
    feed.close()
    ledger.close()


class BreaksOff:
    """Lets a few slices through, then the connection is gone."""

    def __init__(self, apply, slices: int) -> None:
        self._apply, self._left = apply, slices

    def __call__(self, *args):
        if not self._left:
            raise LedgerUnavailableError("gone")
        self._left -= 1
        return self._apply(*args)


@settings(UNHURRIED, max_examples=100)
@given(seed=SEEDS, temper=st.sampled_from((0, 0.2, 0.8)))
def test_an_attempt_that_died_between_two_slices_is_completed_or_failed(redis_url, monkeypatch, seed, temper):
    monkeypatch.setattr(acker.layout, "SLICE", 1)
    random = Random(seed)
    run = make_run(random, roots=random.randint(2, 6), temper=temper)
    ledger, expected = RedisLedger(spec_of(redis_url, 1)), Expectation(run)
    feed = begin(ledger, run)
    scripts = ledger._scripts[0]
    for attempt in deliveries(random, expected):
        if len(attempt.roots) > 1 and random.random() < 0.4:
            slices = random.randint(1, len(attempt.roots) - 1)
            with monkeypatch.context() as broken:
                broken.setattr(scripts, "apply", BreaksOff(scripts.apply, slices))
                with pytest.raises(LedgerUnavailableError):
                    ledger.apply(*attempt.arguments())
            expected.deliver(attempt, slices)
        # What survives is repeated until it got through.
        ledger.apply(*attempt.arguments())
        expected.deliver(attempt)
    check(ledger, feed, expected)
    if temper == 0:
        assert expected.outcomes == expected.survivors()
    feed.close()
    ledger.close()
