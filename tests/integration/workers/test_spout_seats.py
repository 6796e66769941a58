"""The seats of spout tasks, on the memory twin of presence and on Redis."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tiercel.spark_jobs.whereabouts import Whereabouts
from tiercel.workers.control.presence import LASTS, NEW, Presence, SpoutSeats

TASKS = range(3, 6)
WORKING = Presence(active=True, pending=7, oldest_s=1.25, in_back_off=3)


@pytest.fixture
def tasks(seats):
    made = SpoutSeats(seats.presences())
    yield made
    made.close()


def test_each_worker_gets_a_task_of_its_own_until_there_are_none_left(seats):
    workers = [SpoutSeats(seats.presences()) for _ in range(4)]
    found = [worker.take(str(number), TASKS) for number, worker in enumerate(workers)]
    assert found == [3, 4, 5, None]


def test_a_task_whose_worker_reports_stays_and_one_whose_worker_is_silent_is_free(seats, tasks):
    assert (tasks.take("a", TASKS), tasks.take("b", TASKS)) == (3, 4)
    seats.expire(LASTS.total_seconds() - 2)
    assert tasks.report("a", 3, WORKING)
    seats.expire(3)
    assert tasks.present(TASKS) == {3: WORKING}
    assert tasks.take("c", TASKS) == 4
    assert tasks.report("a", 3, WORKING)
    assert not tasks.report("b", 4, WORKING)


def test_a_task_that_lapsed_is_its_workers_again_if_no_other_took_it(seats, tasks):
    tasks.take("a", TASKS)
    seats.expire(LASTS.total_seconds() + 1)
    assert tasks.present(TASKS) == {}
    assert tasks.report("a", 3, WORKING)
    assert tasks.take("b", TASKS) == 4


def test_a_worker_says_where_it_runs(seats):
    place = Whereabouts(host="node-3", pid=17, since=datetime(2024, 1, 1, tzinfo=UTC))
    placed = SpoutSeats(seats.presences(), place)
    placed.report("a", 3, WORKING)
    assert placed.present(TASKS) == {3: replace(WORKING, whereabouts=place)}
    placed.close()


def test_a_worker_leaves_its_own_task_only(tasks):
    tasks.take("a", TASKS)
    tasks.leave("b", 3)
    assert tasks.take("b", TASKS) == 4
    for _ in range(2):
        tasks.leave("a", 3)
        assert tasks.present(TASKS) == {4: NEW}
    assert tasks.take("c", TASKS) == 3


def test_a_worker_that_lost_its_task_takes_the_presence_of_the_new_one_nowhere(tasks):
    tasks.report("late", 3, WORKING)
    assert tasks.report("told", 3, NEW, by_force=True)
    assert not tasks.report("late", 3, WORKING)
    tasks.leave("late", 3)
    assert tasks.present(TASKS) == {3: NEW}


def test_a_repeated_call_changes_nothing(tasks):
    assert tasks.take("a", range(3, 4)) == 3
    assert tasks.take("a", range(3, 4)) == 3
    assert tasks.report("a", 3, WORKING)
    assert tasks.report("a", 3, WORKING)
    assert tasks.present(range(0)) == {}
