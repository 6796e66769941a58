"""What ``Metrics`` promises, held against both backends."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from acker import ErrorReport, LedgerUnavailableError, MemoryMetrics, RedisMetrics

THEN = datetime(2024, 2, 29, 12, 30, 0, 123456, UTC)


@pytest.fixture(params=["memory", "redis"])
def metrics(request):
    """Its windows last for as long as a test, if that is ten seconds."""
    if request.param == "memory":
        yield MemoryMetrics()
        return
    made = RedisMetrics(request.getfixturevalue("redis_url"), f"metrics-{uuid.uuid4().hex}")
    yield made
    made.close()


def error(number: int = 0, message: str = "boom", task: int = 3) -> ErrorReport:
    return ErrorReport(at=THEN + timedelta(seconds=number), component="split", task=task, message=message)


def test_counters_add_up_by_component_and_task(metrics):
    metrics.add("split", 1, {"executed": 2, "acked": 1})
    metrics.add("split", 1, {"executed": 3})
    metrics.add("split", 2, {"executed": 1})
    metrics.add('count: it\'s "all" 漢字', 3, {"complete_ms_bucket:-3": 7})
    metrics.add("idle", 9, {})
    assert metrics.totals() == {
        "split": {1: {"executed": 5, "acked": 1}, 2: {"executed": 1}},
        'count: it\'s "all" 漢字': {3: {"complete_ms_bucket:-3": 7}},
    }


def test_errors_come_newest_first(metrics):
    metrics.report([error(1), error(2)])
    metrics.report([])
    metrics.report([error(3, "naïve 🦅")])
    assert metrics.errors() == [error(3, "naïve 🦅"), error(2), error(1)]
    assert metrics.errors(limit=1) == [error(3, "naïve 🦅")]
    assert metrics.errors(limit=0) == []


def test_a_message_keeps_its_first_500_characters(metrics):
    metrics.report([error(message="é" * 501)])
    assert metrics.errors()[0].message == "é" * 500


def test_the_newest_thousand_errors_are_kept(metrics):
    metrics.report([error(number, task=number) for number in range(700)])
    metrics.report([error(number, task=number) for number in range(700, 1400)])
    kept = metrics.errors(limit=5000)
    assert len(kept) == 1000
    assert (kept[0], kept[-1]) == (error(1399, task=1399), error(400, task=400))


def test_of_one_task_the_first_five_errors_of_a_window_are_kept_and_others_do_not_count(metrics):
    metrics.report([error(number) for number in range(3)])
    metrics.report([*(error(number, task=4) for number in range(7)), *(error(number) for number in range(3, 9))])
    metrics.report([error(9), error(9, task=5)])
    kept = metrics.errors()[::-1]
    assert [each for each in kept if each.task == 3] == [error(number) for number in range(5)]
    assert [each for each in kept if each.task == 4] == [error(number, task=4) for number in range(5)]
    assert [each for each in kept if each.task == 5] == [error(9, task=5)]


def test_two_processes_of_one_task_share_its_window(redis_url):
    name = f"metrics-{uuid.uuid4().hex}"
    one, two = RedisMetrics(redis_url, name), RedisMetrics(redis_url, name)
    for number in range(4):
        for metrics in (one, two):
            metrics.report([error(number)])
    assert len(one.errors()) == 5
    one.close()
    two.close()


def test_after_ten_seconds_a_task_may_report_again_in_memory():
    now = [100.0]
    metrics = MemoryMetrics(lambda: now[0])
    metrics.report([error(number) for number in range(6)])
    now[0] += 9.9
    metrics.report([error(20)])
    assert len(metrics.errors()) == 5
    now[0] += 0.1
    metrics.report([error(number) for number in range(30, 36)])
    assert metrics.errors()[:5] == [error(number) for number in range(34, 29, -1)]


def test_after_ten_seconds_a_task_may_report_again_in_redis(redis_url):
    metrics = RedisMetrics(redis_url, f"metrics-{uuid.uuid4().hex}")
    metrics.report([error(number) for number in range(6)])
    task, window = next(iter(metrics._client.hgetall(metrics._windows_key).items()))
    began, count = map(int, window.split())
    metrics._client.hset(metrics._windows_key, task, f"{began - 5_000} {count}")
    metrics.report([error(20)])
    assert len(metrics.errors()) == 5
    metrics._client.hset(metrics._windows_key, task, f"{began - 10_000} {count}")
    metrics.report([error(number) for number in range(30, 36)])
    assert metrics.errors()[:5] == [error(number) for number in range(34, 29, -1)]
    metrics._client.hset(metrics._windows_key, task, f"{began + 3_600_000} {count}")
    metrics.report([error(40)])
    assert metrics.errors(1) == [error(40)], "a server's clock may be put back"
    metrics.close()


def test_everything_can_be_cleared(metrics):
    metrics.add("split", 1, {"executed": 2})
    metrics.report([error()])
    metrics.clear()
    assert metrics.totals() == {}
    assert metrics.errors() == []
    metrics.report([error(number) for number in range(5)])
    assert len(metrics.errors()) == 5


def test_a_server_that_is_away_is_an_error_of_ours(redis):
    server = redis()
    metrics = RedisMetrics(server.url, "t")
    server.stop()
    with pytest.raises(LedgerUnavailableError, match="cannot count"):
        metrics.add("split", 1, {"executed": 1})
    metrics.close()
