from collections import Counter

from tiercel.acker.metrics.memory import MemoryMetrics
from tiercel.workers.local.run import Progress, describe


def test_nothing_is_said_when_nothing_happened(caplog):
    caplog.set_level("INFO")
    metrics = MemoryMetrics()
    metrics.add("a", 1, {"emitted": 5, "acked": 5})
    progress = Progress(metrics, ["a"], now=0.0)
    metrics.add("a", 1, {"channels": 1})
    progress.look(now=10.0)
    assert caplog.messages == []


def test_the_first_rate_counts_nothing_that_earlier_runs_did(caplog):
    caplog.set_level("INFO")
    metrics = MemoryMetrics()
    metrics.add("a", 1, {"emitted": 4_180, "acked": 4_180})
    progress = Progress(metrics, ["a"], now=0.0)
    metrics.add("a", 1, {"emitted": 20, "acked": 20})
    progress.look(now=10.0)
    assert caplog.messages == ["4,200 acked (2 per second), 0 failed, 0 in flight"]


def test_a_machine_that_slept_for_minutes_gets_one_line_afterwards(caplog):
    caplog.set_level("INFO")
    metrics = MemoryMetrics()
    progress = Progress(metrics, ["a"], now=0.0)
    for now in (300.0, 300.5, 301.0, 309.5, 310.0):
        metrics.add("a", 1, {"emitted": 100, "acked": 100})
        if progress.is_due(now):
            progress.look(now)
    assert caplog.messages == [
        "100 acked (0 per second), 0 failed, 0 in flight",
        "500 acked (40 per second), 0 failed, 0 in flight",
    ]


def test_messages_of_a_killed_worker_do_not_stay_in_flight(caplog):
    caplog.set_level("INFO")
    metrics = MemoryMetrics()
    reported = [92, 40, 0, 0]
    progress = Progress(metrics, ["a"], 0.0, lambda: reported.pop(0))
    # The worker was killed before it could count the outcomes of 92 messages.
    metrics.add("a", 1, {"emitted": 92})
    for now in (10.0, 20.0, 30.0, 40.0):
        progress.look(now)
    assert [line.rpartition(", ")[2] for line in caplog.messages] == [
        "92 in flight",
        "40 in flight",
        "0 in flight",
    ]


def test_the_rate_is_that_of_the_time_since_the_last_look():
    before = Counter(emitted=100, acked=100)
    now = Counter(emitted=1_400, acked=1_300, failed=20)
    assert describe(before, now, 10) == "1,300 acked (120 per second), 20 failed, 80 in flight"


def test_counters_that_redis_lost_make_no_negative_rate():
    before = Counter(emitted=300, acked=300)
    assert describe(before, Counter(failed=1), 10).startswith("0 acked (0 per second), 1 failed")
    assert describe(before, Counter(emitted=20, acked=20), 10).startswith("20 acked (2 per second)")


def test_what_is_rare_is_said_only_when_it_happened():
    now = Counter(emitted=10, acked=1, failed=2, timeout=2, released=3, rejected=4)
    assert (
        describe(Counter(), now, 1)
        == "1 acked (1 per second), 2 failed, 2 timeout, 3 released, 4 rejected, 4 in flight"
    )


def test_the_tasks_of_all_spouts_are_added_up(caplog):
    caplog.set_level("INFO")
    metrics = MemoryMetrics()
    progress = Progress(metrics, ["a", "b"], now=0.0)
    metrics.add("a", 1, {"emitted": 2, "acked": 2})
    metrics.add("b", 2, {"emitted": 1, "acked": 1})
    metrics.add("bolt", 3, {"acked": 50})
    progress.look(now=3.0)
    progress.look(now=6.0)
    assert caplog.messages == ["3 acked (1 per second), 0 failed, 0 in flight"]
