"""Decisions about messages that failed."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercel.queues.retry import (
    NO_WAIT,
    BrokerLimit,
    GiveUp,
    RequeueAfter,
    RetryPolicy,
    delivered_before,
    next_action,
)

POLICY = RetryPolicy(first=timedelta(seconds=1), longest=timedelta(seconds=5))


def test_the_wait_doubles_up_to_the_longest():
    waits = [next_action(count, POLICY, 20).after_s for count in range(5)]
    assert waits == [1, 2, 4, 5, 5]


def test_the_last_failure_leads_to_the_dead_letters():
    assert next_action(2, POLICY, 3) == RequeueAfter(4)
    assert next_action(3, POLICY, 3) == GiveUp()
    assert next_action(4, POLICY, 3) == GiveUp()


def test_without_a_wait_it_goes_back_at_once():
    assert next_action(7, NO_WAIT, 20) == RequeueAfter(0)


@pytest.mark.parametrize("wait", [1, 0.2, "1s", None, timedelta(seconds=-1)])
@pytest.mark.parametrize("name", ["first", "longest"])
def test_a_wait_that_is_no_time_is_refused_where_it_is_written(name, wait):
    with pytest.raises(ValueError, match=f"timedelta of at least 0 as {name}"):
        RetryPolicy(**{name: wait})


@given(st.integers(0, 10**12))
def test_no_count_overflows(count):
    assert 0 <= next_action(count, POLICY, 10**13).after_s <= 5


@pytest.mark.parametrize(
    ("what", "headers", "count"),
    [
        ("3.10 to 4.2 count every delivery", {"x-delivery-count": 3}, 3),
        ("4.3 after failures and one give-back", {"x-delivery-count": 3, "x-acquired-count": 4}, 3),
        ("4.3 after a give-back alone", {"x-acquired-count": 1}, 0),
        (
            "4.3 after a give-back, and a count that came with the message",
            {"x-acquired-count": 1, "x-delivery-count": 50},
            1,
        ),
        ("a classic queue", {}, None),
        ("a classic queue, without headers", None, None),
        ("a classic queue, and a sly sender", {"x-delivery-count": "many"}, None),
    ],
)
def test_the_count_of_a_redelivered_message_is_the_brokers(what, headers, count):
    assert delivered_before(headers, redelivered=True, counts=True) == count


@pytest.mark.parametrize("headers", [None, {}, {"x-delivery-count": 2, "x-acquired-count": 3}])
def test_a_classic_queue_has_no_count_whatever_its_headers_say(headers):
    assert delivered_before(headers, redelivered=True, counts=False) is None
    assert delivered_before(headers, redelivered=False, counts=False) == 0


def test_a_first_delivery_has_no_past_whatever_its_headers_say():
    headers = {"x-delivery-count": 50, "x-acquired-count": 60}
    assert delivered_before(headers, redelivered=False, counts=True) == 0


def test_a_limit_that_dead_letters_lets_the_last_delivery_fail_with_a_reason():
    limit = BrokerLimit(returns=5)
    assert [limit.is_last_failure(count) for count in (None, 0, 4, 5, 6)] == [
        False,
        False,
        False,
        True,
        True,
    ]
    assert not any(limit.is_last_delivery(count) for count in (None, 0, 5, 6))
    assert not limit.returns_are_free


def test_a_limit_that_deletes_leaves_one_return_for_a_connection_that_is_lost():
    limit = BrokerLimit(returns=5, deletes=True)
    assert [limit.is_last_failure(count) for count in (None, 3, 4, 5)] == [False, False, True, True]
    assert [limit.is_last_delivery(count) for count in (None, 4, 5, 6)] == [
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("limit", [BrokerLimit(), BrokerLimit(returns=1_000_000)])
def test_without_a_limit_that_matters_messages_may_come_back_as_they_like(limit):
    assert limit.returns_are_free
    assert not limit.is_last_failure(50_000)
    assert not limit.is_last_delivery(50_000)
