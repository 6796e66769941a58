"""The contract of ``Ledger`` and ``OutcomeFeed``, run over every backend."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from tests.support.ledgers import NOW, OTHER, ROOT, THIRD, A, B, C, failure, said, token, updates
from tests.support.waiting import wait_until
from tiercel.acker.effects import LocalEffect, perform_in_turn
from tiercel.acker.ids import RootIds, mix_array
from tiercel.acker.ledger import Applied, Census, Failure, Reply, Updates

OTHER_WORK = ("__acker", 0, "a repeated step did other work")


def test_a_root_is_acked_when_its_ack_val_comes_to_zero(ledger, feed):
    assert ledger.register(1, [ROOT], [A]) == []
    assert ledger.pending() == 1
    assert ledger.apply(token(), updates({ROOT: A})) == Reply(applied=Applied.FRESH, completed=1)
    assert said(feed.read(NOW)) == {"acked": [ROOT]}
    assert ledger.pending() == 0


@pytest.mark.parametrize("bit", [0, 7, 8, 31, 32, 53, 63])
def test_every_bit_of_an_ack_val_counts(ledger, feed, bit):
    ledger.register(1, [ROOT], [A ^ 1 << bit])
    assert ledger.apply(token(), updates({ROOT: A})).completed == 0
    assert ledger.apply(token(1), updates({ROOT: 1 << bit})).completed == 1
    assert said(feed.read(NOW)) == {"acked": [ROOT]}


@pytest.mark.parametrize("bit", [0, 39, 40, 55, 56, 63])
def test_every_bit_of_a_root_counts(ledger, bit):
    ledger.register(1, [ROOT], [A])
    assert ledger.apply(token(), updates({ROOT ^ 1 << bit: A})).late == 1
    assert ledger.pending() == 1


def test_an_outcome_is_returned_once(ledger, feed):
    ledger.register(1, [ROOT], [A])
    ledger.apply(token(), updates({ROOT: A}))
    assert feed.read(NOW)
    assert not feed.read(NOW)


def test_outcomes_go_to_the_owner_and_to_nobody_else(ledger):
    first = ledger.feed(1)
    second = ledger.feed(2)
    ledger.register(1, [ROOT], [A])
    ledger.register(2, [OTHER], [B])
    ledger.apply(token(), updates({ROOT: A, OTHER: B}))
    assert said(first.read(NOW)) == {"acked": [ROOT]}
    assert said(second.read(NOW)) == {"acked": [OTHER]}
    first.close()
    second.close()


def test_registering_twice_changes_nothing(ledger, feed):
    assert ledger.register(1, [ROOT], [A]) == []
    assert ledger.register(1, [ROOT], [A]) == []
    assert ledger.pending() == 1
    assert not feed.read(NOW)


@pytest.mark.parametrize(
    ("owner", "ack_val"), [(2, A), (1, B), (1, 0)], ids=["other owner", "other value", "zero"]
)
def test_a_root_that_is_taken_collides_and_the_pending_entry_stays(ledger, feed, owner, ack_val):
    ledger.register(1, [ROOT], [A])
    assert ledger.register(owner, [OTHER, ROOT], [C, ack_val]) == [ROOT]
    ledger.apply(token(), updates({ROOT: A}))
    assert said(feed.read(NOW)) == {"acked": [ROOT]}
    assert ledger.pending() == 1


def test_one_root_twice_in_one_call_collides_with_itself(ledger):
    assert ledger.register(1, [ROOT, ROOT, OTHER, OTHER], [A, B, C, C]) == [ROOT]
    assert ledger.pending() == 2


def test_registrations_that_leave_with_other_calls_end_them_if_a_root_is_taken(ledger):
    made = []
    after = LocalEffect(lambda: made.append("after") or True)
    assert all(perform_in_turn([*ledger.registering(1, [ROOT, OTHER], [A, B]), after]))
    assert all(perform_in_turn([*ledger.registering(1, [ROOT, OTHER], [A, B]), after]))
    assert not all(perform_in_turn([*ledger.registering(2, [ROOT], [C]), after]))
    assert not all(perform_in_turn([*ledger.registering(1, [3, 3], [B, C]), after]))
    assert made == ["after"] * 2


def test_a_root_that_nobody_receives_is_acked_at_once_and_only_once(ledger, feed):
    for _ in range(3):
        assert ledger.register(1, [ROOT, OTHER], [0, A]) == []
    assert said(feed.read(NOW)) == {"acked": [ROOT]}
    assert ledger.pending() == 1


@pytest.mark.parametrize("owner", [0, 4])
def test_an_owner_that_is_not_of_this_ledger_is_an_error(ledger, owner):
    with pytest.raises(ValueError, match="owner"):
        ledger.register(owner, [ROOT], [A])
    with pytest.raises(ValueError, match="owner"):
        ledger.feed(owner)


def test_the_same_work_again_is_recognised_and_counts_nothing(ledger, feed):
    ledger.register(1, [ROOT, OTHER], [A, B])
    assert ledger.apply(token(), updates({ROOT: A ^ C})).applied is Applied.FRESH
    assert ledger.apply(token(), updates({ROOT: A ^ C})) == Reply(applied=Applied.REPEATED)
    ledger.apply(token(1), updates({ROOT: C}))
    assert said(feed.read(NOW)) == {"acked": [ROOT]}


def test_the_same_work_in_another_order_is_the_same_work(ledger):
    ledger.register(1, [ROOT, OTHER, THIRD], [A, B, C])
    failures = [failure(ROOT, "once"), failure(THIRD)]
    ledger.apply(token(), updates({OTHER: C}), failures)
    shuffled = Updates(
        roots=np.array([OTHER, OTHER], np.uint64), xors=np.array([C ^ A, A], np.uint64)
    )
    assert ledger.apply(token(), shuffled, failures[::-1]).applied is Applied.REPEATED


def test_another_reason_for_the_same_failure_is_the_same_work(ledger):
    ledger.register(1, [ROOT, OTHER], [A, B])
    ledger.apply(token(), updates({OTHER: C}), [failure(ROOT, "<object at 0x7f01>")])
    assert (
        ledger.apply(token(), updates({OTHER: C}), [failure(ROOT, "<object at 0x7f02>")]).applied
        is Applied.REPEATED
    )


@pytest.mark.parametrize(
    ("again", "failures"),
    [
        ({ROOT: B, OTHER: 0}, []),
        ({ROOT: C, OTHER: B}, []),
        ({ROOT: C, OTHER: 0}, [failure(ROOT)]),
    ],
    ids=["other children", "acked what was held", "failed what was acked"],
)
def test_other_work_under_the_same_token_fails_all_its_roots(ledger, feed, again, failures):
    ledger.register(1, [ROOT, OTHER], [A, B])
    ledger.apply(token(), updates({ROOT: C, OTHER: 0}))
    assert ledger.apply(token(), updates(again), failures) == Reply(
        applied=Applied.CONFLICTING, failed=2
    )
    assert said(feed.read(NOW)) == {"failed": sorted([(ROOT, *OTHER_WORK), (OTHER, *OTHER_WORK)])}
    assert ledger.pending() == 0


def test_the_first_work_stays_known_after_a_conflict(ledger):
    ledger.register(1, [ROOT], [A])
    ledger.apply(token(), updates({ROOT: B}))
    ledger.apply(token(), updates({ROOT: C}))
    assert ledger.apply(token(), updates({ROOT: B})).applied is Applied.REPEATED


@pytest.mark.parametrize("other", [token(1), token(step=1), token(run="next")])
def test_another_token_is_other_work_altogether(ledger, feed, other):
    ledger.register(1, [ROOT], [A ^ B])
    ledger.apply(token(), updates({ROOT: A}))
    assert ledger.apply(other, updates({ROOT: B})).completed == 1


def test_a_failed_root_is_failed_at_once_with_its_reason(ledger, feed):
    ledger.register(1, [ROOT, OTHER], [A, B])
    assert ledger.apply(token(), updates({OTHER: B}), [failure(ROOT)]) == Reply(
        applied=Applied.FRESH, completed=1, failed=1
    )
    assert said(feed.read(NOW)) == {"acked": [OTHER], "failed": [(ROOT, "bolt", 7, "boom")]}


def test_failing_wins_over_updating_and_the_first_reason_counts(ledger, feed):
    ledger.register(1, [ROOT], [A])
    reply = ledger.apply(
        token(), updates({ROOT: A}), [failure(ROOT, "first"), failure(ROOT, "second")]
    )
    assert reply == Reply(applied=Applied.FRESH, failed=1)
    assert said(feed.read(NOW)) == {"failed": [(ROOT, "bolt", 7, "first")]}


def test_what_comes_late_is_ignored_and_counted(ledger, feed):
    ledger.register(1, [ROOT], [A])
    ledger.fail([failure(ROOT)])
    feed.read(NOW)
    assert ledger.apply(token(), updates({ROOT: A, OTHER: B}), [failure(THIRD)]) == Reply(
        applied=Applied.FRESH, late=3
    )
    assert ledger.fail([failure(ROOT)]) == 0
    assert ledger.release([ROOT]) == 0
    ledger.reset_timeout([ROOT])
    assert not feed.read(NOW)
    assert ledger.pending() == 0


def test_work_that_names_no_root_does_nothing(ledger):
    for _ in range(2):
        assert ledger.apply(token(), updates()) == Reply(applied=Applied.FRESH)
    ledger.register(1, [], [])
    assert (ledger.fail([]), ledger.release([]), ledger.forget([]), ledger.reset_timeout([])) == (
        0,
        0,
        None,
        None,
    )


def test_roots_are_released_without_blame(ledger, feed):
    ledger.register(1, [ROOT, OTHER], [A, B])
    assert ledger.release([ROOT, ROOT, THIRD]) == 1
    assert said(feed.read(NOW)) == {"released": [ROOT]}
    assert ledger.pending() == 1


def test_forgotten_roots_have_no_outcome(ledger, feed):
    ledger.register(1, [ROOT, OTHER], [A, B])
    ledger.forget([ROOT, THIRD])
    assert ledger.pending() == 1
    assert not feed.read(NOW)


def test_resetting_a_timeout_reaches_the_owner_and_changes_nothing_else(ledger, feed):
    ledger.register(1, [ROOT], [A])
    ledger.reset_timeout([ROOT, OTHER])
    assert said(feed.read(NOW)) == {"reset": [ROOT]}
    ledger.apply(token(), updates({ROOT: A}))
    assert said(feed.read(NOW)) == {"acked": [ROOT]}


def test_trees_that_wait_for_a_limit_reach_the_owner_apart(ledger, feed):
    ledger.register(1, [ROOT, OTHER], [A, B])
    ledger.reset_timeout([ROOT, THIRD], waiting=True)
    ledger.reset_timeout([OTHER])
    assert said(feed.read(NOW)) == {"waiting": [ROOT], "reset": [OTHER]}
    ledger.apply(token(), updates({ROOT: A}))
    assert said(feed.read(NOW)) == {"acked": [ROOT]}


@pytest.mark.parametrize(
    "reason", ["", "naïve 漢字 🦅", "half a pair \ud83e", 'quotes " and \\ and \x00', "two\nlines"]
)
def test_reasons_arrive_as_they_are(ledger, feed, reason):
    ledger.register(1, [ROOT], [A])
    assert ledger.fail([Failure(root=ROOT, component="überbolt", task=12, reason=reason)]) == 1
    assert said(feed.read(NOW)) == {"failed": [(ROOT, "überbolt", 12, reason)]}


def test_a_failure_that_rejects_its_message_arrives_as_one(ledger, feed):
    ledger.register(1, [ROOT, OTHER], [A, A])
    rejecting = replace(failure(ROOT, "never"), reject=True)
    assert ledger.apply(token(), updates(), [rejecting, failure(OTHER, "no")]).failed == 2
    found = {one.root: one.reject for one in feed.read(NOW).failed}
    assert found == {ROOT: True, OTHER: False}


def test_a_reason_keeps_its_first_500_characters(ledger, feed):
    ledger.register(1, [ROOT], [A])
    ledger.fail([failure(ROOT, "é" * 501)])
    assert feed.read(NOW).failed[0].reason == "é" * 500


def test_when_a_message_is_to_come_again_arrives_with_the_reason(ledger, feed):
    later = [
        Failure(root=ROOT, component="b", task=1, reason="busy", retry_after_s=2.5, blame=False),
        Failure(root=OTHER, component="b", task=1, reason="busy", retry_after_s=0.0),
        Failure(root=THIRD, component="b", task=1, reason="busy"),
    ]
    ledger.register(1, [ROOT, OTHER, THIRD], [A, B, C])
    none = updates({})
    assert ledger.apply(token(), none, later).failed == 3
    found = feed.read(NOW).failed
    assert sorted(found, key=later.index) == later


def test_many_failures_keep_their_own_reasons(ledger, feed):
    roots = list(range(1, 2001))
    ledger.register(1, roots, [A] * len(roots))
    failures = [
        failure(root, f"reason {root % 300}", f"bolt {root % 3}", root % 5) for root in roots
    ]
    assert ledger.apply(token(), updates(), failures).failed == 2000
    expected = [(root, f"bolt {root % 3}", root % 5, f"reason {root % 300}") for root in roots]
    assert said(feed.read(NOW)) == {"failed": expected}


def test_a_feed_skips_the_outcomes_of_earlier_readers(ledger, feed):
    ledger.register(1, [ROOT, OTHER], [A, B])
    ledger.apply(token(), updates({ROOT: A}))
    later = ledger.feed(1)
    ledger.apply(token(1), updates({OTHER: B}))
    assert said(later.read(NOW)) == {"acked": [OTHER]}
    later.close()


def test_an_earlier_reader_that_goes_on_takes_nothing_from_a_later_one(ledger, feed):
    later = ledger.feed(1)
    roots = list(range(1, 41))
    ledger.register(1, roots, [A] * len(roots))
    heard: list[int] = []
    for number, root in enumerate(roots):
        ledger.apply(token(number), updates({root: A}))
        for _ in range(3):
            feed.read(NOW)
        if number % 10 == 9:
            heard += later.read(NOW).acked
    assert heard == roots
    later.close()


def test_a_read_waits_for_outcomes_and_returns_when_they_come(ledger, feed):
    ledger.register(1, [ROOT], [A])
    bolt = threading.Timer(0.1, ledger.apply, (token(), updates({ROOT: A})))
    began = time.monotonic()
    bolt.start()
    assert said(feed.read(timedelta(seconds=30))) == {"acked": [ROOT]}
    assert 0.05 < time.monotonic() - began < 5
    bolt.join()


def test_a_read_gives_up_after_its_timeout(ledger, feed):
    began = time.monotonic()
    assert not feed.read(timedelta(seconds=0.2))
    assert 0.15 < time.monotonic() - began < 5


def test_closing_a_feed_wakes_its_reader(ledger):
    feed = ledger.feed(1)
    reader = threading.Thread(target=feed.read, args=(timedelta(seconds=60),))
    reader.start()
    feed.close()
    reader.join(timeout=20)
    assert not reader.is_alive()
    feed.close()
    assert not feed.read(NOW)


def test_trees_of_a_whole_batch_complete_over_many_slices(ledger, feed):
    roots = np.sort(np.array(RootIds(timedelta(seconds=30)).draw(10_000), np.uint64))
    ledger.register(1, roots.tolist(), mix_array(roots).tolist())
    assert ledger.pending() == roots.size
    passed_on = mix_array(roots) ^ mix_array(roots + np.uint64(1))
    assert ledger.apply(token(), Updates(roots=roots, xors=passed_on)) == Reply(
        applied=Applied.FRESH
    )
    ends = Updates(roots=roots, xors=mix_array(roots + np.uint64(1)))
    assert ledger.apply(token(1), ends).completed == roots.size
    assert sorted(feed.read(NOW).acked) == roots.tolist()


def test_arrays_of_unequal_length_are_an_error(ledger):
    with pytest.raises(ValueError, match=r"as many xors as roots|shorter"):
        ledger.apply(token(), Updates(roots=np.array([1], np.uint64), xors=np.array([], np.uint64)))
    with pytest.raises(ValueError, match=r"2 roots and 1 ack-vals|shorter"):
        ledger.register(1, [1, 2], [3])


def test_a_census_counts_what_is_pending_and_what_it_takes(ledger):
    assert ledger.census() == Census(pending=0, memory_bytes=0, feed_entries=0, feed_lag_s=0)
    ledger.register(1, [ROOT, OTHER], [A, A])
    two = ledger.census()
    assert two.pending == 2
    ledger.register(2, list(range(1, 1001)), [A] * 1000)
    many = ledger.census()
    assert many.pending == 1002
    assert 0 < two.memory_bytes < many.memory_bytes < 100_000


def test_a_census_tells_how_far_the_readers_of_outcomes_are_behind(ledger):
    feed = ledger.feed(1)
    ledger.register(1, [ROOT], [A])
    ledger.apply(token(), updates({ROOT: A}))
    waiting = wait_until(lambda: (census := ledger.census()).feed_lag_s > 0.05 and census)
    assert waiting.feed_entries == 1
    wait_until(lambda: not feed.read(NOW) and ledger.census().feed_entries == 0)
    assert ledger.census().feed_lag_s == 0
    feed.close()
