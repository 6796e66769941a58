"""The contract of ``RateLimits``, run over both backends."""

from __future__ import annotations

import pytest

from tiercel.acker.limits import Grant, Rate

PER_SECOND = Rate(permits=1)
PER_MINUTE = Rate(permits=1, seconds=60)
DAY_S = 86_400.0


def one(limits, task=1, wanted=1, value=b""):
    return limits.take(task, {value: wanted})[value]


def test_a_permit_that_is_there_is_granted_at_once(place):
    assert one(place.open(PER_MINUTE)) == Grant(permits=1, again_ms=None)


def test_without_a_permit_a_task_is_told_when_the_next_one_comes(place):
    limits = place.open(PER_SECOND)
    one(limits)
    grant = one(limits)
    assert grant.permits == 0
    # Besides the permit, the bucket had a tenth of a second of credit.
    assert 500 <= grant.again_ms <= 900
    place.pass_time(grant.again_ms / 1000)
    assert one(limits).permits == 1


def test_who_waits_for_long_is_told_to_come_in_between(place):
    limits = place.open(PER_MINUTE)
    one(limits)
    assert one(limits) == Grant(permits=0, again_ms=10_000)


def test_a_call_gets_one_grant_and_stands_in_line_for_the_rest(place):
    limits = place.open(Rate(permits=100))
    grant = one(limits, wanted=12)
    assert grant.permits == 5
    # Six of the eleven permits of a full bucket are left.
    assert grant.again_ms == 0
    assert one(limits, wanted=7).permits == 5


def test_a_call_never_gets_more_than_it_wants(place):
    assert one(place.open(Rate(permits=1000)), wanted=3) == Grant(permits=3, again_ms=None)


def test_each_value_has_a_bucket_of_its_own(place):
    limits = place.open(PER_MINUTE)
    values = [b"", b"\0", "kölner 🦅".encode(), b"{x}:*", bytes(range(256)) * 40]
    assert limits.take(1, dict.fromkeys(values, 1)) == dict.fromkeys(values, Grant(permits=1))
    assert [one(limits, value=value).permits for value in values] == [0] * 5


def test_many_values_are_asked_for_in_one_call(place):
    limits = place.open(PER_MINUTE)
    wants = {b"%d" % number: 2 for number in range(500)}
    assert limits.take(1, wants) == dict.fromkeys(wants, Grant(permits=1, again_ms=10_000))
    assert limits.take(1, {}) == {}
    limits.give_back(1, {})


def test_tasks_are_served_in_the_order_in_which_they_came(place):
    limits = place.open(PER_SECOND)
    one(limits, task=1)
    waits = [one(limits, task).again_ms for task in (2, 3, 4)]
    assert [round(ms, -3) for ms in waits] == [1000, 2000, 3000]
    place.pass_time(1)
    assert one(limits, task=1).permits == 0
    assert one(limits, task=4).permits == 0
    assert one(limits, task=2).permits == 1
    place.pass_time(1)
    assert [one(limits, task).permits for task in (2, 1, 4, 3)] == [0, 0, 0, 1]


def test_a_new_process_takes_over_the_place_of_its_task(place):
    limits = place.open(PER_SECOND)
    one(limits, task=1)
    one(limits, task=2)
    one(limits, task=3)
    place.pass_time(1)
    anew = place.open(PER_SECOND)
    assert [one(anew, task).permits for task in (3, 2)] == [0, 1]


def test_a_task_that_is_later_than_its_grace_is_passed_over_and_keeps_its_place(place):
    limits = place.open(PER_SECOND)
    for task in (1, 2, 3):
        one(limits, task)
    place.pass_time(1.5)
    assert one(limits, task=3).permits == 1
    one(limits, task=4)
    place.pass_time(1)
    assert [one(limits, task).permits for task in (2, 4)] == [1, 0]


def test_what_is_given_back_another_task_can_take(place):
    limits = place.open(PER_MINUTE)
    one(limits, task=1)
    limits.give_back(1, {b"": 1})
    assert one(limits, task=2) == Grant(permits=1)


def test_a_bucket_never_holds_more_than_when_it_is_full(place):
    limits = place.open(PER_MINUTE)
    limits.give_back(1, {b"": 1000})
    place.pass_time(DAY_S)
    limits.give_back(1, {b"": 1000})
    assert [one(limits).permits for _ in range(3)] == [1, 0, 0]


def test_who_gives_back_leaves_the_line(place):
    limits = place.open(PER_SECOND)
    one(limits, task=1)
    one(limits, task=2)
    limits.give_back(2, {b"": 0})
    assert one(limits, task=3).again_ms <= 900


@pytest.mark.parametrize("jump", [DAY_S, -DAY_S, 400 * DAY_S, -400 * DAY_S, 30, -30])
def test_a_clock_that_jumps_gives_a_full_bucket_at_most_and_takes_no_more(place, jump):
    limits = place.open(PER_SECOND)
    one(limits, task=1)
    one(limits, task=2)
    place.pass_time(jump)
    assert sum(one(limits, task=3).permits for _ in range(3)) <= 1
    limits.give_back(3, {b"": 0})
    place.pass_time(1)
    assert one(limits, task=4).permits == 1


def test_less_than_one_permit_cannot_be_taken_and_less_than_none_not_given_back(place):
    limits = place.open(PER_MINUTE)
    with pytest.raises(ValueError, match="take at least 1 permit"):
        limits.take(1, {b"": 1, b"a": 0})
    with pytest.raises(ValueError, match="the number of permits to give back is negative"):
        limits.give_back(1, {b"": -1})
    assert one(limits).permits == 1
