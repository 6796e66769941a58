"""Counts of all tasks of a component, added up."""

from tiercel.acker.metrics.contract import total_of

COUNTS = {"split": {1: {"acked": 2, "failed": 1}, 2: {"acked": 3}}, "count": {3: {"acked": 7}}}


def test_the_total_of_a_component_is_that_of_all_its_tasks_and_no_others():
    assert total_of(COUNTS, "split") == {"acked": 5, "failed": 1}
    assert COUNTS["split"][1] == {"acked": 2, "failed": 1}


def test_a_component_that_has_counted_nothing_has_a_total_of_nothing():
    assert total_of(COUNTS, "sum")["acked"] == 0
