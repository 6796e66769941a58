"""What ``Metrics`` promises, held against both backends."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from acker import ErrorReport, LedgerUnavailableError, MemoryMetrics, RedisMetrics

THEN = datetime(2024, 2, 29, 12, 30, 0, 123456, UTC)


@pytest.fixture(params=["memory", "redis"])
def metrics(request):
    if request.param == "memory":
        yield MemoryMetrics()
        return
    made = RedisMetrics(request.getfixturevalue("redis_url"), f"metrics-{uuid.uuid4().hex}")
    yield made
    made.close()


def error(number: int = 0, message: str = "boom") -> ErrorReport:
    return ErrorReport(at=THEN + timedelta(seconds=number), component="split", task=3, message=message)


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
    metrics.report([error(number) for number in range(700)])
    metrics.report([error(number) for number in range(700, 1400)])
    kept = metrics.errors(limit=5000)
    assert len(kept) == 1000
    assert (kept[0], kept[-1]) == (error(1399), error(400))


def test_everything_can_be_cleared(metrics):
    metrics.add("split", 1, {"executed": 2})
    metrics.report([error()])
    metrics.clear()
    assert metrics.totals() == {}
    assert metrics.errors() == []


def test_a_server_that_is_away_is_an_error_of_ours(redis):
    server = redis()
    metrics = RedisMetrics(server.url, "t")
    server.stop()
    with pytest.raises(LedgerUnavailableError, match="cannot count"):
        metrics.add("split", 1, {"executed": 1})
    metrics.close()
