"""Tracebacks in ``Metrics``, run over both backends."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from tiercel.acker.metrics.contract import TRACES_KEPT, TraceReport, trace_counter
from tiercel.acker.metrics.memory import MemoryMetrics
from tiercel.acker.metrics.redis import RedisMetrics

THEN = datetime(2024, 2, 29, 12, 30, 0, 123456, UTC)


@pytest.fixture(params=["memory", "redis"])
def metrics(request):
    if request.param == "memory":
        yield MemoryMetrics()
        return
    made = RedisMetrics(request.getfixturevalue("redis_url"), f"traces-{uuid.uuid4().hex}")
    yield made
    made.close()


def report(second: int = 0, text: str = "Traceback: …", place: str = "a.py:1", **other):
    said = {"component": "split", "task": 3, "kind": "KeyError", "reason": "KeyError: 'x'"}
    at = THEN + timedelta(seconds=second)
    return TraceReport(at=at, place=place, text=text, **{**said, **other})


def test_the_first_report_of_a_kind_stays_and_the_last_time_moves_on(metrics):
    metrics.trace([report(0, "the first\nlines"), report(7, ""), report(5, "another process's")])
    metrics.trace([report(3, "late")])
    [known] = metrics.traces()
    assert known.first == report(0, "the first\nlines")
    assert known.last == THEN + timedelta(seconds=7)


def test_component_exception_and_line_make_a_kind(metrics):
    reports = [
        report(4),
        report(3, component="count"),
        report(2, kind="ValueError"),
        report(1, place="a.py:2"),
        report(0, place=""),
    ]
    metrics.trace(reports)
    assert [known.first for known in metrics.traces()] == reports, "the newest comes first"


def test_a_kind_is_counted_over_all_tasks_exactly(metrics):
    counter = trace_counter("KeyError", "a.py:1")
    metrics.add("split", 3, {counter: 2})
    metrics.add("split", 4, {counter: 5, trace_counter("KeyError", "a.py:2"): 9})
    metrics.add("count", 5, {counter: 100})
    metrics.trace([report()])
    [known] = metrics.traces()
    assert known.count == 7


def test_a_traceback_that_is_told_before_its_count_came_once(metrics):
    metrics.trace([report()])
    assert metrics.traces()[0].count == 1


def test_what_has_no_traceback_yet_is_left_to_the_process_that_has_it(metrics):
    metrics.trace([report(1, "")])
    metrics.trace([])
    assert metrics.traces() == []


def test_any_text_comes_back_as_it_was(metrics):
    odd = report(text="half a pair \ud800\nand \x1b[2J, 漢字", kind="Ü: [x]", place="a b.py:1")
    metrics.trace([odd])
    assert metrics.traces()[0].first == odd


def test_of_many_kinds_those_that_came_last_are_kept(metrics):
    metrics.trace([report(second, place=f"a.py:{second}") for second in range(TRACES_KEPT)])
    metrics.trace([report(1_000, "", place="a.py:0")])
    metrics.trace([report(2_000, place="b.py:1")])
    places = [known.first.place for known in metrics.traces()]
    assert len(places) == TRACES_KEPT
    assert places[:2] == ["b.py:1", "a.py:0"]
    assert "a.py:1" not in places, "it came last the longest ago"


def test_they_can_be_cleared(metrics):
    metrics.trace([report()])
    metrics.clear()
    assert metrics.traces() == []
