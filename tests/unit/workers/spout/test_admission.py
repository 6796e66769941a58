from datetime import timedelta

import pytest

from tiercel.workers.spout.admission import FIRST_BOUND, LARGEST_BOUND, UNPROVEN_BOUND, Admission

TIMEOUT = timedelta(seconds=30)


def adaptive(bound=None, timeout=TIMEOUT):
    admission = Admission.for_topology(None, timeout)
    if bound is not None:
        admission._bound = bound
    return admission


def round_of(admission, latency_s, now=1_000.0, done=None):
    """The bound is filled at ``now``, and this many of its tuples complete at one time;
    returns when that was.
    """
    count = admission.bound
    admission.emitted(count, now)
    admission.reached(now, now)
    admission.completed({now: count if done is None else done}, now + latency_s)
    return now + latency_s


def test_a_bound_that_the_topology_sets_stays():
    fixed = Admission.for_topology(7, TIMEOUT)
    now = round_of(fixed, 0.001)
    fixed.overdue(7, now, now + 30)
    fixed.look(now + 31, 7, 7, now)
    assert fixed.bound == 7


@pytest.mark.parametrize(("latency_s", "bound"), [(0.01, 16), (0.5, 8), (1.0, 4), (1.5, 3)])
def test_it_grows_by_as_much_as_the_latency_has_room_for_and_eightfold_at_most(latency_s, bound):
    admission = adaptive()
    round_of(admission, latency_s)
    assert admission.bound == bound


@pytest.mark.parametrize(("depth", "least", "most"), [(1, 64, 1_000), (8, 1_000, 8_000)])
def test_trees_of_more_bolts_in_a_row_may_take_longer_before_growth_must_pay(depth, least, most):
    admission = Admission.for_topology(None, TIMEOUT, depth)
    now = 1_000.0
    for _ in range(20):
        # All tasks are busy: so many times as many take so many times as long.
        now = round_of(admission, admission.bound / 10_000, now)
    assert least < admission.bound < most


def test_a_bound_that_was_not_reached_does_not_grow():
    admission = adaptive()
    for now in range(100):
        admission.emitted(1, now)
        admission.completed({float(now): 1}, now + 0.01)
    assert admission.bound == FIRST_BOUND


def test_those_that_are_done_first_do_not_make_it_grow():
    admission = adaptive(100)
    now = round_of(admission, 0.01, done=50)
    assert admission.bound == 100
    admission.completed({1_000.0: 47}, now)
    assert admission.bound == 100
    admission.completed({1_000.0: 1}, now)
    assert admission.bound == 800


def test_outcomes_of_what_was_emitted_under_another_bound_do_not_count():
    admission = adaptive()
    now = round_of(admission, 0.01)
    grown = admission.bound
    for _ in range(100):
        admission.completed({1_000.0: grown}, now + 1)
    assert admission.bound == grown


def test_a_larger_bound_that_makes_trees_slower_in_proportion_is_taken_back():
    admission = adaptive(10)
    now = round_of(admission, 4.0)
    assert admission.bound == 15
    now = round_of(admission, 6.0, now + 1)
    assert admission.bound == 10
    now = round_of(admission, 4.0, now + 1)
    assert admission.bound == 10, "for a while it is not tried again"
    round_of(admission, 4.0, now + 200)
    assert admission.bound == 15


def test_a_larger_bound_that_makes_them_hardly_slower_stays():
    admission = adaptive(10)
    now = 0.0
    for expected in (15, 22, 33):
        now = round_of(admission, 4.0, now + 1)
        assert admission.bound == expected


@pytest.mark.parametrize("sign", ["a timeout", "a late outcome", "a slow tree", "an old head"])
def test_every_sign_that_too_much_is_in_flight_shrinks_it_to_what_is_completed(sign):
    admission = adaptive(500)
    admission.emitted(500, 0.0)
    for now in range(1, 40):
        admission.completed({0.0: 2}, float(now) / 2)
    assert admission.bound == 500
    if sign == "a slow tree":
        admission.completed({0.0: 1}, 21.1)
    elif sign == "an old head":
        admission.look(21.1, 400, 400, 0.0)
    else:
        admission.overdue(1, 0.0, 21.1)
    assert admission.bound in range(15, 20), "some 3.6 per second: five seconds of work"


def test_one_standstill_shrinks_it_once_however_many_outcomes_tell_of_it():
    admission = adaptive(500)
    admission.look(30.0, 500, 500, 0.0)
    assert admission.bound == 125
    for now in range(31, 60):
        admission.overdue(10, 0.0, float(now))
        admission.completed({0.0: 10}, float(now))
        admission.look(float(now), 500, 0, 0.0)
    assert admission.bound == 125


def test_a_tuple_that_was_overtaken_is_slow_by_itself():
    admission = adaptive(500)
    for now in range(40):
        admission.emitted(20, float(now))
        admission.completed({float(now): 19}, now + 0.1)
        admission.look(float(now), 300, 1 if now > 21 else 0, 0.0)
    admission.overdue(1, 0.0, 40.0)
    admission.completed({1.0: 1}, 40.0)
    assert admission.bound == 500
    admission.look(41.0, 300, 60, 0.0)
    assert admission.bound < 500, "unless there are many like it"


def test_the_bound_shrinks_long_before_the_timeout_and_never_to_nothing():
    admission = adaptive(64)
    admission.look(21.0, 64, 64, 0.0)
    assert admission.bound < 64
    for now in range(30, 900, 30):
        admission.emitted(2, float(now))
        admission.completed({float(now): 1}, now + 20.0)
        admission.overdue(1, float(now), now + 30.0)
        assert 1 <= admission.bound <= UNPROVEN_BOUND


def test_a_bound_that_nothing_came_near_for_a_minute_is_forgotten():
    admission = adaptive(5_000)
    for now in range(62):
        admission.look(float(now), 30, 0, float(now))
    assert admission.bound == 60
    for now in range(62, 200):
        admission.look(float(now), 0, 0, float(now))
    assert admission.bound == UNPROVEN_BOUND


def test_a_short_timeout_still_leaves_room_to_grow_in():
    admission = adaptive(timeout=timedelta(seconds=6))
    round_of(admission, 0.4)
    assert admission.bound > FIRST_BOUND


def test_the_bound_has_an_end():
    admission = adaptive()
    now = 0.0
    for _ in range(100):
        now = round_of(admission, 0.01, now + 1)
    assert admission.bound == LARGEST_BOUND


def test_a_tuple_whose_bolt_began_its_timeout_again_is_no_sign_and_no_reason_to_grow():
    admission = adaptive()
    admission.emitted(2, 0.0)
    admission.reached(0.0, 0.0)
    admission.completed({0.0: 2}, 60.0, {55.0: 2})
    assert admission.bound == FIRST_BOUND


@pytest.mark.parametrize("way", ["given back", "timed out", "failed"])
def test_a_round_waits_for_no_tuple_that_left_without_an_outcome(way):
    admission = adaptive(100)
    admission.emitted(100, 0.0)
    admission.reached(0.0, 0.0)
    admission.completed({0.0: 50}, 0.01)
    for _ in range(49):
        if way == "failed":
            admission.failed(0.0, 0.02)
        else:
            admission.left({0.0: 1}, 0.02)
    assert admission.bound == 800


def test_a_round_that_nothing_is_left_of_says_nothing_and_the_next_one_is_judged():
    admission = adaptive(100)
    admission.emitted(100, 0.0)
    admission.reached(0.0, 0.0)
    admission.left({0.0: 100}, 30.0)
    assert admission.bound == 100
    round_of(admission, 0.01)
    assert admission.bound == 800


def test_tuples_that_fail_let_a_small_bound_grow_to_sixteen():
    admission = adaptive()
    now = 0.0
    for _ in range(10):
        count = admission.bound
        admission.emitted(count, now)
        admission.reached(now, now)
        for _ in range(count):
            admission.failed(now, now + 0.01)
        now += 0.02
    assert admission.bound == UNPROVEN_BOUND
