"""Numbers of tasks as an operator types them, and as they are sent."""

import pytest

from tiercel.workers.control.contract import MOST_TASKS, pack, parse_change, unpack
from tiercel.workers.errors import UsageError


def test_each_option_is_a_bolt_and_its_number_and_default_takes_an_order_back():
    assert parse_change(["count=4", "a=b=2", "split=default"]) == {
        "count": 4,
        "a=b": 2,
        "split": None,
    }
    assert parse_change([f"count={MOST_TASKS}"]) == {"count": MOST_TASKS}
    assert parse_change([]) == {}


@pytest.mark.parametrize("option", ["count", "=4", "", "4"])
def test_an_option_of_another_form_is_told_the_form(option):
    with pytest.raises(UsageError, match="write BOLT=N, such as --parallelism count=4"):
        parse_change([option])


@pytest.mark.parametrize(
    "number", ["0", "-1", "+2", "1.5", "", " 1", "four", "٤", "²", "10001", "9" * 5000]
)
def test_a_number_that_is_none_or_too_many_is_told_the_bounds(number):
    with pytest.raises(
        UsageError, match="give a number from 1 to 10,000, or default for what its code says"
    ):
        parse_change([f"count={number}"])


def test_a_bolt_that_is_named_twice_is_told():
    with pytest.raises(UsageError, match="names bolt 'count' twice"):
        parse_change(["count=4", "count=default"])


@pytest.mark.parametrize(
    "numbers",
    [{}, {"count": 1}, {"a b": 2, "c,d": 3, "e=f": 4, "%": 5, "-": 6, "ö": 7, "\udc80": 8}],
)
def test_numbers_travel_as_one_word(numbers):
    word = pack(numbers)
    assert word.isascii()
    assert not word.split()[1:]
    assert unpack(word) == numbers


@pytest.mark.parametrize(
    "word", ["", "-", "more", "count=", "count=0", "count=-1", "%ff=1", "=,=,", "count=99999999999"]
)
def test_what_another_version_wrote_is_passed_over(word):
    assert unpack(f"split=2,{word}") == {"split": 2}
