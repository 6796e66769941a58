"""Pace of a spout task: how often it sends, and how long it rests."""

import pytest

from tiercel.workers.spout.loop import Pace


def test_at_a_low_rate_no_batch_waits_for_company():
    pace = Pace()
    for number in range(100):
        now = 100.0 + number * 0.01
        assert pace.may_begin(now)
        pace.sent(0.002, now + 0.002)


def test_batches_that_follow_each_other_take_a_part_of_the_time_and_the_task_rests_between():
    pace = Pace()
    now = 100.0
    for _ in range(100):
        now += 0.003
        pace.sent(0.003, now)
        now += pace.rest_s(now) if not pace.may_begin(now) else 0.0
    pace.sent(0.003, now + 0.003)
    # A batch begins five times its cost after the previous one.
    assert not pace.may_begin(now + 0.014)
    assert pace.rest_s(now + 0.004) == pytest.approx(0.011, abs=0.0001)
    assert pace.may_begin(now + 0.0151)


def test_after_a_refused_batch_there_is_a_pause_however_little_it_cost():
    pace = Pace()
    pace.sent(0.0, 100.0, refused=True)
    assert not pace.may_begin(100.009)
    assert pace.rest_s(100.004) == pytest.approx(0.006)
    assert pace.may_begin(100.01)


def test_an_idle_spout_is_asked_less_and_less_often_until_something_happens():
    pace = Pace()
    assert [pace.rest_s(100.0) for _ in range(5)] == [0.02, 0.04, 0.08, 0.1, 0.1]
    pace.worked()
    assert pace.rest_s(100.0) == 0.02


def test_where_sending_takes_long_batches_are_larger_but_never_late():
    pace = Pace()
    now = 100.0
    for _ in range(50):
        now += 0.008
        pace.sent(0.008, now)
    assert pace.rest_s(now) == pytest.approx(0.032, abs=0.001)
    pace.sent(60.0, now + 60)
    assert pace.may_begin(now + 60.0501)
