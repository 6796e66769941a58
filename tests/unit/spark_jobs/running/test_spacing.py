"""A model of the waits of steps and batches for tuples: delay at low load, cost at high load."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from tiercel.spark_jobs.running.step import SHARE, Spacing

RATES = [10, 100, 200, 1_000, 5_000, 20_000]
COSTS_S = [0.0005, 0.001, 0.002, 0.005]


def begun(arrivals: list[float], cost_s: float, each_s: float = 0.0) -> list[float]:
    """Simulate the work for these arrivals; return when each piece of work began."""
    spacing = Spacing()
    begun = []
    now, at = 0.0, 0
    while at < len(arrivals):
        # Idle until a tuple arrives, then as long as the spacing says.
        now = max(now, arrivals[at], spacing.paid_at)
        begun.append(now)
        first = at
        while at < len(arrivals) and arrivals[at] <= now:
            at += 1
        now += cost_s + each_s * (at - first)
        spacing.took(cost_s, now)
    return begun


def waits_s(arrivals: list[float], begun: list[float], busy_s: float) -> list[float]:
    """Return each arrival's wait, without the time the previous work took, ``busy_s`` each."""
    waits, at = [], 0
    for before, now in pairwise([float("-inf"), *begun]):
        while at < len(arrivals) and arrivals[at] <= now:
            waits.append(now - max(arrivals[at], before + busy_s))
            at += 1
    return waits


def coming(rate: float, seconds: float, *, regular: bool = False) -> list[float]:
    """Return arrival times at this rate."""
    chance = random.Random(1)
    now, found = 0.0, []
    while now < seconds:
        now += 1 / rate if regular else chance.expovariate(rate)
        found.append(now)
    return found


@pytest.mark.parametrize("regular", [True, False])
@pytest.mark.parametrize("cost_s", COSTS_S)
@pytest.mark.parametrize("rate", RATES)
def test_nobody_waits_at_a_low_load_and_at_a_high_one_the_cost_stays_a_part_of_the_time(
    rate: int, cost_s: float, regular: bool
) -> None:
    seconds = 10.0
    arrivals = coming(rate, seconds, regular=regular)
    found = begun(arrivals, cost_s)
    load = rate * cost_s
    mean_s = sum(waits_s(arrivals, found, cost_s)) / len(arrivals)
    if load <= 0.5 / SHARE:
        assert mean_s <= 0.05 * cost_s, "time that nobody used is saved"
    assert mean_s <= (SHARE - 1) * cost_s
    # The excess at the start is the saved time, and the cost being unknown.
    assert len(found) * cost_s <= seconds / SHARE + 0.05 + 8 * cost_s
    if load >= 1:
        assert len(found) * cost_s >= 0.9 * seconds / SHARE, "and no more is waited than that"


@pytest.mark.parametrize("cost_s", COSTS_S)
def test_bursts_after_idle_times_begin_at_once_and_then_share(cost_s: float) -> None:
    arrivals = [burst + number / 5_000 for burst in range(10) for number in range(1_000)]
    found = begun(arrivals, cost_s)
    for burst in range(10):
        mine = [at for at in found if burst <= at < burst + 0.5]
        assert mine[0] == burst
        assert len(mine) * cost_s <= 0.2 / SHARE + 0.05 + 8 * cost_s * (burst == 0)
    assert max(waits_s(arrivals, found, cost_s)) <= (SHARE - 1) * cost_s + 1e-9


def test_work_that_fills_the_time_between_needs_no_wait() -> None:
    """The tuples' own time counts, of which the fixed cost is a small part."""
    arrivals = coming(1_000, 10.0)
    found = begun(arrivals, 0.001, each_s=0.0008)
    assert max(waits_s(arrivals, found, 0.0)) < 0.05
    spacing = Spacing()
    spacing.took(0.001, 1.0)
    assert spacing.paid_at < 1.01


def test_a_long_time_without_waits_is_not_paid_for_later() -> None:
    spacing = Spacing()
    for number in range(1_000):
        spacing.took(0.002, number * 0.002)
    assert spacing.paid_at == pytest.approx(999 * 0.002 + (SHARE - 1) * 0.002)
