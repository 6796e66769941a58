"""Messages are handed out in the order of the queue: those that come once more come first."""

from __future__ import annotations

from tiercel.queues.consuming.hand_out import Delivery, HandOut


def delivery(tag: int, count: int | None = 0) -> Delivery:
    return Delivery(1, tag, b"", count, None)


def test_what_the_broker_delivers_once_more_is_handed_out_first_then_what_was_released() -> None:
    line = HandOut()
    assert line.add(delivery(1))
    assert not line.add(delivery(2))
    line.add_again(delivery(3))
    assert line.add(delivery(4, count=1)), "the first one of its line wakes the spout"
    line.add(delivery(5, count=2))
    line.add(delivery(6, count=None))
    assert [each.tag for each in line.take(2)] == [4, 5]
    assert [each.tag for each in line.take(9)] == [3, 1, 2, 6]
    assert line.take(1) == []


def test_all_lines_can_be_emptied() -> None:
    line = HandOut()
    line.add(delivery(1))
    line.add_again(delivery(2))
    line.add(delivery(3, count=1))
    assert [each.tag for each in line.first_while(lambda one: one.tag > 1)] == [3, 2]
    line.clear()
    assert line.take(1) == []
