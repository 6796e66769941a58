"""Timing of acks: few are sent at once, many are sent together."""

from __future__ import annotations

from collections.abc import Callable

from tiercel.queues.consuming.messages import Acks


class Wire:
    """A channel and its link; ``pass_time`` runs what the link has scheduled."""

    is_open = True

    def __init__(self) -> None:
        self.acked: list[tuple[int, bool]] = []
        self.timers: list[Callable[[], None]] = []
        self.told = 0

    def basic_ack(self, tag: int, *, multiple: bool) -> None:
        self.acked.append((tag, multiple))

    def later(self, _delay_s: float, function: Callable[[], None]) -> object:
        self.timers.append(function)
        return function

    def forget(self, handle: object) -> None:
        self.timers.remove(handle)

    def pass_time(self) -> None:
        timers = self.timers
        self.timers = []
        for timer in timers:
            timer()

    def sent(self) -> None:
        self.told += 1


def acks(count: int) -> tuple[Acks, Wire]:
    wire = Wire()
    made = Acks(wire, wire, wire.sent)
    for tag in range(1, count + 1):
        made.book.open(tag)
    return made, wire


def finish(made: Acks, *tags: int) -> None:
    for tag in tags:
        assert made.book.finish(tag)


def test_few_leave_at_once_in_whatever_order_they_are_finished() -> None:
    made, wire = acks(10)
    finish(made, 3, 7)
    made.send()
    assert wire.acked == [(3, False), (7, False)]
    assert (wire.timers, wire.told) == ([], 1)


def test_many_that_are_not_contiguous_wait_for_what_makes_them_one_ack() -> None:
    made, wire = acks(100)
    finish(made, *range(2, 100))
    made.send()
    made.send()
    assert (wire.acked, len(wire.timers)) == ([], 1)
    finish(made, 1)
    made.send()
    assert wire.acked == [(99, True)]
    wire.pass_time()
    assert wire.acked == [(99, True)]


def test_what_waits_behind_a_slow_one_leaves_some_milliseconds_later() -> None:
    made, wire = acks(100)
    finish(made, *range(2, 100))
    made.send()
    wire.pass_time()
    assert wire.acked == [(tag, False) for tag in range(2, 100)]
    assert wire.told == 1


def test_everything_leaves_before_the_channel_closes_and_nothing_after_it() -> None:
    made, wire = acks(100)
    finish(made, *range(2, 50))
    made.send()
    made.send(everything=True)
    assert len(wire.acked) == 48
    finish(made, *range(50, 100))
    made.send()
    wire.is_open = False
    wire.pass_time()
    assert len(wire.acked) == 48
    made.send()
    made.void()
    assert wire.timers == []
