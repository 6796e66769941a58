"""Counts of failures: which messages are counted, and how long counts are kept."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from tiercel.queues.consuming.failures import FailureBook


def properties(message_id=None):
    return SimpleNamespace(message_id=message_id)


def test_each_failure_is_one_more():
    book = FailureBook()
    assert [book.failed(b"a", properties(), count) for count in range(5)] == [0, 1, 2, 3, 4]


def test_returns_between_two_failures_that_were_none_do_not_count():
    book = FailureBook()
    assert [book.failed(b"a", properties(), count) for count in (0, 41, 55)] == [0, 1, 2]


def test_failures_that_earlier_workers_saw_count_but_for_the_end_of_the_last_one():
    book = FailureBook()
    assert [book.failed(b"a", properties(), count) for count in (8, 9, 10)] == [7, 8, 9]


def test_returns_of_ones_own_channels_are_no_failures():
    assert FailureBook().failed(b"a", properties(), 8, returns=5) == 3
    assert FailureBook().failed(b"a", properties(), 8, returns=50) == 0


def test_however_often_it_came_back_a_message_has_a_quarter_of_its_failures_to_itself():
    book = FailureBook(delivery_limit=20)
    assert [book.failed(b"a", properties(), count) for count in (40, 41, 55)] == [15, 16, 17]
    assert FailureBook(delivery_limit=2).failed(b"a", properties(), 40) == 1


def test_one_that_never_failed_here_has_not_failed():
    assert FailureBook().so_far(b"a", properties(), 8) == 0


def test_the_brokers_count_is_never_exceeded():
    book = FailureBook()
    assert [book.failed(b"equal", properties(), 0) for _ in range(30)] == [0] * 30
    assert book.failed(b"equal", properties(), 1) == 1


def test_messages_that_differ_in_identity_alone_are_two():
    book = FailureBook()
    for count in range(3):
        book.failed(b"a", properties("1"), count)
    assert book.failed(b"a", properties("2"), 0) == 0


def test_one_of_several_tasks_sees_its_share():
    book = FailureBook(tasks=4)
    assert [book.failed(b"a", properties(), count) for count in (1, 5, 9)] == [0, 4, 8]


def test_a_queue_that_does_not_count_leaves_it_to_each_worker():
    book = FailureBook(tasks=4)
    assert [book.failed(b"a", None, count) for count in (0, None, None)] == [0, 1, 2]


def test_it_forgets_what_is_settled_and_what_is_oldest():
    book = FailureBook(most=2)
    for body in (b"a", b"b", b"c"):
        book.failed(body, properties(), 0)
    assert len(book) == 2
    book.forget(b"a", properties())
    book.forget(b"c", properties())
    assert len(book) == 1
    assert book.failed(b"c", properties(), 0) == 0


@given(
    st.lists(st.tuples(st.sampled_from("fs"), st.integers(0, 3), st.integers(0, 30)), max_size=100)
)
def test_whatever_happens_no_entry_is_without_copies(steps):
    book = FailureBook(most=3)
    for what, body, count in steps:
        if what == "f":
            assert 0 <= book.failed(b"%d" % body, properties(), count) <= count
        else:
            book.forget(b"%d" % body, properties())
        assert all(copies >= 1 and failures >= 0 for copies, failures, _ in book._entries.values())
