from datetime import timedelta

from workers.admission import FIRST_BOUND, LARGEST_BOUND, Admission

ADAPTIVE = Admission.for_topology(None, timedelta(seconds=30))
NOW = 1_000.0


def observed(admission, latency_s, *, was_full):
    return admission.observe(NOW - latency_s, NOW, was_full=was_full)


def test_a_bound_that_the_topology_sets_stays():
    fixed = Admission.for_topology(7, timedelta(seconds=30))
    assert observed(observed(fixed, 29.0, was_full=True), 0.001, was_full=True).bound == 7


def test_the_bound_grows_while_trees_complete_quickly_and_it_was_reached():
    assert observed(ADAPTIVE, 0.1, was_full=True).bound > FIRST_BOUND


def test_it_grows_by_as_much_as_the_latency_has_room_for_and_fourfold_at_most():
    bounds = [observed(ADAPTIVE, latency_s, was_full=True).bound for latency_s in (0.0, 0.4, 1.0, 1.9)]
    assert bounds == [2001, 2001, 1001, 527]


def test_a_bound_that_nobody_reached_does_not_grow():
    assert observed(ADAPTIVE, 0.1, was_full=False).bound == FIRST_BOUND


def test_the_bound_shrinks_long_before_the_timeout_and_never_to_nothing():
    admission = observed(ADAPTIVE, 10.1, was_full=False)
    assert admission.bound == FIRST_BOUND // 2
    for round_ in range(50):
        admission = admission.observe(NOW + 30 * round_ + 1, NOW + 30 * round_ + 30, was_full=True)
    assert admission.bound == 1


def test_one_standstill_shrinks_it_once_however_many_outcomes_tell_of_it():
    admission = ADAPTIVE
    for after in range(10):
        admission = admission.observe(NOW - 20, NOW + after, was_full=True)
    assert admission.bound == FIRST_BOUND // 2
    assert admission.observe(NOW + 1, NOW + 1.5, was_full=True).bound > FIRST_BOUND // 2


def test_between_quick_and_slow_the_bound_stays():
    assert observed(ADAPTIVE, 3.0, was_full=True).bound == FIRST_BOUND


def test_a_short_timeout_still_leaves_room_to_grow_in():
    assert observed(Admission.for_topology(None, timedelta(seconds=12)), 1.5, was_full=True).bound > FIRST_BOUND


def test_the_bound_has_an_end():
    admission = ADAPTIVE
    for _ in range(100):
        admission = observed(admission, 0.01, was_full=True)
    assert admission.bound == LARGEST_BOUND
