"""Delay queues: their delays and names, and that they lose nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercel.queues.broker.management import delay_arguments, delay_ms, delay_queue


@pytest.mark.parametrize(
    ("seconds", "milliseconds"),
    [
        (0, 100),
        (0.001, 100),
        (0.1, 100),
        (0.3, 300),
        (1.01, 1_100),
        (5, 5_000),
        (9.95, 10_000),
        (10, 10_000),
        (12.3, 13_000),
        (99.5, 100_000),
        (60, 60_000),
        (3600, 3_600_000),
        (3601, 3_700_000),
        (30 * 24 * 3600, 2_600_000_000),
    ],
)
def test_times_are_rounded_up_to_two_digits(seconds, milliseconds):
    assert delay_ms(seconds) == milliseconds


@given(st.floats(0, 30 * 24 * 3600))
def test_a_message_never_comes_before_its_time_and_at_most_a_tenth_after_it(seconds):
    waits = delay_ms(seconds)
    assert waits >= round(seconds * 1000, 3)
    assert waits <= max(100, seconds * 1100, seconds * 1000 + 100)
    assert waits < 2**32, "RabbitMQ takes no longer time to live"


def test_there_are_few_lengths():
    lengths = {delay_ms(each / 10) for each in range(36_000)}
    assert len(lengths) < 330


@given(st.text(min_size=1, max_size=250).filter(lambda name: len(name.encode()) <= 250))
def test_a_name_fits_however_long_the_queues_is(queue):
    name = delay_queue(queue, 2_600_000_000)
    assert len(name.encode()) <= 255
    assert name.endswith(".delay.2600000000")


def test_two_long_names_stay_two():
    first, second = "q" * 249 + "a", "q" * 249 + "b"
    assert delay_queue(first, 5000) != delay_queue(second, 5000)


def test_a_delay_queue_keeps_a_message_until_the_work_queue_has_it():
    arguments = delay_arguments("orders", 5000)
    assert arguments["x-dead-letter-strategy"] == "at-least-once"
    assert arguments["x-overflow"] == "reject-publish", "the strategy needs it"
    assert arguments["x-dead-letter-routing-key"] == "orders"
    assert "x-expires" not in arguments, "it deletes a quorum queue with what lies in it"
