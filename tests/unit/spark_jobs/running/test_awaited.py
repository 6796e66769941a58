"""Failed tuples: which is awaited next, for how long, and after a move to another process."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clock import Clock
from tiercel.queues.retry import DEFAULT_RETRY
from tiercel.spark_jobs.kinds.awaited import FailedTuples
from tiercel.spark_jobs.running.backlog import OpenEntry, tick_for

KEY = b"k" * 16
OTHER = b"o" * 16


def identity(number: int) -> bytes:
    return number.to_bytes(8, "big")


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def wall() -> Clock:
    return Clock(1_000_000.0)


def made(clock: Clock, wall: Clock, limit: int = 20) -> FailedTuples:
    return FailedTuples(clock, wall, (DEFAULT_RETRY, limit), (30.0, 16.0))


@pytest.fixture
def failed(clock: Clock, wall: Clock) -> FailedTuples:
    return made(clock, wall)


def entry() -> OpenEntry:
    return OpenEntry("1-0", tick_for(2, 1.0), 0, np.arange(3))


def awaited(failed: FailedTuples, key: bytes) -> bytes | None:
    """Return the identity of the tuple that the others of its key wait for."""
    first = failed.first(key)
    return first.identity if first is not None and first.holds else None


def test_a_tuple_begins_again_when_its_back_off_has_ended(
    failed: FailedTuples, clock: Clock
) -> None:
    failed.tries_again(KEY, identity(1), entry(), 2, alone=False)
    failed.tries_again(OTHER, identity(9), entry(), 0, alone=True)
    failed.tries_again(OTHER, identity(9), entry(), 0, alone=True)
    assert (failed.failures(KEY, identity(1)), failed.failures(OTHER, identity(9))) == (1, 2)
    one = failed.first(KEY)
    assert one is not None
    assert one.holds
    assert not one.may_begin_at("1-0", 2)
    assert failed.next_at == pytest.approx(100.2)
    clock.now += 0.3
    assert failed.due()
    assert not failed.due()
    assert (one.may_begin_at("1-0", 2), one.may_begin_at("1-0", 1)) == (True, False)
    assert failed.alone is None
    clock.now += 0.3
    assert failed.due()
    assert failed.alone is failed.first(OTHER)
    # The tuple is not given up.
    clock.now += 1_000
    assert failed.lapse() == []
    failed.done(KEY, identity(1))
    failed.done(OTHER, identity(9))
    assert not failed


def test_another_process_counts_on_and_knows_no_place(
    failed: FailedTuples, clock: Clock, wall: Clock
) -> None:
    failed.tries_again(KEY, identity(1), entry(), 2, alone=False)
    other = made(clock, wall, limit=2)
    other.load(failed.dump())
    assert (other.failures(KEY, identity(1)), other.failures(KEY, identity(2))) == (1, 0)
    assert awaited(other, KEY) is None
    assert other.next_at is None
    assert [other.is_last(failures) for failures in (1, 2, 3)] == [False, False, True]


def test_a_tuple_that_must_come_again_comes_next(failed: FailedTuples) -> None:
    failed.comes_again(KEY, identity(1))
    assert (awaited(failed, KEY), awaited(failed, OTHER)) == (identity(1), None)
    failed.comes_again(KEY, identity(1))
    # A held tuple that failed too waits for nothing.
    failed.comes_again(KEY, identity(2))
    failed.done(KEY, identity(7))
    assert awaited(failed, KEY) == identity(1)
    failed.done(KEY, identity(1))
    assert not failed


def test_one_that_came_again_and_is_tried_again_is_known_to_the_next_process(
    failed: FailedTuples, clock: Clock, wall: Clock
) -> None:
    failed.comes_again(KEY, identity(1))
    failed.tries_again(KEY, identity(1), entry(), 2, alone=False)
    other = made(clock, wall)
    other.load(failed.dump())
    assert (awaited(other, KEY), other.failures(KEY, identity(1))) == (identity(1), 1)


def test_a_tuple_that_does_not_come_again_is_given_up(failed: FailedTuples, clock: Clock) -> None:
    failed.comes_again(KEY, identity(1))
    assert failed.next_at == 130.0
    clock.now += 29.9
    assert failed.lapse() == []
    clock.now += 0.1
    assert failed.lapse() == [KEY]
    assert not failed
    assert failed.next_at is None


def test_one_that_is_here_is_awaited_anew(failed: FailedTuples, clock: Clock) -> None:
    failed.comes_again(KEY, identity(1))
    clock.now += 30
    assert failed.late() == [KEY]
    failed.is_here(KEY)
    assert failed.lapse() == []
    assert failed.next_at == 160.0


def test_one_that_may_have_been_acked_is_awaited_for_a_short_time(
    failed: FailedTuples, clock: Clock
) -> None:
    failed.comes_again(KEY, identity(1))
    failed.comes_again(KEY, identity(1), doubtful=True)
    clock.now += 15.9
    assert failed.lapse() == []
    clock.now += 0.1
    assert failed.lapse() == [KEY]


def test_another_process_goes_on_and_time_goes_on_meanwhile(
    failed: FailedTuples, wall: Clock
) -> None:
    failed.comes_again(KEY, identity(1))
    failed.comes_again(OTHER, identity(9), doubtful=True)
    # On another machine the monotonic clock began elsewhere.
    elsewhere = Clock(100.0)
    elsewhere.now = 5.0
    wall.now += 20
    other = made(elsewhere, wall)
    other.load(failed.dump())
    assert (awaited(other, KEY), awaited(other, OTHER)) == (identity(1), identity(9))
    # The process looks into its inbox before it gives up any tuple.
    assert other.lapse() == []
    elsewhere.now += 2
    assert other.lapse() == [OTHER]
    elsewhere.now += 8
    assert other.lapse() == [KEY]


@pytest.mark.parametrize("wrong", [b"x", b"k" * 16 + bytes(8)])
def test_what_is_no_order_is_refused(failed: FailedTuples, wrong: bytes) -> None:
    with pytest.raises(ValueError, match="not an order"):
        failed.load(wrong)


@given(st.lists(st.tuples(st.sampled_from(["try", "fail", "doubt", "done"]), st.integers(0, 6))))
def test_a_dump_is_read_as_it_was(steps: list[tuple[str, int]]) -> None:
    clock, wall = Clock(100.0), Clock(1_000_000.0)
    failed = made(clock, wall)
    for what, number in steps:
        key = KEY if number % 2 else OTHER
        if what == "done":
            failed.done(key, identity(number))
        elif what == "try":
            failed.tries_again(key, identity(number), entry(), number, alone=False)
        else:
            failed.comes_again(key, identity(number), doubtful=what == "doubt")
    other = made(clock, wall)
    other.load(failed.dump())
    assert other.dump() == failed.dump()
