"""Messages that come once more are handed out before those that are new."""

from __future__ import annotations

from tiercel.queues.consuming.hand_out import Delivery, HandOut


def delivery(tag: int, count: int | None = 0) -> Delivery:
    return Delivery(1, tag, b"", count, None)


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
    assert [each.tag for each in line.take(1)] == [4]
    assert [each.tag for each in line.take(2)] == [3, 5], "in turn, also from call to call"
    assert [each.tag for each in line.take(9)] == [8, 7, 1, 2, 6]
    assert line.take(1) == []


def test_all_lines_can_be_emptied() -> None:
    line = HandOut()
    line.add(delivery(1))
    line.add_again(delivery(2))
    line.add(delivery(3, count=1))
    assert [each.tag for each in line.first_while(lambda one: one.tag > 1)] == [3, 2]
    line.clear()
    assert line.take(1) == []
