"""The order in which opened messages are handed out."""

from __future__ import annotations

from pika import BasicProperties

from tiercel.queues.consuming.hand_out import Delivery, HandOut


def delivery(tag, priority=None):
    return Delivery(1, tag, b"", 0, BasicProperties(priority=priority))


def tags(deliveries):
    return [each.tag for each in deliveries]


def test_messages_leave_in_the_order_in_which_they_came():
    held = HandOut()
    assert [held.add(delivery(tag)) for tag in (1, 2, 3)] == [True, False, False]
    assert tags(held.take(2)) == [1, 2]
    assert tags(held.take(5)) == [3]
    assert held.take(5) == []


def test_an_urgent_message_passes_those_that_wait():
    held = HandOut()
    for tag, priority in ((1, None), (2, 0), (3, 5), (4, 9), (5, 5), (6, None)):
        held.add(delivery(tag, priority))
    assert tags(held.take(1)) == [4]
    held.add(delivery(7, 9))
    assert tags(held.take(10)) == [7, 3, 5, 1, 2, 6]


def test_the_first_of_each_priority_wakes_the_spout():
    held = HandOut()
    found = [held.add(delivery(tag, tag % 2)) for tag in range(4)]
    assert found == [True, True, False, False]


def test_what_was_released_comes_before_all():
    held = HandOut()
    held.add(delivery(1, 255))
    held.add_again(delivery(2))
    assert tags(held.take(2)) == [2, 1]


def test_old_ones_are_found_in_every_line():
    held = HandOut()
    for tag, priority in ((1, None), (2, 9), (3, 9), (4, 1), (5, None)):
        held.add(delivery(tag, priority))
    held.add_again(delivery(6))
    old = list(held.first_while(lambda each: each.tag in {1, 2, 6}))
    assert sorted(tags(old)) == [1, 2, 6]
    assert tags(held.take(9)) == [3, 4, 5]
    held.add(delivery(7, 9))
    held.clear()
    assert held.take(9) == []
