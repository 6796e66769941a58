"""The order in which opened messages are handed out."""

from __future__ import annotations

from collections.abc import Iterable

from pika import BasicProperties

from tiercel.queues.consuming.channel import HandOut
from tiercel.queues.consuming.messages import Delivery


def delivery(tag: int, priority: int | None = None, *, count: int | None = 0) -> Delivery:
    return Delivery(1, tag, b"", count, BasicProperties(priority=priority))


def tags(deliveries: Iterable[Delivery]) -> list[int]:
    return [each.tag for each in deliveries]


def test_messages_leave_in_the_order_in_which_they_came() -> None:
    held = HandOut()
    assert [held.add(delivery(tag)) for tag in (1, 2, 3)] == [True, False, False]
    assert tags(held.take(2)) == [1, 2]
    assert tags(held.take(5)) == [3]
    assert held.take(5) == []


def test_what_comes_once_more_is_handed_out_before_what_is_new_whichever_way_it_came() -> None:
    line = HandOut()
    assert line.add(delivery(1))
    assert not line.add(delivery(2))
    line.add_again(delivery(3))
    assert line.add(delivery(4, count=1)), "the first one of its line wakes the spout"
    line.add(delivery(5, count=2))
    line.add(delivery(6, count=None))
    line.add(delivery(7, count=1))
    line.add_again(delivery(8))
    assert tags(line.take(1)) == [4]
    assert tags(line.take(2)) == [3, 5], "in turn, also from call to call"
    assert tags(line.take(9)) == [8, 7, 1, 2, 6]
    assert line.take(1) == []


def test_released_messages_leave_in_the_order_in_which_they_were_delivered() -> None:
    line = HandOut()
    for tag in (7, 3, 9, 1):
        line.add_again(delivery(tag))
    assert tags(line.take(2)) == [1, 3]
    line.add_again(delivery(2))
    assert tags(line.first_while(lambda one: one.tag < 8)) == [2, 7]
    assert tags(line.take(5)) == [9]


def test_an_urgent_message_passes_those_that_wait() -> None:
    held = HandOut()
    for tag, priority in ((1, None), (2, 0), (3, 5), (4, 9), (5, 5), (6, None)):
        held.add(delivery(tag, priority))
    assert tags(held.take(1)) == [4]
    held.add(delivery(7, 9))
    assert tags(held.take(10)) == [7, 3, 5, 1, 2, 6]


def test_the_first_of_each_priority_wakes_the_spout() -> None:
    held = HandOut()
    found = [held.add(delivery(tag, tag % 2)) for tag in range(4)]
    assert found == [True, True, False, False]


def test_an_urgent_message_passes_none_that_comes_once_more() -> None:
    held = HandOut()
    held.add(delivery(1, 255))
    held.add_again(delivery(2))
    held.add(delivery(3, count=1))
    held.add(delivery(4, 255, count=1))
    assert tags(held.take(4)) == [3, 2, 4, 1]


def test_old_ones_are_found_in_every_line() -> None:
    held = HandOut()
    for tag, priority in ((1, None), (2, 9), (3, 9), (4, 1), (5, None)):
        held.add(delivery(tag, priority))
    held.add_again(delivery(6))
    held.add(delivery(8, 3, count=1))
    old = list(held.first_while(lambda each: each.tag in {1, 2, 6, 8}))
    assert sorted(tags(old)) == [1, 2, 6, 8]
    assert tags(held.take(9)) == [3, 4, 5]


def test_all_lines_can_be_emptied() -> None:
    line = HandOut()
    line.add(delivery(1))
    line.add(delivery(4, 9))
    line.add_again(delivery(2))
    line.add(delivery(3, count=1))
    line.clear()
    assert line.take(1) == []
