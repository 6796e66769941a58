"""Telling the spouts which tuples wait for their predecessors."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tiercel.acker.errors import RedisUnavailableError
from tiercel.spark_jobs.kinds.task_order import SetApart


class Ledger:
    """The part of ``Ledger`` that is called here."""

    def __init__(self) -> None:
        self.told: list[list[int]] = []
        self.away = False

    def reset_timeout(self, roots: Sequence[int], *, waiting: bool) -> None:
        assert waiting
        if self.away:
            raise RedisUnavailableError("away")
        self.told.append(list(roots))


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def at(apart: SetApart, clock: list[float], now: float, *roots: int) -> None:
    clock[0] = now
    apart.look(lambda: roots)


def test_each_is_told_of_once_soon_and_all_before_they_time_out(ledger: Ledger) -> None:
    clock = [0.0]
    apart = SetApart(ledger, lambda: clock[0], 30.0)
    at(apart, clock, 0.0, 1, 2)
    assert ledger.told == [[1, 2]]
    # At most ten times per second.
    at(apart, clock, 0.05, 1, 2, 3)
    assert ledger.told == [[1, 2]]
    at(apart, clock, 0.1, 3, 2, 1)
    at(apart, clock, 0.2, 1, 2, 3)
    assert ledger.told == [[1, 2], [3]]
    at(apart, clock, 10.0, 2, 3)
    assert ledger.told == [[1, 2], [3], [2, 3]]
    # The tuple had gone, and waits again.
    at(apart, clock, 10.1, 1, 2, 3)
    assert ledger.told[3:] == [[1]]


def test_a_task_whose_tuples_are_all_told_of_wakes_up_to_tell_of_them_again(ledger: Ledger) -> None:
    clock = [0.0]
    apart = SetApart(ledger, lambda: clock[0], 30.0)
    at(apart, clock, 0.0, 1)
    assert (apart.earlier(None), apart.earlier(5.0)) == (10.0, 5.0)
    # This turn came too early to ask: there may be news.
    at(apart, clock, 0.05, 1, 2)
    assert apart.earlier(None) == 0.1
    at(apart, clock, 0.1, 1, 2)
    assert apart.earlier(None) == 10.0


def test_while_redis_is_away_it_is_told_later(ledger: Ledger) -> None:
    clock = [0.0]
    apart = SetApart(ledger, lambda: clock[0], 30.0)
    ledger.away = True
    at(apart, clock, 0.0, 1)
    assert apart.earlier(None) == 0.1
    ledger.away = False
    at(apart, clock, 0.1, 1)
    assert ledger.told == [[1]]


def test_without_a_ledger_nobody_is_told() -> None:
    apart = SetApart(None, lambda: 0.0, 30.0)
    apart.look(lambda: pytest.fail("nobody asks"))
