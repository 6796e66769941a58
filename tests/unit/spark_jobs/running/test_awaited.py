"""Tuples that failed: which one comes next, for how long, and in another process."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercel.queues.retry import DEFAULT_RETRY
from tiercel.spark_jobs.kinds.awaited import Awaited, Tries
from tiercel.spark_jobs.running.backlog import OpenEntry, tick_for

KEY = b"k" * 16
OTHER = b"o" * 16


def identity(number: int) -> bytes:
    return number.to_bytes(8, "big")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Wall(Clock):
    now = 1_000_000.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def awaited(clock: Clock, wall: Wall) -> Awaited:
    return Awaited(clock, wall, 30.0, 16.0)


def test_what_failed_comes_next_until_it_has_succeeded(awaited: Awaited) -> None:
    assert awaited.first(KEY) is None
    awaited.failed(KEY, identity(1))
    assert (awaited.first(KEY), awaited.first(OTHER)) == (identity(1), None)
    awaited.failed(KEY, identity(1))
    awaited.done(KEY, identity(7))
    assert awaited.first(KEY) == identity(1)
    awaited.done(KEY, identity(1))
    assert awaited.first(KEY) is None
    assert not awaited


def test_an_older_one_that_fails_later_comes_before_it(awaited: Awaited) -> None:
    awaited.failed(KEY, identity(2))
    awaited.failed(KEY, identity(1))
    for number in (1, 2):
        assert awaited.first(KEY) == identity(number)
        awaited.done(KEY, identity(number))
    assert not awaited


def test_a_tuple_that_does_not_come_again_is_given_up(awaited: Awaited, clock: Clock) -> None:
    awaited.failed(KEY, identity(1))
    assert awaited.next_at == 130.0
    clock.now += 29.9
    assert awaited.lapse() == []
    clock.now += 0.1
    assert awaited.lapse() == [KEY]
    assert not awaited
    assert awaited.next_at is None


def test_one_that_is_here_is_awaited_anew(awaited: Awaited, clock: Clock) -> None:
    awaited.failed(KEY, identity(1))
    clock.now += 30
    assert awaited.late() == [KEY]
    awaited.is_here(KEY)
    assert awaited.lapse() == []
    assert awaited.next_at == 160.0


def test_one_that_may_have_been_acked_is_awaited_for_a_short_time(
    awaited: Awaited, clock: Clock
) -> None:
    awaited.failed(KEY, identity(1))
    awaited.failed(KEY, identity(1), doubtful=True)
    clock.now += 15.9
    assert awaited.lapse() == []
    clock.now += 0.1
    assert awaited.lapse() == [KEY]


def test_another_process_goes_on_and_time_goes_on_meanwhile(
    awaited: Awaited, clock: Clock, wall: Wall
) -> None:
    awaited.failed(KEY, identity(2))
    awaited.failed(KEY, identity(1))
    awaited.failed(OTHER, identity(9), doubtful=True)
    # Another machine: its clock began elsewhere.
    elsewhere = Clock()
    elsewhere.now = 5.0
    wall.now += 20
    other = Awaited(elsewhere, wall, 30.0, 16.0)
    other.load(awaited.dump())
    assert (other.first(KEY), other.first(OTHER)) == (identity(1), identity(9))
    # It looks into its inbox before it gives anything up.
    assert other.lapse() == []
    elsewhere.now += 2
    assert other.lapse() == [OTHER]
    elsewhere.now += 8
    assert other.lapse() == [KEY]
    assert other.first(KEY) == identity(2)


@pytest.mark.parametrize("wrong", [b"x", b"k" * 16 + bytes(8)])
def test_what_is_no_order_is_refused(awaited: Awaited, wrong: bytes) -> None:
    for one in (awaited, Tries(Clock(), DEFAULT_RETRY, 20)):
        with pytest.raises(ValueError, match="not an order"):
            one.load(wrong)


@given(st.lists(st.tuples(st.sampled_from(["fail", "doubt", "done"]), st.integers(0, 6))))
def test_a_dump_is_read_as_it_was(steps: list[tuple[str, int]]) -> None:
    clock, wall = Clock(), Wall()
    awaited = Awaited(clock, wall, 30.0, 16.0)
    for what, number in steps:
        key = KEY if number % 2 else OTHER
        if what == "done":
            awaited.done(key, identity(number))
        else:
            awaited.failed(key, identity(number), doubtful=what == "doubt")
    other = Awaited(clock, wall, 30.0, 16.0)
    other.load(awaited.dump())
    assert other.dump() == awaited.dump()
    while awaited:
        for key in (KEY, OTHER):
            first = awaited.first(key)
            assert other.first(key) == first
            if first is not None:
                awaited.done(key, first)
                other.done(key, first)


def entry() -> OpenEntry:
    return OpenEntry("1-0", tick_for(2, 1.0), 0, np.arange(3))


def test_a_tuple_begins_again_when_its_back_off_has_ended(clock: Clock) -> None:
    tries = Tries(clock, DEFAULT_RETRY, 20)
    tries.failed(KEY, identity(1), entry(), 2, alone=False)
    tries.failed(OTHER, identity(9), entry(), 0, alone=True)
    tries.failed(OTHER, identity(9), entry(), 0, alone=True)
    assert (tries.failures(KEY, identity(1)), tries.failures(OTHER, identity(9))) == (1, 2)
    assert tries.resting == {KEY, OTHER}
    assert tries.next_at == pytest.approx(100.2)
    clock.now += 0.3
    [due] = tries.due()
    assert (due.row, due.is_at("1-0", 2), due.is_at("1-0", 1)) == (2, True, False)
    assert tries.due() == []
    assert (tries.alone, tries.resting) == (None, {OTHER})
    clock.now += 0.3
    assert tries.due() == [tries.alone]
    tries.over(KEY)
    tries.over(OTHER)
    assert not tries


def test_another_process_counts_on_and_knows_no_place(clock: Clock) -> None:
    tries = Tries(clock, DEFAULT_RETRY, 2)
    tries.failed(KEY, identity(1), entry(), 2, alone=False)
    other = Tries(clock, DEFAULT_RETRY, 2)
    other.load(tries.dump())
    assert (other.failures(KEY, identity(1)), other.failures(KEY, identity(2))) == (1, 0)
    assert other.first(KEY) is None
    assert [other.is_last(failures) for failures in (1, 2, 3)] == [False, False, True]
