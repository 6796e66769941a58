"""What is done with a message that failed."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from queues.retry import NO_WAIT, DeadLetter, Requeue, RetryPolicy, next_action

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
