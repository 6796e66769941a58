from collections import Counter

from tiercel.acker.metrics.memory import MemoryMetrics
from tiercel.workers.local.run import Progress, describe


def test_nothing_is_said_when_nothing_happened():
    counts = Counter(emitted=5, acked=5)
    assert describe(counts, counts + Counter(channels=1), 10) is None


def test_the_rate_is_that_of_the_time_since_the_last_look():
    before = Counter(emitted=100, acked=100)
    now = Counter(emitted=1_400, acked=1_300, failed=20)
    assert describe(before, now, 10) == "1,300 acked (120 per second), 20 failed, 80 in flight"


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
