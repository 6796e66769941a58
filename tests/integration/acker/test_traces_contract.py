"""Tracebacks in ``Metrics``, run over both backends."""

from __future__ import annotations

import json
import uuid
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from tiercel.acker.metrics.contract import (
    OTHER_KINDS,
    SLIDING,
    TRACES_KEPT,
    TraceReport,
    kind_of,
    total_of,
    trace_counter,
)
from tiercel.acker.metrics.memory import MemoryMetrics
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.acker.redis.clients import connect_topology

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
    metrics.trace([report()])
    metrics.add("split", 3, {counter: 2})
    metrics.add("split", 4, {counter: 5, trace_counter("KeyError", "a.py:2"): 9})
    metrics.add("count", 5, {counter: 100})
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


ODD = 'count: it\'s "all", "x" \\ 漢字'


def raise_in_new_process(metrics, process, component="split"):
    """Count five errors each of as many kinds as are kept, of classes made up by a process."""
    kinds = [f'E{process}-{number}: "\\" 漢' for number in range(TRACES_KEPT)]
    metrics.trace(
        [report(process, component=component, kind=kind, place='it\'s "\\".py:1') for kind in kinds]
    )
    counters = [trace_counter(kind, 'it\'s "\\".py:1') for kind in kinds]
    metrics.add(component, 3, {**dict.fromkeys(counters, 2), "executed": 500})
    metrics.add(component, 4, dict.fromkeys(counters, 3))
    return counters


def counters_of_kinds(metrics, component="split"):
    return {
        name: count
        for name, count in total_of(metrics.totals(), component).items()
        if kind_of(name) is not None
    }


@pytest.mark.parametrize("component", ["split", ODD, ODD + "\\"])
def test_the_errors_of_forgotten_kinds_are_counted_as_errors_of_other_kinds(metrics, component):
    before = [raise_in_new_process(metrics, process, component) for process in range(4)]
    found = counters_of_kinds(metrics, component)
    assert found == {**dict.fromkeys(before[-1], 5), OTHER_KINDS: 3 * 5 * TRACES_KEPT}
    assert {known.count for known in metrics.traces()} == {5}
    # A process that still raises a forgotten kind.
    metrics.add(component, 3, {before[0][0]: 1, before[3][0]: 1, OTHER_KINDS: 7})
    assert counters_of_kinds(metrics, component) == {
        **found,
        before[3][0]: 6,
        OTHER_KINDS: 3 * 5 * TRACES_KEPT + 8,
    }
    assert total_of(metrics.totals(), component)["executed"] == 4 * 500


def test_a_kind_that_is_remembered_again_is_counted_anew(metrics):
    [forgotten, *_] = raise_in_new_process(metrics, 1)
    raise_in_new_process(metrics, 2)
    kind, place = kind_of(forgotten)
    metrics.trace([report(3, kind=kind, place=place)])
    metrics.add("split", 3, {forgotten: 4})
    assert counters_of_kinds(metrics)[forgotten] == 4
    assert sum(counters_of_kinds(metrics).values()) == 2 * 5 * TRACES_KEPT + 4


def test_a_kind_with_a_long_name_is_counted(metrics):
    long = report(kind="E" * 300, place="p" * 300)
    metrics.trace([long])
    metrics.add("split", 3, {trace_counter(long.kind, long.place): 2})
    assert [known.count for known in metrics.traces()] == [2]


def test_kinds_are_counted_for_all_time_only(metrics):
    raise_in_new_process(metrics, 1)
    for window in SLIDING:
        assert total_of(metrics.over(window).counts, "split") == {"executed": 500}


def test_counters_of_an_older_tiercel_are_bounded_too_when_tasks_are_retired(redis_url):
    name = f"traces-{uuid.uuid4().hex}"
    with (
        closing(RedisMetrics(redis_url, name)) as metrics,
        closing(connect_topology(redis_url, name)) as client,
    ):
        kept, *_ = raise_in_new_process(metrics, 1)
        older = {
            json.dumps(["split", task, trace_counter(kind, "a.py:1")]): 2
            for task in (3, 4)
            for kind in ("One", "Two")
        }
        client.hset(metrics._counts_key, mapping={**older, json.dumps(["split", 3, kept]): 10})
        metrics.retire(lambda _: False)
        found = counters_of_kinds(metrics)
        assert len(found) == TRACES_KEPT + 1
        assert (found[kept], found[OTHER_KINDS]) == (15, 8)
        assert client.hlen(metrics._counts_key) == TRACES_KEPT + 2


def test_they_can_be_cleared(metrics):
    metrics.trace([report()])
    metrics.clear()
    assert metrics.traces() == []
