import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercel.acker.metrics.contract import bucket_of, cumulative, percentile

LATENCIES = st.floats(1e-3, 1e9)


@given(st.lists(LATENCIES, min_size=1), st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]))
def test_a_percentile_is_within_five_percent(latencies, q):
    counts = Counter(bucket_of(latency) for latency in latencies)
    ranked = sorted(latencies)
    exact = next(latency for at, latency in enumerate(ranked, 1) if at >= q * len(ranked))
    assert percentile(counts, q) == pytest.approx(exact, rel=0.05)


def test_names_are_stable_because_processes_of_several_versions_add_up():
    assert [bucket_of(ms) for ms in (0.5, 1, 450, 30_000)] == [
        f"complete_ms_bucket:{i}" for i in (-8, 0, 64, 108)
    ]


def test_counters_of_several_tasks_add_up_and_others_are_ignored():
    counts = Counter({bucket_of(10): 3, "acked": 1000}) + Counter(
        {bucket_of(10): 1, bucket_of(1000): 1}
    )
    assert percentile(counts, 0.5) == pytest.approx(10, rel=0.05)
    assert percentile(counts, 0.99) == pytest.approx(1000, rel=0.05)


def test_nothing_counted_has_no_percentile():
    assert percentile({"acked": 3}, 0.5) is None
    assert percentile({bucket_of(5): 0}, 0.5) is None


def test_what_is_out_of_range_is_counted_at_its_end():
    assert bucket_of(0) == bucket_of(-1) == bucket_of(1e-4)
    assert bucket_of(float("inf")) == bucket_of(1e9)


def test_cumulative_counts_are_exact_at_their_bounds_and_end_with_all():
    latencies = [0.5, 1.5, 3, 3, 700, 5e5]
    counts = Counter(bucket_of(each) for each in latencies)
    found = cumulative({**counts, "acked": 6})
    assert found[0] == (1.0, 1)
    assert [below for bound, below in found if bound < 4] == [1, 2]
    assert found[-1] == (math.inf, 6)
    assert all(below == sum(latency < bound for latency in latencies) for bound, below in found)
