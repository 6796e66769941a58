"""Prefetch: how many messages a consumer asks for."""

from hypothesis import given
from hypothesis import strategies as st

from tiercel.queues.consuming.channel import Intake
from tiercel.queues.limits import BYTES_HELD, MAX_BODY_BYTES

MIB = 1024 * 1024


class Holder:
    """An intake and the messages of its channel."""

    def __init__(self, prefetch, bytes_held=BYTES_HELD):
        self.intake = Intake(prefetch, bytes_held)
        self.expect = self.intake.expect
        self.bytes_held = self.waiting_here = 0
        self.open, self.busy, self.waiting = [], [], []

    held = property(lambda self: self.bytes_held)
    count = property(lambda self: len(self.open))

    def arrived(self, size):
        self.bytes_held += size
        self.open.append(size)
        self.intake.saw(size)

    def let_go(self, size, count=1):
        self.bytes_held -= size
        del self.open[:count]

    def waits(self, size):
        self.let_go(size)
        self.waiting.append(0)

    def waited(self):
        self.open.append(self.waiting.pop())

    def wanted(self, current, waiting_here=0):
        self.waiting_here = waiting_here
        return self.intake.wanted(current, self)


def test_it_begins_with_as_many_of_the_largest_as_may_be_held():
    assert Holder(10_000, 256 * MIB).wanted(0) == 16
    assert Holder(5, 256 * MIB).wanted(0) == 5
    assert Holder(10_000, 1).wanted(0) == 1


def test_it_asks_for_everything_when_messages_turn_out_small():
    intake = Holder(10_000, 256 * MIB)
    intake.arrived(100)
    assert intake.wanted(16) == 10_000
    assert intake.wanted(10_000) == 10_000


def test_it_asks_for_no_more_than_fits_when_they_are_large():
    intake = Holder(10_000, 256 * MIB)
    intake.arrived(MIB)
    assert intake.wanted(16) == 256
    big = Holder(10_000, 256 * MIB)
    big.arrived(MAX_BODY_BYTES)
    assert big.wanted(16) == 16


def test_with_too_many_bytes_it_asks_for_one_until_half_of_them_are_let_go():
    intake = Holder(1000, 100)
    intake.arrived(60)
    assert intake.wanted(1000) == 1000
    intake.arrived(60)
    assert intake.wanted(1000) == 1
    assert intake.wanted(0) == 1
    intake.let_go(50)
    assert intake.wanted(1) == 1
    intake.let_go(70, 2)
    for _ in range(100):
        intake.arrived(0)
        intake.let_go(0)
    assert intake.wanted(1) > 1


@given(st.lists(st.integers(0, MAX_BODY_BYTES), max_size=200))
def test_an_empty_hand_always_asks_for_something(sizes):
    intake = Holder(10_000)
    for size in sizes:
        intake.arrived(size)
    for size in sizes:
        intake.let_go(size)
    assert intake.held == 0
    assert 1 <= intake.wanted(0) <= 10_000


def test_one_large_message_is_forgotten_after_many_small_ones():
    intake = Holder(10_000)
    intake.arrived(MAX_BODY_BYTES)
    for _ in range(200):
        intake.arrived(100)
        intake.let_go(100)
    assert intake.wanted(16) == 10_000


def test_it_asks_for_about_twice_of_what_may_be_in_flight():
    intake = Holder(10_000)
    intake.arrived(100)
    intake.expect(50)
    assert intake.wanted(16) == 100
    assert intake.wanted(51) == 51, "less than twice of what there is"
    assert intake.wanted(200) == 100, "half of what there is"
    intake.expect(1)
    assert intake.wanted(0) == 2
    intake.expect(1_000_000)
    assert intake.wanted(0) == 10_000


def test_it_asks_for_nothing_when_nothing_is_expected():
    intake = Holder(10_000)
    intake.expect(0)
    assert intake.wanted(0) == intake.wanted(16) == 0


def test_a_new_broker_consumer_waits_until_what_is_held_is_what_is_expected():
    intake = Holder(10_000)
    for _ in range(30):
        intake.arrived(100)
    intake.expect(10)
    assert intake.wanted(0) == intake.wanted(100) == 1
    intake.let_go(1_000, 10)
    assert intake.wanted(0) == intake.wanted(1) == 20


def test_what_waits_for_its_back_off_takes_no_room():
    intake = Holder(10_000)
    intake.expect(2)
    for _ in range(4):
        intake.arrived(100)
    intake.waits(100)
    assert intake.wanted(4, 1) == 4, "more than half of the room is left"
    intake.waits(100)
    assert intake.wanted(4, 2) == 8
    assert intake.wanted(8, 2) == 8
    intake.waits(100)
    intake.waits(100)
    assert (intake.held, intake.count, len(intake.waiting)) == (0, 0, 4)
    assert intake.wanted(0) == 12
    for _ in range(4):
        intake.waited()
    assert intake.wanted(12, 0) == 4
