from datetime import timedelta

from workers.admission import FIRST_BOUND, LARGEST_BOUND, Admission

ADAPTIVE = Admission.for_topology(None, timedelta(seconds=30))


def test_a_bound_that_the_topology_sets_stays():
    fixed = Admission.for_topology(7, timedelta(seconds=30))
    assert fixed.observe(29.0, was_full=True).observe(0.001, was_full=True).bound == 7


def test_the_bound_grows_while_trees_complete_quickly_and_it_was_reached():
    assert ADAPTIVE.observe(0.1, was_full=True).bound > FIRST_BOUND


def test_it_grows_by_as_much_as_the_latency_has_room_for_and_fourfold_at_most():
    bounds = [ADAPTIVE.observe(latency_s, was_full=True).bound for latency_s in (0.0, 0.4, 1.0, 1.9)]
    assert bounds == [2001, 2001, 1001, 527]


def test_a_bound_that_nobody_reached_does_not_grow():
    assert ADAPTIVE.observe(0.1, was_full=False).bound == FIRST_BOUND


def test_the_bound_shrinks_long_before_the_timeout_and_never_to_nothing():
    admission = ADAPTIVE.observe(10.1, was_full=False)
    assert admission.bound == FIRST_BOUND // 2
    for _ in range(50):
        admission = admission.observe(29.0, was_full=True)
    assert admission.bound == 1


def test_between_quick_and_slow_the_bound_stays():
    assert ADAPTIVE.observe(3.0, was_full=True).bound == FIRST_BOUND


def test_the_bound_has_an_end():
    admission = ADAPTIVE
    for _ in range(100):
        admission = admission.observe(0.01, was_full=True)
    assert admission.bound == LARGEST_BOUND
