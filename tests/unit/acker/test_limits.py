"""Properties of the limits in memory, on simulated time: the rate, its split, and lost permits."""

from __future__ import annotations

import heapq
import math
import pickle
import random
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.clock import Clock
from tiercel.acker.limits import (
    DEPTH_MS,
    GRACE_MS,
    LONGEST_WAIT_MS,
    Ask,
    Bucket,
    LimitSpec,
    MemoryLimits,
    Rate,
    decide,
)

HUNDRED = Rate(permits=100)
HOUR_S = 3600.0

rates = st.builds(
    Rate,
    permits=st.one_of(st.integers(1, 5000), st.floats(0.01, 100)),
    seconds=st.sampled_from([1.0, 60.0, HOUR_S]),
)
tasks = st.integers(1, 4)
calls = st.lists(
    st.tuples(tasks, st.integers(1, 200), st.integers(0, 400_000)), min_size=1, max_size=60
)


@dataclass
class Crowd:
    """Tasks that always want more permits and ask when they are told to, each a little late."""

    rate: Rate
    count: int = 4
    late_ms: float = 20.0
    seed: int = 0

    def __post_init__(self):
        self.clock = Clock(1_000_000.0)
        self.limits = MemoryLimits(self.rate, self.clock)
        self.got = Counter()
        self.calls = 0
        self.random = random.Random(self.seed)
        self.coming = [(self.clock.now, task) for task in range(1, self.count + 1)]

    def run(self, seconds: float) -> None:
        end = self.clock.now + seconds
        while self.coming and self.coming[0][0] <= end:
            self.clock.now, task = heapq.heappop(self.coming)
            grant = self.limits.take(task, {b"": 10_000})[b""]
            self.calls += 1
            self.got[task] += grant.permits
            late = self.random.random() * self.late_ms * task / self.count
            heapq.heappush(
                self.coming, (self.clock.now + (grant.again_ms + late) / 1000 + 1e-5, task)
            )
        self.clock.now = end


@given(rate=rates, calls=calls)
def test_no_time_has_more_permits_than_its_rate_and_a_full_bucket(rate, calls):
    clock = Clock(1_000_000.0)
    limits = MemoryLimits(rate, clock)
    taken = []
    for task, wanted, later_us in calls:
        clock.now += later_us / 1e6
        permits = limits.take(task, {b"": wanted})[b""].permits
        assert permits <= min(wanted, rate.most)
        taken.append((clock.now, permits))
    for first in range(len(taken)):
        total = 0
        for now, permits in taken[first:]:
            total += permits
            passed_us = (now - taken[first][0]) * 1e6
            # Tolerates a microsecond per call, and the rounding of floats of this size.
            bound = (passed_us + rate.depth_us + 2 * len(taken)) / rate.interval_us
            assert total <= bound + 1e-3


@pytest.mark.parametrize("late_ms", [0, 5, 40])
@pytest.mark.parametrize("rate", [HUNDRED, Rate(permits=7), Rate(permits=3000)])
def test_four_tasks_get_the_rate_within_two_percent_in_a_minute(rate, late_ms):
    crowd = Crowd(rate, late_ms=late_ms)
    crowd.run(60)
    assert 0.98 <= sum(crowd.got.values()) / (60 * rate.permits) <= 1.02


@pytest.mark.parametrize("late_ms", [0, 40])
@pytest.mark.parametrize("rate", [HUNDRED, Rate(permits=7), Rate(permits=1, seconds=60)])
def test_tasks_that_always_want_more_get_equal_parts_however_late_they_come(rate, late_ms):
    crowd = Crowd(rate, late_ms=late_ms)
    crowd.run(600)
    assert max(crowd.got.values()) - min(crowd.got.values()) <= 3 * rate.most


def test_a_task_that_asks_all_the_time_gets_no_more_than_the_others():
    crowd = Crowd(HUNDRED, late_ms=0)
    for _ in range(6000):
        crowd.run(0.01)
        crowd.got[1] += crowd.limits.take(1, {b"": 10_000})[b""].permits
    assert max(crowd.got.values()) - min(crowd.got.values()) <= 3 * HUNDRED.most


def test_a_task_that_waits_gets_its_whole_grant_and_no_part_of_it():
    clock = Clock(1_000_000.0)
    limits = MemoryLimits(HUNDRED, clock)
    drain(limits)
    assert limits.take(1, {b"": 9})[b""].again_ms == 50
    for _ in range(4):
        clock.now += 0.01
        assert limits.take(1, {b"": 9})[b""].permits == 0
    clock.now += 0.01
    assert limits.take(1, {b"": 9})[b""].permits == 5


def test_a_grant_costs_one_call():
    crowd = Crowd(HUNDRED)
    crowd.run(60)
    assert crowd.calls <= 1.1 * sum(crowd.got.values()) / HUNDRED.most + 10


def test_waiting_for_an_hour_costs_a_call_in_ten_seconds():
    crowd = Crowd(Rate(permits=1, seconds=HOUR_S))
    crowd.run(3 * HOUR_S)
    assert sum(crowd.got.values()) in (3, 4)
    assert crowd.calls / crowd.count <= 1.1 * 3 * HOUR_S / (LONGEST_WAIT_MS / 1000)


def test_a_task_that_died_while_it_waited_costs_the_others_its_grace_at_most():
    crowd = Crowd(HUNDRED)
    crowd.run(10)
    dead = crowd.coming.pop()[1]
    before = sum(crowd.got.values())
    crowd.run(10)
    lost_most = HUNDRED.most + GRACE_MS / 1000 * 100
    assert sum(crowd.got.values()) - before >= 1000 - lost_most
    assert crowd.got[dead] < min(crowd.got[task] for task in (1, 2, 3, 4) if task != dead)


def test_a_task_that_dies_again_and_again_does_not_lengthen_the_line():
    clock = Clock(1_000_000.0)
    limits = MemoryLimits(Rate(permits=1, seconds=HOUR_S), clock)
    assert limits.take(1, {b"": 1})[b""].permits == 1
    for _ in range(100):
        clock.now += 10
        limits.take(2, {b"": 1})  # a new process each time
    clock.now += HOUR_S - 1000
    assert limits.take(2, {b"": 1})[b""].permits == 1


@given(rate=rates, jumps=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5))
@example(rate=Rate(permits=4999), jumps=[1.0])
def test_a_clock_that_jumps_gives_a_full_bucket_at_most_and_takes_no_more(rate, jumps):
    clock = Clock(1e9)
    limits = MemoryLimits(rate, clock)
    full = rate.depth_us / rate.interval_us
    # Each permit moves a time by its interval, rounded to a double.
    rounded = full * math.ulp(clock.now * 1e6) / 2
    full = int(full + (rounded + 1) / rate.interval_us)
    for jump in jumps:
        drain(limits)
        clock.now += jump
        assert drain(limits) <= full
        again_ms = limits.take(1, {b"": 1})[b""].again_ms
        # The bucket is empty, so the wait is for the next permit, whatever the clock says.
        assert again_ms <= min(rate.interval_us / 1000 + 1, LONGEST_WAIT_MS)
        clock.now += rate.interval_us / 1e6 + 0.001
        assert limits.take(1, {b"": 1})[b""].permits == 1


def drain(limits, task=1):
    """Take all permits of a bucket one by one, since a request for more would have to wait."""
    total = 0
    while limits.take(task, {b"": 1})[b""].permits:
        total += 1
    limits.give_back(task, {b"": 0})
    return total


@given(rate=rates, taken=st.integers(1, 300), returned=st.integers(0, 10_000))
def test_what_is_given_back_can_be_taken_again_and_fills_the_bucket_at_most(rate, taken, returned):
    limits = MemoryLimits(rate, Clock(1_000_000.0))
    full = int(rate.depth_us / rate.interval_us + 1e-3)
    got = 0
    while got < taken and (permits := limits.take(1, {b"": taken - got})[b""].permits):
        got += permits
    limits.give_back(1, {b"": min(returned, got)})
    assert drain(limits, 2) == pytest.approx(full - got + min(returned, got), abs=1)
    limits.give_back(1, {b"": returned})
    assert drain(limits, 2) <= full


@given(rate=rates, calls=calls)
def test_a_call_that_is_repeated_takes_and_gives_back_once(rate, calls):
    now = 1e15
    bucket = Bucket(full_at=now)
    for number, (task, wanted, later_us) in enumerate(calls):
        now += later_us
        ask = Ask(task=task, call=number, wanted=wanted % 7, returned=wanted % 3)
        grant, bucket = decide(bucket, ask, rate, now)
        again, same = decide(bucket, ask, rate, now)
        assert (again, same) == (grant, bucket)


def test_tasks_that_no_longer_ask_are_forgotten():
    bucket = Bucket(full_at=0.0)
    for task in range(100):
        ask = Ask(task=task, call=task, wanted=task % 2 + 1)
        _, bucket = decide(bucket, ask, HUNDRED, 0.0)
    assert len(bucket.places) == 100
    _, bucket = decide(bucket, Ask(task=5, call=200, wanted=1), HUNDRED, 45e6)
    assert [place.task for place in bucket.places] == [5]


def test_a_limit_travels():
    spec = LimitSpec(topology="t", component="c", urls=("redis://h",), shards=2, rate=HUNDRED)
    assert pickle.loads(pickle.dumps(spec)) == spec


@given(rate=rates)
def test_a_bucket_holds_one_permit_and_what_comes_in_a_tenth_of_a_second(rate):
    held = drain(MemoryLimits(rate, Clock(1_000_000.0)))
    assert held == pytest.approx(1 + DEPTH_MS * 1000 / rate.interval_us, abs=1)


def test_a_limit_of_one_per_hour_is_one_per_hour():
    clock = Clock(1_000_000.0)
    limits = MemoryLimits(Rate(permits=1, seconds=HOUR_S), clock)
    begun = []
    for _ in range(4 * 3600):
        if limits.take(1, {b"": 1})[b""].permits:
            begun.append(clock.now)
        clock.now += 1
    assert [later - earlier for earlier, later in pairwise(begun)] == [3600] * 3
