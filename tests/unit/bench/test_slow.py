"""Slow work in the benchmark: what is published, what counts, and what a point of the curve is."""

import json
from collections import Counter
from typing import ClassVar

import numpy as np
import pytest
import redis

from bench.rig import BenchError
from bench.slow.amount import Slow
from bench.slow.beside import _first_of_task_zero, beside_of
from bench.slow.curve import messages_of_point
from bench.slow.drain import check_executions
from bench.topologies.slow import SLOW, FirstTimeError, SlowShape, slow, slow_bodies, slow_body
from tests.support.pump import Pump


class FakeRedis:
    """Counts as Redis does."""

    executions: ClassVar[Counter[int]] = Counter()

    def hincrby(self, _key, field, amount):
        self.executions[field] += amount
        return self.executions[field]

    def close(self):
        pass


@pytest.fixture
def slow_topology(monkeypatch):
    def made(**shape):
        monkeypatch.setenv(SLOW, SlowShape(**shape).environment()[SLOW])
        monkeypatch.setattr(redis.Redis, "from_url", lambda _url: FakeRedis())
        FakeRedis.executions = Counter()
        return slow()

    return made


def rows_of(bodies):
    fields = ("number", "work_ms", "raises")
    return [tuple(json.loads(body)[field] for field in fields) for body in bodies]


def test_one_message_in_so_many_raises_and_only_the_first_time(slow_topology):
    pump = Pump(slow_topology(tasks=4, noted=True))
    rows = rows_of(slow_bodies(40, 0.0, 20))
    roots = pump.feed(*rows)
    pump.run()
    assert sorted(pump.failed) == sorted(
        root for root, row in zip(roots, rows, strict=True) if row[2]
    )
    assert all(FirstTimeError.__name__ in reason for reason in pump.failed.values())
    assert len(pump.acked) == 38
    again = pump.feed(*[row for row in rows if row[2]])
    pump.run()
    assert set(again) <= set(pump.acked)
    check_executions(dict(FakeRedis.executions), 40, 20)


def test_evenly_spread_messages_go_to_each_task_in_turn(slow_topology):
    pump = Pump(slow_topology(tasks=4, even=True))
    pump.feed(*rows_of(slow_bodies(42, 0.0)))
    pump.run()
    by_task = {task: counts["executed"] for task, counts in pump.metrics.totals()["work"].items()}
    assert sorted(by_task.values()) == [10, 10, 11, 11]
    assert len(pump.acked) == 42


@pytest.mark.parametrize(
    "executions",
    [
        {**dict.fromkeys(range(40), 1), 0: 2, 20: 2, 7: 2},
        {**dict.fromkeys(range(40), 1), 0: 2},
        {**dict.fromkeys(range(39), 1), 0: 2, 20: 2},
        {**dict.fromkeys(range(41), 1), 0: 2, 20: 2},
    ],
    ids=["a repeat", "one that did not come again", "one that is missing", "one too many"],
)
def test_a_message_that_was_not_executed_just_as_often_as_needed_spoils_the_run(executions):
    check_executions({**dict.fromkeys(range(40), 1), 0: 2, 20: 2}, 40, 20)
    with pytest.raises(BenchError, match="executed"):
        check_executions(executions, 40, 20)


def latencies(how, number, beside_s):
    """Rows as the probe writes them: the long tuple, those of its task behind
    it, and the others.
    """
    rows = []
    for each in range(600):
        scheduled = 100.0 + each / how.rate
        behind = each % how.tasks == 0 and number <= each <= number + how.rate * how.long_ms / 1000
        done = 100.0 + number / how.rate + how.long_ms / 1000
        rows.append((scheduled, done - scheduled if behind else beside_s))
    return np.array(rows)


def test_what_counts_beside_a_long_tuple_is_what_other_tasks_are_given_meanwhile():
    how = Slow()
    found = beside_of(latencies(how, 200, 0.02), 100.0, how, 200)
    assert found.messages == 150
    assert (found.p50_ms, found.p99_ms, found.max_ms) == pytest.approx((20, 20, 20))


def test_a_long_tuple_that_was_never_at_work_measures_nothing():
    how = Slow()
    rows = latencies(how, 200, 0.02)
    rows[:, 1] = 0.02
    with pytest.raises(BenchError, match="not at work"):
        beside_of(rows, 100.0, how, 200)


def test_the_long_tuple_is_for_the_first_task():
    assert [_first_of_task_zero(number, 4) for number in (200, 201, 203, 204)] == [
        200,
        204,
        204,
        204,
    ]


@pytest.mark.parametrize("work_ms", Slow().curve_ms)
@pytest.mark.parametrize("tasks", Slow().curve_tasks)
def test_a_point_of_the_curve_has_as_many_messages_for_each_task(tasks, work_ms):
    count = messages_of_point(tasks, work_ms, Slow().curve_s)
    assert count % tasks == 0
    assert 2 * tasks <= count <= 40_000
    assert count * work_ms / 1000 / tasks <= Slow().curve_s


def test_the_curve_begins_with_the_slowest_work():
    assert list(Slow().curve_ms) == sorted(Slow().curve_ms, reverse=True)
    assert set(Slow().curve_ms) == {1, 10, 100, 1_000}
    assert (min(Slow().curve_tasks), max(Slow().curve_tasks)) == (1, 16)


def test_a_body_says_what_it_costs():
    assert json.loads(slow_body(7, 1.5, raises=True)) == {
        "number": 7,
        "work_ms": 1.5,
        "raises": True,
    }
