from datetime import timedelta

from tiercel.workers.spout.trees import InFlight, Pending


def test_nothing_expires_before_the_whole_timeout():
    pending = Pending(timedelta(seconds=30))
    pending.add_all([(1, "a")], now=100.0)
    assert pending.expire(129.9) == []


def test_what_is_due_expires_once_oldest_first():
    pending = Pending(timedelta(seconds=30))
    pending.add_all([(1, "a")], now=100.0)
    pending.add_all([(2, "b")], now=101.0)
    pending.add_all([(3, "c")], now=110.0)
    assert [in_flight.msg_id for _, in_flight in pending.expire(131.0)] == ["a", "b"]
    assert pending.expire(131.0) == []
    assert 3 in pending


def test_a_reset_starts_the_timeout_again_but_not_the_latency():
    pending = Pending(timedelta(seconds=30))
    pending.add_all([(1, "a")], now=100.0)
    pending.add_all([(2, "b")], now=101.0)
    assert pending.reset(1, now=120.0)
    assert [root for root, _ in pending.expire(131.0)] == [2]
    in_flight = pending.pop(1)
    assert in_flight is not None
    assert in_flight.emitted_at == 100.0


def test_an_outcome_for_what_is_not_in_flight_is_told_apart():
    pending = Pending(timedelta(seconds=30))
    pending.add_all([(1, "a")], now=0.0)
    assert pending.pop(1) is not None
    assert pending.pop(1) is None
    assert not pending.reset(1, now=1.0)


def test_many_go_in_and_out_together():
    pending = Pending(timedelta(seconds=30))
    pending.add_all([(1, "a"), (2, "b"), (3, "c")], now=100.0)
    pending.reset(1, now=104.0)
    assert pending.pop_all([1, 9, 3]) == (["a", "c"], [100.0, 100.0], [])
    assert pending.pop_all([1]) == ([], [], [])
    assert pending.roots == [2]
    assert pending.oldest_s(now=105.0) == 5


def test_without_a_timeout_nothing_ever_expires():
    pending = Pending(None)
    pending.add_all([(1, "a")], now=0.0)
    assert pending.expire(1e12) == []
    assert pending.roots == [1]


def test_the_oldest_is_the_one_that_was_emitted_first_whatever_its_timeout():
    pending = Pending(timedelta(seconds=30))
    assert pending.oldest_s(now=100.0) == 0
    pending.add_all([(1, "a")], now=100.0)
    pending.add_all([(2, "b")], now=104.0)
    assert pending.oldest_s(now=110.0) == 10
    pending.reset(1, now=111.0)
    assert pending.oldest_s(now=112.0) == 12
    pending.pop(1)
    assert pending.oldest_s(now=112.0) == 8
    pending.reset(2, now=113.0)
    pending.expire(143.0)
    assert pending.oldest_s(now=144.0) == 0
    pending.add_all([(3, "c")], now=150.0)
    assert pending.oldest_s(now=151.0) == 1


def test_what_waits_for_a_limit_is_in_flight_and_apart():
    pending = Pending(timedelta(seconds=30))
    for root in range(1, 4):
        pending.add_all([(root, f"m{root}")], now=100.0 + root)
    assert pending.wait(1, now=110.0) == 101.0
    assert pending.wait(1, now=115.0) is None, "it waited before"
    assert pending.wait(9, now=115.0) is None, "not in flight"
    assert (len(pending), len(pending.working), len(pending.waiting)) == (3, 2, 1)
    assert 1 in pending
    assert pending.oldest_s(120.0) == 18.0
    assert set(pending.roots) == {1, 2, 3}
    waited = [InFlight("m1", 101.0, waited=True)]
    assert pending.pop_all([1, 2]) == (["m2"], [102.0], waited)
    assert (len(pending), len(pending.working), len(pending.waiting)) == (1, 1, 0)


def test_what_waits_times_out_when_nothing_more_is_told_of_it():
    pending = Pending(timedelta(seconds=30))
    pending.add_all([(1, "m1"), (2, "m2")], now=100.0)
    pending.wait(1, now=110.0)
    assert pending.next_timeout == 130.0
    assert pending.expire(130.0) == [(2, InFlight("m2", 100.0))]
    assert pending.next_timeout == 140.0
    pending.reset(1, now=120.0)
    assert pending.expire(149.9) == []
    assert pending.expire(150.0) == [(1, InFlight("m1", 100.0, waited=True))]
    assert len(pending) == 0


def test_what_waits_may_fail_or_be_given_back():
    pending = Pending(timedelta(seconds=30))
    pending.add_all([(1, "m1")], now=100.0)
    pending.wait(1, now=110.0)
    found = pending.pop(1)
    assert found is not None
    assert (found.msg_id, found.emitted_at) == ("m1", 100.0)
    assert pending.pop(1) is None


def test_while_its_clock_is_stopped_nothing_gets_older_and_the_timeout_begins_anew():
    pending = Pending(timedelta(seconds=30))
    pending.add_all([(1, "a"), (2, "b")], now=100.0)
    pending.reset(2, now=105.0)
    pending.wait(1, now=106.0)
    for now in range(110, 1_000, 10):
        pending.hold(float(now), 10.0)
    assert pending.oldest_s(now=990.0) == 0
    assert pending.expire(1_019.9) == []
    expired = pending.expire(1_021.0)
    assert sorted((root, in_flight.emitted_at) for root, in_flight in expired) == [
        (1, 990.0),
        (2, 990.0),
    ]
