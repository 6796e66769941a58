"""Pace of a spout task: how often it sends, and how long it rests."""

import pytest

from tiercel.workers.spout.loop import Pace


def test_after_a_pause_the_first_tuple_leaves_at_once_and_then_there_is_time_for_company():
    pace = Pace()
    assert pace.may_begin(100.0)
    pace.began(100.0)
    assert not pace.may_begin(100.009)
    assert pace.may_begin(100.01)


def test_whoever_must_not_begin_yet_rests_until_he_may():
    pace = Pace()
    pace.began(100.0)
    assert pace.rest_s(100.004) == pytest.approx(0.006)


def test_an_idle_spout_is_asked_less_and_less_often_until_something_happens():
    pace = Pace()
    assert [pace.rest_s(100.0) for _ in range(5)] == [0.02, 0.04, 0.08, 0.1, 0.1]
    pace.worked()
    assert pace.rest_s(100.0) == 0.02


def test_where_sending_takes_long_batches_are_larger_but_never_late():
    pace = Pace()
    for _ in range(50):
        pace.sent(0.003)
    pace.began(100.0)
    assert pace.rest_s(100.0) == pytest.approx(0.012, abs=0.001)
    pace.sent(60.0)
    pace.began(200.0)
    assert pace.may_begin(200.05)
