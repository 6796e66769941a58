"""A bound that grows where trees are quick, against tasks of which the throughput is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercel.workers.spout.growth import Growth

LEAST = 16
CHEAPER_S = 0.1


def steady_bound(growth, needed, fixed_s=0.02, rounds=60, bound=2):
    """The bound after so many rounds: ``needed`` in flight keep all tasks busy, and
    take ``fixed_s``.
    """
    for number in range(rounds):
        latency_s = fixed_s * max(1.0, bound / needed)
        bound = growth.judged(bound, 8.0, latency_s, float(number))
    return bound


@given(st.integers(2, 20_000), st.sampled_from([0.02, 0.1, 0.2]))
def test_it_ends_near_what_is_needed_and_never_far_below_it(needed, fixed_s):
    bound = steady_bound(Growth(LEAST, CHEAPER_S), needed, fixed_s)
    cheaper = max(1.0, CHEAPER_S / fixed_s)
    assert 0.6 * needed <= bound <= max(2 * LEAST, 4 * needed * cheaper)


def test_steps_may_become_larger_where_the_latency_hides_what_that_saves():
    assert steady_bound(Growth(LEAST, CHEAPER_S), 100, 0.01) >= 500


def test_with_more_bolts_in_a_row_they_may_become_larger_for_longer():
    assert steady_bound(Growth(LEAST, 0.4), 100, 0.01) > 2 * steady_bound(
        Growth(LEAST, CHEAPER_S), 100, 0.01
    )


def test_fast_work_is_reached_in_a_few_rounds():
    assert steady_bound(Growth(LEAST, CHEAPER_S), 10_000, rounds=5) >= 5_000


def test_one_slow_round_takes_nothing_for_long():
    growth = Growth(LEAST, CHEAPER_S)
    bound = steady_bound(growth, 1_000, rounds=4)
    bound = growth.judged(bound, 8.0, 0.5, 4.0)
    for number in range(5, 40):
        bound = growth.judged(bound, 8.0, 0.02 * max(1.0, bound / 1_000), float(number))
    assert bound >= 700


@pytest.mark.parametrize("bound", [2, 4, 8, 16])
def test_few_always_become_more(bound):
    growth = Growth(LEAST, CHEAPER_S)
    growth.judged(1, 2.0, 0.01, 0.0)
    assert growth.judged(bound, 2.0, 100.0, 1.0) > bound
