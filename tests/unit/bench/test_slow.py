"""Slow work in the benchmark: messages published, messages counted, and a point of the curve."""

import json
import time
from collections import Counter
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import redis

from bench.rig import BenchError
from bench.slow.amount import Slow
from bench.slow.beside import beside_of
from bench.slow.curve import messages_of_point
from bench.slow.drain import check_executions
from bench.slow.uneven import KINDS, MEAN_MS, Arrival, arrivals, ideal_s
from bench.topologies.slow import SLOW, FirstTimeError, SlowShape, slow, slow_bodies, slow_body
from tests.support.pump import Pump


class FakeRedis:
    """Redis client that counts as Redis does."""

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
    """Return rows as the probe writes them: the long tuple and the others."""
    return np.array(
        [
            (100.0 + each / how.rate, how.long_ms / 1000 if each == number else beside_s)
            for each in range(600)
        ]
    )


def test_all_other_messages_that_are_due_beside_a_long_tuple_count():
    how = Slow()
    found = beside_of(latencies(how, 200, 0.02), 100.0, how, 200)
    assert found.messages == 200
    assert (found.p50_ms, found.p99_ms, found.max_ms) == pytest.approx((20, 20, 20))


def test_a_long_tuple_that_was_never_at_work_measures_nothing():
    how = Slow()
    rows = latencies(how, 200, 0.02)
    rows[:, 1] = 0.02
    with pytest.raises(BenchError, match="not at work"):
        beside_of(rows, 100.0, how, 200)


@pytest.mark.parametrize("kind", KINDS)
def test_uneven_work_keeps_its_tasks_busy_for_four_fifths_of_the_time(kind):
    schedule = arrivals(kind, 4, 10_000.0)
    work_s = sum(one.work_ms for one in schedule) / 1000
    assert work_s / len(schedule) == pytest.approx(MEAN_MS / 1000, rel=0.05)
    assert work_s / 4 / 10_000 == pytest.approx(0.8, rel=0.05)
    assert schedule == arrivals(kind, 4, 10_000.0)
    assert schedule != arrivals(kind, 4, 10_000.0, seed=2)


def test_the_ideal_queue_gives_a_message_to_the_server_that_is_free_first():
    schedule = [
        Arrival(at_s=0.0, work_ms=10_000),
        *(Arrival(at_s=float(each), work_ms=500) for each in range(1, 5)),
        Arrival(at_s=4.2, work_ms=100),
    ]
    assert ideal_s(schedule, 2) == pytest.approx([10.0, 0.5, 0.5, 0.5, 0.5, 0.4])


def test_a_task_at_half_speed_takes_twice_as_long(slow_topology, monkeypatch):
    slept = []
    # Not ``time.sleep`` itself: threads of libraries call it too.
    monkeypatch.setattr(
        "bench.topologies.slow.time", SimpleNamespace(sleep=slept.append, monotonic=time.monotonic)
    )
    pump = Pump(slow_topology(tasks=2, even=True, half=True))
    pump.feed(*rows_of(slow_bodies(4, 100.0)))
    pump.run()
    assert sorted(slept) == [0.1, 0.1, 0.2, 0.2]


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
