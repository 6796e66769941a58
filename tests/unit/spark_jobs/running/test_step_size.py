"""Size of a step: as many tuples as fit into some milliseconds."""

from __future__ import annotations

import heapq
import random

import numpy as np
import pytest

from bench.slow.uneven import KINDS, Kind, arrivals, ideal_s
from tests.support.clock import Clock
from tiercel.spark_jobs.running.step import Slices


def slices(*, arrow: bool = False) -> tuple[Slices, Clock]:
    clock = Clock(100.0)
    return Slices(clock, arrow=arrow), clock


def step(one: Slices, clock: Clock, executed: int, offered: int, took_s: float) -> None:
    one.begin()
    clock.now += took_s
    one.ended(executed, offered, clock.now, committed=False)


def test_steps_that_are_full_and_fast_grow_up_to_a_bound() -> None:
    for arrow in (False, True):
        one, clock = slices(arrow=arrow)
        for _ in range(20):
            step(one, clock, one.size, one.size, 0.001)
        assert one.size == 32_000


def test_a_step_that_is_not_full_says_nothing_about_the_size() -> None:
    one, clock = slices()
    before = one.size
    step(one, clock, 3, 3, 0.001)
    assert one.size == before


def test_a_step_is_cut_after_some_milliseconds_and_the_next_is_as_large_as_what_fitted() -> None:
    one, clock = slices()
    one.begin()
    assert one.may()
    clock.now += 0.021
    assert not one.may()
    one.ended(7, 64, clock.now, committed=False)
    assert one.size == 7


def test_slow_tuples_come_one_by_one_and_fast_ones_soon_in_large_steps_again() -> None:
    one, clock = slices()
    for _ in range(10):
        step(one, clock, 1, one.size, 1.0)
    assert one.size == 1
    for _ in range(5):
        step(one, clock, one.size, one.size, 0.0001)
    assert one.size == 32


def test_where_too_few_tuples_wait_the_inbox_is_read_and_where_enough_do_it_is_not() -> None:
    one, _ = slices()
    assert one.wanted(one.size) == 0
    assert one.wanted(one.size - 1) == one.size + 1


def test_an_empty_inbox_is_left_alone_for_a_while_when_there_is_other_work() -> None:
    one, clock = slices()
    one.found_none()
    assert one.wanted(1) == 0
    clock.now += 0.011
    assert one.wanted(1) > 0


def test_a_step_that_only_waited_for_the_processor_makes_the_next_one_no_smaller() -> None:
    one, clock = slices()
    step(one, clock, 40, 40, 0.05)
    assert one.size == 64
    one, clock = slices(arrow=True)
    step(one, clock, 40, 40, 0.05)
    assert one.size == 20, "one that cannot be cut"


def committing(one: Slices, clock: Clock, commit_s: float, times: int = 50) -> None:
    """Run steps of one quick tuple, one after the other."""
    for _ in range(times):
        one.begin()
        assert one.may()
        executed_at = clock.now
        clock.now += commit_s
        one.ended(1, 1, executed_at, committed=True)


def test_where_steps_follow_each_other_the_next_one_waits_for_company() -> None:
    one, clock = slices()
    assert one.rest_s() == 0.0
    committing(one, clock, 0.004)
    assert one.rest_s() == pytest.approx(0.016, abs=0.001)
    committing(one, clock, 60, times=1)
    assert one.rest_s() < 0.051


def test_steps_that_come_now_and_then_wait_for_nobody() -> None:
    one, clock = slices()
    for _ in range(50):
        clock.now += 0.015
        assert one.rest_s() == 0.0
        committing(one, clock, 0.003, times=1)


def length_s(one: Slices, clock: Clock, each_s: float) -> float:
    """Run a step of a bolt with endless input; return its duration."""
    began = clock.now
    calls(one, clock, 10**6, each_s)
    return clock.now - began


@pytest.mark.parametrize(
    ("commit_s", "longest_s"), [(0.001, 0.02), (0.01, 0.04), (0.04, 0.16), (3.0, 0.2)]
)
def test_a_step_of_quick_tuples_lasts_as_long_as_its_commit_deserves(
    commit_s: float, longest_s: float
) -> None:
    one, clock = slices()
    committing(one, clock, commit_s)
    assert length_s(one, clock, 0.0001) == pytest.approx(longest_s, abs=0.002)
    assert one.claimable <= 201, "whoever else is free: twenty milliseconds of work"
    assert one.size == pytest.approx(longest_s / 0.0001, rel=0.05)


def test_a_step_of_slow_tuples_is_short_though_its_commit_takes_long() -> None:
    one, clock = slices()
    committing(one, clock, 0.05)
    for _ in range(3):
        calls(one, clock, 10**6, 0.004, committed=True)
    assert length_s(one, clock, 0.004) <= 0.025
    assert one.claimable + one.worthwhile <= 5


def test_a_long_step_ends_after_a_slow_tuple() -> None:
    one, clock = slices()
    committing(one, clock, 0.05)
    one.begin()
    for _ in range(50):
        assert one.may()
        clock.now += 0.0001
    assert one.may()
    clock.now += 0.03
    assert not one.may()


def calls(
    one: Slices,
    clock: Clock,
    offered: int,
    each_s: float,
    flush_s: float = 0.0,
    *,
    committed: bool = False,
) -> int:
    """Run a step of a bolt that is called for each tuple; return how many it executed."""
    one.begin()
    executed = 0
    while executed < offered and (one.may() or not executed):
        clock.now += each_s
        executed += 1
    if executed == offered:
        one.may()
    clock.now += flush_s
    one.ended(executed, offered, clock.now, committed=committed)
    return executed


def test_of_unknown_work_one_tuple_is_claimed_and_of_quick_work_soon_a_slice() -> None:
    one, clock = slices()
    claims = []
    for _ in range(12):
        claims.append(one.claimable)
        calls(one, clock, one.claimable, 0.0001)
    assert claims[:6] == [1, 2, 4, 8, 16, 32]
    assert 190 <= claims[-1] <= 201, "as many as fit into twenty milliseconds"
    assert one.size >= claims[-1], "and one step executes them"
    assert one.worthwhile == 0, "steps cost nothing of their own"


def test_slow_work_is_claimed_tuple_by_tuple_though_some_of_it_is_quick() -> None:
    one, clock = slices()
    for took_s in (0.2, 0.001, 0.002, 0.3, 0.001, 0.001, 0.001, 0.001):
        calls(one, clock, 1, took_s, flush_s=0.001)
        assert (one.claimable, one.worthwhile) == (1, 0)


def test_one_slow_tuple_among_quick_ones_counts_at_once_and_is_forgotten_in_time() -> None:
    one, clock = slices()
    for _ in range(10):
        calls(one, clock, one.claimable, 0.0001)
    calls(one, clock, 1, 2.0)
    assert one.claimable == 1
    for _ in range(60):
        calls(one, clock, one.claimable, 0.0001)
    assert one.claimable > 100


def test_a_task_that_finds_little_does_not_claim_more() -> None:
    one, clock = slices()
    for _ in range(10):
        calls(one, clock, 1, 0.0001)
    assert one.claimable == 2


@pytest.mark.parametrize("arrow", [False, True])
def test_where_a_step_costs_much_itself_more_is_claimed_out_of_the_share(arrow: bool) -> None:
    one, clock = slices(arrow=arrow)
    for _ in range(60):
        offered = one.claimable + one.worthwhile
        if arrow:
            step(one, clock, offered, offered, 0.05 + 0.0001 * offered)
        else:
            calls(one, clock, offered, 0.0001, flush_s=0.05)
    assert 150 <= one.claimable <= 250, "whoever else is free: twenty milliseconds of work"
    assert 3_000 <= one.claimable + one.worthwhile <= 8_000
    assert one.size >= one.claimable + one.worthwhile


def test_a_bolt_that_does_its_slow_work_in_flush_is_given_one_tuple_at_a_time() -> None:
    one, clock = slices()
    claimed = []
    for _ in range(1_000):
        offered = one.claimable + one.worthwhile
        claimed.append(offered)
        calls(one, clock, offered, 0.0001, flush_s=0.2 * offered)
    assert max(claimed) == 2, "tried, and only if the line has as many for each task"
    assert sum(one > 1 for one in claimed) < 12, "rarely"
    assert one.claimable == 1


def test_work_that_becomes_slow_is_found_out_with_one_step_however_it_is_done() -> None:
    one, clock = slices(arrow=True)
    for _ in range(40):
        offered = one.claimable + one.worthwhile
        step(one, clock, offered, offered, 0.05 + 0.0001 * offered)
    for _ in range(20):
        step(one, clock, 1, 1, 0.2)
        assert (one.claimable, one.worthwhile) in {(1, 0), (1, 1)}


class Model:
    """Tasks on one line and one clock: a free task claims as many tuples as its slices say."""

    def __init__(self, tasks: int, arrow: bool = False) -> None:
        self.clocks = [Clock(100.0) for _ in range(tasks)]
        self.tasks = [Slices(clock, arrow=arrow) for clock in self.clocks]
        self.arrow = arrow

    def claim(self, task: int, waiting: int) -> int:
        one = self.tasks[task]
        share = min(one.claimable + one.worthwhile, waiting // len(self.tasks))
        return min(waiting, max(one.claimable, share))

    def work(self, task: int, at: float, tuples: int, each_s: float, step_s: float) -> int:
        """Run one step; return how many tuples it executed."""
        one, clock = self.tasks[task], self.clocks[task]
        clock.now = at
        if not self.arrow:
            return calls(one, clock, tuples, each_s, step_s)
        step(one, clock, tuples, tuples, tuples * each_s + step_s)
        return tuples


@pytest.mark.parametrize("arrow", [False, True])
@pytest.mark.parametrize(
    ("step_s", "each_s"), [(0.05, 0.0001), (0.05, 0.001), (0.001, 0.0001), (0.0, 0.2)]
)
def test_throughput_of_a_long_line_is_near_the_best_for_what_a_step_and_a_tuple_cost(
    arrow: bool, step_s: float, each_s: float
) -> None:
    tasks, commit_s, seconds = 4, 0.001, 60.0
    model = Model(tasks, arrow)
    chance = random.Random(1)
    free = [(0.0, task, 0) for task in range(tasks)]
    waiting, done = 100_000, 0
    while free[0][0] < seconds:
        now, task, came_back = heapq.heappop(free)
        waiting += came_back
        tuples = model.claim(task, waiting)
        executed = model.work(task, now, tuples, each_s, step_s * chance.uniform(0.6, 1.4))
        done += executed if now > seconds / 2 else 0
        waiting -= tuples
        # Each finished tuple is replaced by another.
        heapq.heappush(free, (model.clocks[task].now + commit_s, task, tuples))
    best = max(
        tasks * size / (step_s + commit_s + size * each_s) for size in (1, 10, 100, 1_000, 8_000)
    )
    assert done / (seconds / 2) >= 0.89 * best


@pytest.mark.parametrize("kind", KINDS)
def test_uneven_slow_work_takes_as_long_as_in_one_ideal_queue(kind: Kind) -> None:
    tasks = 4
    schedule = arrivals(kind, tasks, 600.0)
    model = Model(tasks)
    free = [(0.0, task) for task in range(tasks)]
    latencies = []
    at = 0
    while at < len(schedule):
        now, task = heapq.heappop(free)
        now = max(now, schedule[at].at_s)
        waiting = sum(one.at_s <= now for one in schedule[at : at + 1_000])
        claimed = schedule[at : at + model.claim(task, waiting)]
        one, clock = model.tasks[task], model.clocks[task]
        clock.now = now
        one.begin()
        for each in claimed:
            one.may()
            clock.now += each.work_ms / 1000
            latencies.append(clock.now - each.at_s)
        one.may()
        one.ended(len(claimed), len(claimed), clock.now, committed=False)
        at += len(claimed)
        heapq.heappush(free, (clock.now, task))
    found = np.percentile(latencies, [50, 99])
    ideal = np.percentile(ideal_s(schedule, tasks), [50, 99])
    assert (found <= 1.1 * ideal).all(), f"{found} beside {ideal}"
