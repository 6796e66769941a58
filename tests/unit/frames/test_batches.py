"""Messages are settled once, when the batch that read them is committed."""

from __future__ import annotations

import pytest

from tiercel.frames.taker import Batches, MessageFailure, MessageKey, Taken


@pytest.fixture
def batches():
    found = Batches()
    found.add(3, [Taken(0, 1, [1, 2, 3])], [b"first"])
    found.add(5, [Taken(0, 1, [4]), Taken(1, 1, [1])], [b"second", b"third"])
    return found


def tags(settlements):
    return [taken.tags for settlement in settlements for taken in settlement.taken]


def test_rows_are_planned_as_often_as_spark_asks(batches):
    assert batches.plan(0, 3) == [b"first"]
    assert batches.plan(0, 3) == [b"first"]
    assert batches.plan(3, 5) == [b"second", b"third"]
    assert batches.plan(0, 5) == [b"first", b"second", b"third"]
    assert batches.plan(5, 5) == []


def test_a_committed_batch_is_settled_once(batches):
    batches.plan(0, 3)
    assert tags(batches.commit(3)) == [[1, 2, 3]]
    assert batches.commit(3) == []


@pytest.mark.parametrize("offset", [2, 4, 6, 1_000_000])
def test_what_was_never_planned_is_not_settled_by_an_offset_that_spark_was_not_given(
    batches, offset
):
    """Such an offset is a mistake, or comes from another reader."""
    assert batches.commit(offset) == []
    batches.plan(0, 3)
    assert tags(batches.commit(max(offset, 4))) == [[1, 2, 3]]


def test_a_batch_that_spark_commits_without_its_rows_is_settled(batches):
    """Spark skips the rows if the optimizer finds that they do not affect the result."""
    assert tags(batches.commit(3)) == [[1, 2, 3]]
    assert tags(batches.commit(5)) == [[4], [1]]


def test_a_batch_is_undecided_from_its_plan_to_its_commit(batches):
    assert not batches.is_undecided
    batches.plan(0, 3)
    assert batches.is_undecided
    batches.commit(3)
    assert not batches.is_undecided


def test_a_message_that_failed_is_settled_with_its_batch(batches):
    batches.plan(0, 3)
    key = MessageKey(0, 1, 2)
    failure = MessageFailure("no stock", again=True)
    assert batches.fail([(key, failure)]) == 1
    [settlement] = batches.commit(3)
    assert settlement.failures == {key: failure}


def test_a_message_can_fail_in_the_first_of_two_open_batches(batches):
    """Both batches have messages of the same channel."""
    failure = MessageFailure("no", again=False)
    assert batches.fail([(MessageKey(0, 1, 1), failure), (MessageKey(0, 1, 4), failure)]) == 2


@pytest.mark.parametrize("key", [(0, 1, 9), (0, 2, 1), (7, 1, 1)])
def test_a_message_that_is_not_open_does_not_fail(batches, key):
    assert batches.fail([(MessageKey(*key), MessageFailure("no", again=True))]) == 0


def test_a_message_does_not_fail_after_its_commit(batches):
    batches.plan(0, 3)
    batches.commit(3)
    assert batches.fail([(MessageKey(0, 1, 1), MessageFailure("no", again=True))]) == 0
