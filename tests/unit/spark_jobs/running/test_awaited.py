"""Lines of tuples that were given back: who comes next, for how long, and in another process."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercel.spark_jobs.kinds.awaited import Awaited

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
    return Awaited(clock, wall, 30.0, 2.0, 16.0)


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


def test_what_is_given_back_keeps_its_order_and_its_place(awaited: Awaited) -> None:
    awaited.failed(KEY, identity(1))
    awaited.given_back(KEY, [identity(2), identity(3), identity(3)])
    # They came again in another order, and one more behind them.
    awaited.given_back(KEY, [identity(3), identity(4), identity(2), identity(3)])
    for number in (1, 2, 3, 3, 4):
        assert awaited.first(KEY) == identity(number)
        awaited.done(KEY, identity(number))
    assert not awaited


def test_what_does_not_come_again_is_given_up_and_the_next_one_has_as_long(
    awaited: Awaited, clock: Clock
) -> None:
    awaited.failed(KEY, identity(1))
    awaited.given_back(KEY, [identity(2)])
    clock.now += 29.9
    assert awaited.lapse() == []
    # It came again, and was given back again.
    awaited.given_back(KEY, [identity(2)])
    clock.now += 0.1
    assert awaited.lapse() == [KEY]
    assert awaited.first(KEY) == identity(2)
    clock.now += 29.9
    assert awaited.lapse() == []
    clock.now += 0.1
    assert awaited.lapse() == [KEY]
    assert not awaited


def test_what_never_came_again_either_is_given_up_with_it(awaited: Awaited, clock: Clock) -> None:
    awaited.failed(KEY, identity(1))
    awaited.given_back(KEY, [identity(each) for each in (2, 3, 4, 5)])
    clock.now += 10
    awaited.given_back(KEY, [identity(4)])
    clock.now += 20
    assert awaited.lapse() == [KEY]
    assert awaited.first(KEY) == identity(4)
    awaited.done(KEY, identity(4))
    assert not awaited


def test_of_copies_only_those_that_come_again_are_awaited_for_long(
    awaited: Awaited, clock: Clock
) -> None:
    awaited.failed(KEY, identity(1))
    # Two of them are of a spout worker that has died.
    awaited.given_back(KEY, [identity(each) for each in (2, 3, 2, 3)])
    clock.now += 10
    awaited.given_back(KEY, [identity(2), identity(3)])
    clock.now += 20
    assert awaited.lapse() == [KEY]
    for number in (2, 3):
        assert awaited.first(KEY) == identity(number)
        awaited.done(KEY, identity(number))
    assert not awaited


def test_its_successors_are_given_back_when_they_have_waited(
    awaited: Awaited, clock: Clock
) -> None:
    awaited.failed(KEY, identity(1))
    assert list(awaited.overdue()) == []
    assert (awaited.next_at(held={KEY}), awaited.next_at(held=())) == (102.0, 130.0)
    clock.now += 2
    assert list(awaited.overdue()) == [KEY]
    for hold_s in (4.0, 8.0, 8.0):
        awaited.given_back(KEY, [identity(2)])
        assert awaited.next_at(held={KEY}) == clock.now + hold_s
        clock.now += 2
        assert list(awaited.overdue()) == []
        assert list(awaited.overdue(full=True)) == [KEY]
        clock.now += hold_s - 2
        assert list(awaited.overdue()) == [KEY]


def test_the_next_one_is_held_for_as_short_as_the_first_was(awaited: Awaited, clock: Clock) -> None:
    awaited.failed(KEY, identity(1))
    awaited.given_back(KEY, [identity(2), identity(3)])
    awaited.done(KEY, identity(1))
    assert awaited.next_at(held={KEY}) == clock.now + 2


def test_a_copy_that_never_comes_again_is_awaited_for_a_few_holds(
    awaited: Awaited, clock: Clock, wall: Wall
) -> None:
    awaited.failed(KEY, identity(1))
    awaited.given_back(KEY, [identity(each) for each in (2, 3, 2, 3)])
    for number in (1, 2, 3):
        awaited.done(KEY, identity(number))
    assert awaited.first(KEY) == identity(2)
    other = Awaited(clock, wall, 30.0, 2.0, 16.0)
    other.load(awaited.dump())
    for one in (awaited, other):
        clock.now = 100.0 + 15.9
        assert one.lapse() == []
        clock.now = 100.0 + 16
        # Neither comes the second copy.
        assert one.lapse() == [KEY]
        assert not one


def test_what_may_have_been_acked_is_awaited_for_as_short(awaited: Awaited, clock: Clock) -> None:
    awaited.failed(KEY, identity(1), doubtful=True)
    awaited.given_back(KEY, [identity(2)])
    clock.now += 10
    awaited.given_back(KEY, [identity(2)])
    clock.now += 6
    assert awaited.lapse() == [KEY]
    assert awaited.first(KEY) == identity(2)


def test_a_twin_that_came_and_failed_is_awaited_like_any_other(
    awaited: Awaited, clock: Clock
) -> None:
    awaited.failed(KEY, identity(1))
    awaited.given_back(KEY, [identity(2), identity(2)])
    for number in (1, 2):
        awaited.done(KEY, identity(number))
    awaited.failed(KEY, identity(2))
    clock.now += 29.9
    assert awaited.lapse() == []


def test_without_spouts_that_take_them_back_they_are_held(clock: Clock, wall: Wall) -> None:
    awaited = Awaited(clock, wall, 15.0, None)
    awaited.failed(KEY, identity(1))
    clock.now += 14
    assert list(awaited.overdue()) == []
    assert awaited.next_at(held={KEY}) == 115.0


def test_another_process_goes_on_and_time_goes_on_meanwhile(
    awaited: Awaited, clock: Clock, wall: Wall
) -> None:
    awaited.failed(KEY, identity(1))
    awaited.given_back(KEY, [identity(2), identity(3)])
    awaited.failed(OTHER, identity(9))
    # Another machine: its clock began elsewhere.
    elsewhere = Clock()
    elsewhere.now = 5.0
    wall.now += 20
    other = Awaited(elsewhere, wall, 30.0, 2.0, 16.0)
    other.load(awaited.dump())
    assert (other.first(KEY), other.first(OTHER)) == (identity(1), identity(9))
    other.given_back(KEY, [identity(3)])
    elsewhere.now += 10
    assert set(other.lapse()) == {KEY, OTHER}
    # The second was not here again.
    assert other.first(KEY) == identity(3)


@pytest.mark.parametrize(
    "wrong", [b"x", b"k" * 16 + bytes(12), b"k" * 16 + bytes(8) + b"\0\0\0\2x"]
)
def test_what_is_no_order_is_refused(awaited: Awaited, wrong: bytes) -> None:
    with pytest.raises(ValueError, match="not an order"):
        awaited.load(wrong)


@given(st.lists(st.tuples(st.sampled_from(["fail", "back", "done"]), st.integers(0, 6))))
def test_a_dump_is_read_as_it_was(steps: list[tuple[str, int]]) -> None:
    clock, wall = Clock(), Wall()
    awaited = Awaited(clock, wall, 30.0, 2.0, 16.0)
    for what, number in steps:
        key = KEY if number % 2 else OTHER
        if what == "fail":
            awaited.failed(key, identity(number))
        elif what == "done":
            awaited.done(key, identity(number))
        elif awaited.first(key) is not None:
            awaited.given_back(key, [identity(each) for each in range(number)])
    other = Awaited(clock, wall, 30.0, 2.0, 16.0)
    other.load(awaited.dump())
    assert other.dump() == awaited.dump()
    while awaited:
        for key in (KEY, OTHER):
            first = awaited.first(key)
            assert other.first(key) == first
            if first is not None:
                awaited.done(key, first)
                other.done(key, first)
