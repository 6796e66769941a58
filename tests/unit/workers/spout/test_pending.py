from datetime import timedelta

from tiercel.workers.spout.pending import Pending


def test_nothing_expires_before_the_whole_timeout():
    pending = Pending(timedelta(seconds=30))
    pending.add(1, "a", now=100.0)
    assert pending.expire(129.9) == []


def test_what_is_due_expires_once_oldest_first():
    pending = Pending(timedelta(seconds=30))
    pending.add(1, "a", now=100.0)
    pending.add(2, "b", now=101.0)
    pending.add(3, "c", now=110.0)
    assert [in_flight.msg_id for _, in_flight in pending.expire(131.0)] == ["a", "b"]
    assert pending.expire(131.0) == []
    assert 3 in pending


def test_a_reset_starts_the_timeout_again_but_not_the_latency():
    pending = Pending(timedelta(seconds=30))
    pending.add(1, "a", now=100.0)
    pending.add(2, "b", now=101.0)
    assert pending.reset(1, now=120.0)
    assert [root for root, _ in pending.expire(131.0)] == [2]
    in_flight = pending.pop(1)
    assert in_flight is not None
    assert in_flight.emitted_at == 100.0


def test_an_outcome_for_what_is_not_in_flight_is_told_apart():
    pending = Pending(timedelta(seconds=30))
    pending.add(1, "a", now=0.0)
    assert pending.pop(1) is not None
    assert pending.pop(1) is None
    assert not pending.reset(1, now=1.0)


def test_many_go_in_and_out_together():
    pending = Pending(timedelta(seconds=30))
    pending.add_all([(1, "a"), (2, "b"), (3, "c")], now=100.0)
    pending.reset(1, now=104.0)
    assert pending.pop_all([1, 9, 3]) == (["a", "c"], [100.0, 100.0], [104.0, 100.0])
    assert pending.pop_all([1]) == ([], [], [])
    assert [root for root, _ in pending.items()] == [2]
    assert pending.oldest_s(now=105.0) == 5


def test_without_a_timeout_nothing_ever_expires():
    pending = Pending(None)
    pending.add(1, "a", now=0.0)
    assert pending.expire(1e12) == []
    assert [root for root, _ in pending.items()] == [1]


def test_the_oldest_is_the_one_that_was_emitted_first_whatever_its_timeout():
    pending = Pending(timedelta(seconds=30))
    assert pending.oldest_s(now=100.0) == 0
    pending.add(1, "a", now=100.0)
    pending.add(2, "b", now=104.0)
    assert pending.oldest_s(now=110.0) == 10
    pending.reset(1, now=111.0)
    assert pending.oldest_s(now=112.0) == 12
    pending.pop(1)
    assert pending.oldest_s(now=112.0) == 8
    pending.reset(2, now=113.0)
    pending.expire(143.0)
    assert pending.oldest_s(now=144.0) == 0
    pending.add(3, "c", now=150.0)
    assert pending.oldest_s(now=151.0) == 1


def test_the_old_are_counted_by_when_their_timeout_began():
    pending = Pending(timedelta(seconds=30))
    assert pending.oldest_at(now=7.0) == 7.0
    pending.add_all([(1, "a"), (2, "b")], now=100.0)
    pending.add(3, "c", now=105.0)
    pending.add(4, "d", now=110.0)
    pending.reset(1, now=112.0)
    assert pending.old(after=float("-inf"), before=110.0) == 3
    assert pending.old(after=101.0, before=109.0) == 1
    assert pending.oldest_at(now=120.0) == 100.0
