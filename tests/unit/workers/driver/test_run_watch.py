"""The driver's verdict on a run."""

from __future__ import annotations

import pytest

from tiercel.acker.inbox.contract import InboxFigures
from tiercel.workers.driver.run_watch import (
    START_S,
    SURE_LOOKS,
    UNATTENDED_S,
    Absences,
    Ended,
    Width,
    healthy,
    missing_tasks,
    pause_s,
)


def missing(age_s, **seen_s):
    """Return the missing of the tasks last seen this many seconds ago; None means never."""
    figures = {
        int(task[1:]): InboxFigures(
            tuples=0, bytes=0, adopted=True, oldest_s=0.0, attempts=1, seen_s=seen
        )
        for task, seen in seen_s.items()
    }
    return missing_tasks(figures, UNATTENDED_S, age_s)


def test_a_task_that_was_seen_lately_is_attended():
    assert missing(1000.0, t1=0.0, t2=UNATTENDED_S) == ()


def test_a_task_that_was_seen_and_is_gone_is_missing_however_young_the_run():
    assert missing(0.0, t1=0.0, t2=UNATTENDED_S + 1) == (2,)


def test_a_task_that_was_never_seen_has_the_time_of_a_start():
    seen = {"t1": None, "t2": 0.0, "t3": UNATTENDED_S + 1}
    assert missing(START_S, **seen) == (3,)
    assert missing(START_S + 1, **seen) == (3, 1)


def test_a_task_is_surely_missing_when_look_after_look_finds_it_so():
    absences = Absences()
    found = [absences.looked((1, 2)) for _ in range(SURE_LOOKS)]
    assert found == [()] * (SURE_LOOKS - 1) + [(1, 2)]


def test_a_task_that_a_look_finds_again_is_not_missing():
    absences = Absences()
    for _ in range(SURE_LOOKS - 1):
        absences.looked((1, 2))
    assert absences.looked((2,)) == (2,)
    assert absences.looked((1, 2)) == (2,)


@pytest.mark.parametrize(
    ("ended", "lasted_s", "is_healthy"),
    [
        (Ended.FAILED, 1.0, False),
        (Ended.LOST, 1.0, False),
        (Ended.FAILED, 31.0, True),
        (Ended.LOST, 31.0, True),
        # Its own patience alone is longer than that.
        (Ended.UNATTENDED, 3600.0, False),
    ],
)
def test_a_run_that_lasted_makes_good_for_those_that_failed(ended, lasted_s, is_healthy):
    assert healthy(ended, lasted_s) is is_healthy


def test_each_failure_in_a_row_has_a_longer_pause_up_to_ten_seconds():
    pauses = [pause_s(failures) for failures in range(1, 20)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.5, 10.0)


class Hosts:
    free = 0


def returns_after(width, hosts, began=0.0, until=200.0):
    """Return the seconds after which a new run is planned; None if it is not."""
    now = began
    while now < until:
        if width.may_return(hosts, now):
            return now - began
        now += 1.0
    return None


def test_a_run_with_all_the_slots_it_ever_had_is_left_alone():
    width = Width()
    hosts = Hosts()
    width.began(2, of=8)
    hosts.free = 4
    assert returns_after(width, hosts) is None, "new executors are the operator's decision"


def test_slots_that_were_lost_are_used_again_when_they_are_surely_there():
    width = Width()
    hosts = Hosts()
    width.began(2, of=8)
    width.began(1, of=8)
    assert returns_after(width, hosts) is None
    hosts.free = 1
    assert 5 <= returns_after(width, hosts, 200.0, 400.0) <= 20
    width.began(2, of=8)
    assert returns_after(width, hosts, 400.0, 500.0) is None


def test_an_executor_that_comes_and_goes_is_not_worth_a_new_run():
    width = Width()
    hosts = Hosts()
    width.began(2, of=8)
    width.began(1, of=8)
    for now in range(200):
        hosts.free = now // 5 % 2
        assert not width.may_return(hosts, float(now))


def test_fewer_bolt_tasks_need_fewer_slots():
    width = Width()
    hosts = Hosts()
    width.began(4, of=8)
    width.began(2, of=2)
    hosts.free = 2
    assert returns_after(width, hosts) is None
