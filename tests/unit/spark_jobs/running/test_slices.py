"""Size of a step: it follows what fits into some milliseconds."""

from __future__ import annotations

import pytest

from tiercel.spark_jobs.running.slices import Slices


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def slices(*, arrow: bool = False) -> tuple[Slices, Clock]:
    clock = Clock()
    return Slices(clock, arrow=arrow), clock


def step(one: Slices, clock: Clock, executed: int, offered: int, took_s: float) -> None:
    one.begin()
    clock.now += took_s
    one.ended(executed, offered)


def test_steps_that_are_full_and_fast_grow_up_to_a_bound() -> None:
    for arrow in (False, True):
        one, clock = slices(arrow=arrow)
        for _ in range(20):
            step(one, clock, one.size, one.size, 0.001)
        assert one.size == 8_000


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
    one.ended(7, 64)
    assert one.size == 7


def test_slow_tuples_come_one_by_one_and_fast_ones_soon_in_large_steps_again() -> None:
    one, clock = slices()
    for _ in range(10):
        step(one, clock, 1, one.size, 1.0)
    assert one.size == 1
    for _ in range(5):
        step(one, clock, one.size, one.size, 0.0001)
    assert one.size == 32


def test_where_nothing_waits_the_inbox_is_asked_and_where_enough_does_it_is_not() -> None:
    one, _ = slices()
    assert one.wanted(0) == 2 * one.size
    assert one.wanted(one.size) == 0
    assert one.wanted(one.size - 1) == one.size + 1


def test_an_empty_inbox_is_left_alone_for_a_while_when_there_is_other_work() -> None:
    one, clock = slices()
    one.took(0)
    assert one.wanted(1) == 0
    assert one.wanted(0) > 0, "without other work it is waited for"
    clock.now += 0.011
    assert one.wanted(1) > 0


def test_steps_that_follow_each_other_keep_some_milliseconds_between() -> None:
    one, clock = slices()
    one.took(2)
    one.begin()
    clock.now += 0.004
    assert 0.005 < one.rest_s() <= 0.006001
    clock.now += 1.0
    assert one.rest_s() == 0.0


def test_a_step_that_only_waited_for_the_processor_makes_the_next_one_no_smaller() -> None:
    one, clock = slices()
    step(one, clock, 40, 40, 0.05)
    assert one.size == 64
    one, clock = slices(arrow=True)
    step(one, clock, 40, 40, 0.05)
    assert one.size == 20, "one that cannot be cut"


def test_where_commits_take_long_the_next_step_waits_for_more_company() -> None:
    one, clock = slices()
    one.begin()
    assert one.rest_s() == 0.0
    for _ in range(50):
        step(one, clock, 1, 1, 0.0)
        clock.now += 0.004
        one.committed()
    one.begin()
    assert one.rest_s() == pytest.approx(0.012, abs=0.001)
    step(one, clock, 1, 1, 0.0)
    clock.now += 60
    one.committed()
    one.begin()
    assert one.rest_s() < 0.051


def test_chunks_that_come_in_company_share_a_step_and_one_that_comes_alone_waits_for_none() -> None:
    one, _clock = slices()
    one.took(3)
    one.begin()
    assert one.rest_s() == pytest.approx(0.01)
    one.took(0)
    assert one.rest_s() == pytest.approx(0.01), "says nothing"
    one.took(1)
    one.begin()
    assert one.rest_s() == 0.0


def test_of_unknown_work_one_tuple_is_claimed_and_of_quick_work_soon_a_slice() -> None:
    one, clock = slices()
    claims = []
    for _ in range(12):
        claims.append(one.claimable)
        step(one, clock, one.claimable, one.claimable, 0.0001 * one.claimable)
    assert claims[:6] == [1, 2, 4, 8, 16, 32]
    assert 190 <= claims[-1] <= 200, "as many as fit into twenty milliseconds"
    assert one.size >= claims[-1], "and one step executes them"


def test_slow_work_is_claimed_tuple_by_tuple_though_some_of_it_is_quick() -> None:
    one, clock = slices()
    for took_s in (0.2, 0.001, 0.002, 0.3, 0.001, 0.001, 0.001, 0.001):
        step(one, clock, 1, 1, took_s)
        assert one.claimable == 1


def test_one_slow_tuple_among_quick_ones_counts_at_once_and_is_forgotten_in_time() -> None:
    one, clock = slices()
    for _ in range(10):
        step(one, clock, one.claimable, one.claimable, 0.0001 * one.claimable)
    step(one, clock, 1, one.claimable, 2.0)
    assert one.claimable == 1
    for _ in range(60):
        step(one, clock, one.claimable, one.claimable, 0.0001 * one.claimable)
    assert one.claimable > 100


def test_a_task_that_finds_little_does_not_claim_more() -> None:
    one, clock = slices()
    for _ in range(10):
        step(one, clock, 1, 1, 0.0001)
    assert one.claimable == 2
