"""Acknowledgements sent to the broker."""

from hypothesis import given
from hypothesis import strategies as st

from tiercel.queues.consuming.messages import Ack, AckBook


class Wire:
    """The broker's side of a channel: refuses an ack if RabbitMQ would close the channel."""

    def __init__(self):
        self.unacked = set()
        self.acked = []

    def ack(self, tag, multiple):
        assert tag in self.unacked, f"unknown delivery tag {tag}"
        covered = sorted(each for each in self.unacked if each <= tag) if multiple else [tag]
        self.unacked.difference_update(covered)
        self.acked += covered


def book_with(*tags):
    book = AckBook()
    for tag in tags:
        book.open(tag)
    return book


def finish(book, *tags):
    for tag in tags:
        assert book.finish(tag)


ACTIONS = ["open", "skip", "late", "finish", "finish", "close", "take", "take prefix", "mark"]


@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 50)), max_size=200))
def test_no_unfinished_tag_is_ever_acked_and_every_finished_one_once(steps):
    book = AckBook()
    wire = Wire()
    opened = []
    finished = []
    last = 0
    newest = set()
    before = set()

    def take(*, singles=True):
        for ack in book.take(singles=singles):
            wire.ack(*ack)
        assert book.finished == len(finished) - len(wire.acked)
        assert not singles or sorted(wire.acked) == sorted(finished)

    for action, which in steps:
        if action in ("open", "skip", "late"):
            last += 2 + which % 3 if action == "skip" else 1
            book.open(last, newest=action != "late")
            (before if action == "late" else newest).add(last)
            wire.unacked.add(last)
            opened.append(last)
        elif action.startswith("take"):
            take(singles=action == "take")
        elif action == "mark":
            book.mark()
            newest, before = set(), newest
        elif opened:
            tag = opened.pop(which % len(opened))
            if action == "finish":
                assert book.finish(tag)
                finished.append(tag)
            else:
                assert book.close(tag)
                wire.unacked.remove(tag)
        assert book.unsettled_before == len(before & wire.unacked)
    take()
    assert len(book) == len(opened)
    assert wire.unacked == set(opened)


@given(st.permutations(range(1, 30)))
def test_all_finished_is_one_acknowledgement_whatever_the_order(order):
    book = book_with(*range(1, 30))
    finish(book, *order)
    assert book.take() == [Ack(29, multiple=True)]


def test_what_is_above_an_unfinished_message_is_acked_one_by_one():
    book = book_with(1, 2, 3, 4, 5)
    finish(book, 1, 2, 4, 5)
    assert book.take() == [Ack(2, multiple=True), Ack(4, multiple=False), Ack(5, multiple=False)]
    finish(book, 3)
    assert book.take() == [Ack(3, multiple=False)]


def test_what_is_above_an_unfinished_message_may_wait_to_be_part_of_a_multiple():
    book = book_with(1, 2, 3, 4, 5)
    finish(book, 1, 3, 4, 5)
    assert book.take(singles=False) == [Ack(1, multiple=False)]
    assert book.finished == 3
    finish(book, 2)
    assert book.take(singles=False) == [Ack(5, multiple=True)]
    assert book.finished == 0


def test_a_multiple_never_names_a_rejected_tag():
    book = book_with(1, 2, 3)
    finish(book, 1, 2)
    assert book.close(3)
    assert book.take() == [Ack(2, multiple=True)]


def test_a_tag_is_settled_only_once():
    book = book_with(1)
    assert book.finish(1)
    assert not book.finish(1)
    assert not book.close(1)
    assert not book.finish(99)
    assert book.take() == [Ack(1, multiple=False)]
    assert book.take() == []


def test_one_tag_that_stays_open_costs_nothing_for_the_others():
    book = book_with(1)
    for tag in range(2, 50_001):
        book.open(tag)
        book.finish(tag)
        if not tag % 1_000:
            assert len(book.take()) == 1_000 - (tag == 1_000)
    held = sum(len(each) for each in vars(book).values() if hasattr(each, "__len__"))
    assert held == 2
