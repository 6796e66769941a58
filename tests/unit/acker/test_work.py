import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercel.acker.ledger import Failure, Updates, canonical

IDS = st.integers(0, 2**64 - 1)


def work_of(pairs, failed=()):
    roots = [root for root, _ in pairs]
    xors = [xor for _, xor in pairs]
    failures = [
        Failure(root=root, component="bolt", task=1, reason=reason) for root, reason in failed
    ]
    return canonical(
        Updates(roots=np.array(roots, np.uint64), xors=np.array(xors, np.uint64)), failures
    )


def listed(work):
    reasons = [work.failures[at].reason if at >= 0 else None for at in work.reasons.tolist()]
    return list(zip(work.roots.tolist(), work.xors.tolist(), reasons, strict=True))


def test_roots_are_sorted_and_entries_of_one_root_folded():
    assert listed(work_of([(9, 1), (2, 4), (9, 3)])) == [(2, 4, None), (9, 2, None)]


def test_failing_wins_over_updating_and_the_first_reason_counts():
    work = work_of([(1, 5), (2, 6)], [(2, "first"), (3, "alone"), (2, "second")])
    assert listed(work) == [(1, 5, None), (2, 0, "first"), (3, 0, "alone")]


def test_nothing_is_nothing():
    assert listed(work_of([])) == []


@given(st.lists(st.tuples(IDS, IDS), min_size=1), st.lists(IDS), st.randoms())
def test_the_digest_does_not_know_the_order(pairs, failed, random):
    shuffled = random.sample(pairs, len(pairs))
    failed_shuffled = random.sample(failed, len(failed))
    first = work_of(pairs, [(root, "a") for root in failed])
    second = work_of(shuffled, [(root, "b") for root in failed_shuffled])
    assert first.digest == second.digest


@pytest.mark.parametrize(
    "other",
    [
        work_of([(1, 5)]),
        work_of([(1, 5), (2, 7)]),
        work_of([(1, 5), (3, 6)]),
        work_of([(1, 6), (2, 5)]),
        work_of([(1, 5), (2, 6), (3, 0)]),
        work_of([(1, 5)], [(2, "x")]),
        work_of([(1, 5), (2, 6)], [(3, "x")]),
    ],
)
def test_the_digest_knows_other_work(other):
    assert work_of([(1, 5), (2, 6)]).digest != other.digest


def test_a_held_root_is_not_a_failed_one():
    assert work_of([(1, 0)]).digest != work_of([], [(1, "x")]).digest


def test_arrays_of_unequal_length_are_an_error():
    with pytest.raises(ValueError, match="as many xors as roots"):
        canonical(Updates(roots=np.array([1], np.uint64), xors=np.array([], np.uint64)))
