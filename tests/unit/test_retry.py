"""What is done with a message that failed."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queues.retry import NO_WAIT, DeadLetter, Requeue, RetryPolicy, delivered_before, next_action

POLICY = RetryPolicy(first=timedelta(seconds=1), longest=timedelta(seconds=5))


def test_the_wait_doubles_up_to_the_longest():
    waits = [next_action(count, POLICY, 20).after_s for count in range(5)]
    assert waits == [1, 2, 4, 5, 5]


def test_the_last_delivery_leads_to_the_dead_letters():
    assert next_action(2, POLICY, 3) == Requeue(4)
    assert next_action(3, POLICY, 3) == DeadLetter()
    assert next_action(4, POLICY, 3) == DeadLetter()


def test_a_broker_that_does_not_count_gets_the_longest_wait_and_no_dead_letter():
    assert next_action(None, POLICY, 3) == Requeue(5)


def test_without_a_wait_it_goes_back_at_once():
    assert next_action(7, NO_WAIT, 20) == Requeue(0)


@given(st.integers(0, 10**12))
def test_no_count_overflows(count):
    assert 0 <= next_action(count, POLICY, 10**13).after_s <= 5


@pytest.mark.parametrize(
    ("what", "headers", "count"),
    [
        ("3.10 to 4.2 count every delivery", {"x-delivery-count": 3}, 3),
        ("4.3 after failures and one give-back", {"x-delivery-count": 3, "x-acquired-count": 4}, 3),
        ("4.3 after a give-back alone", {"x-acquired-count": 1}, 0),
        ("4.3 after a give-back, and a count that came with the message", {"x-acquired-count": 1, "x-delivery-count": 50}, 1),
        ("a classic queue", {}, None),
        ("a classic queue, without headers", None, None),
        ("a classic queue, and a sly sender", {"x-delivery-count": "many"}, None),
    ],
)
def test_the_count_of_a_redelivered_message_is_the_brokers(what, headers, count):
    assert delivered_before(headers, redelivered=True) == count


def test_a_first_delivery_has_no_past_whatever_its_headers_say():
    assert delivered_before({"x-delivery-count": 50, "x-acquired-count": 60}, redelivered=False) == 0
