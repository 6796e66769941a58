"""The driver's lease, on the memory twin of presence and on Redis."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.support.presences import InRedis
from tiercel.spark_jobs.whereabouts import Whereabouts
from tiercel.workers.control.presence import DRIVER, ExecutorReport, Holder, Lease

A = Holder(
    driver="a",
    run="17",
    shape="abc",
    parallelism={"count": 4, "split words, all=": 2},
    whereabouts=Whereabouts(host="node-3", pid=17, since=datetime(2024, 1, 1, tzinfo=UTC)),
)
B = Holder(driver="b")


@pytest.fixture
def lease(seats):
    made = Lease(seats.presences())
    yield made
    made.close()


def test_one_driver_has_it_and_what_it_says_of_itself_is_found(lease):
    assert lease.holder() is None
    assert lease.take(A)
    assert not lease.take(B)
    assert lease.holder() == A


def test_the_holder_says_something_else_of_itself_by_taking_it_again(lease):
    for holder in (
        A,
        Holder(driver="a"),
        Holder(driver="a", shape="abc"),
        Holder(driver="a", run="18", starting=True),
        Holder(driver="a", run="18"),
        Holder(driver="a", executors=ExecutorReport(wanted=7, present=4, refused=3, why="ü, 1 s")),
        Holder(driver="a", trouble="executor 1 on h cannot start Python '/ü x'"),
    ):
        assert lease.take(holder)
        assert lease.holder() == holder


def test_it_lapses_unless_it_is_renewed(seats, lease):
    half = DRIVER.lasts.total_seconds() / 2
    assert lease.take(A)
    seats.expire(half)
    assert lease.take(A)
    seats.expire(half)
    assert not lease.take(B)
    seats.expire(half)
    assert lease.holder() is None
    assert lease.take(B)
    assert not lease.take(A)


def test_only_the_holder_draws_runs_and_each_has_a_higher_number_whoever_drew_it(seats, lease):
    assert lease.draw("a") is None
    lease.take(A)
    drawn = [lease.draw("a"), lease.draw("a")]
    assert lease.draw("b") is None
    lease.leave("a")
    lease.take(B)
    assert lease.draw("a") is None
    drawn += [lease.draw("b"), lease.draw("b")]
    assert drawn == sorted(set(drawn))
    seats.expire(DRIVER.lasts.total_seconds())
    assert lease.draw("b") is None


def test_a_clock_that_was_set_back_gives_no_lower_number(redis_url):
    seats = InRedis(redis_url)
    lease = Lease(seats.presences())
    lease.take(A)
    drawn = lease.draw("a")
    seconds, _ = seats.client.time()
    assert abs(drawn / 1e6 - seconds) < 60
    ahead = drawn + 10**12
    seats.client.set(f"tiercel:{{{seats.topology}}}:run", ahead)
    assert [lease.draw("a"), lease.draw("a")] == [ahead + 1, ahead + 2]


@pytest.mark.parametrize(
    ("written", "found"),
    [
        (b"a", Holder(driver="a")),
        (b"a 17", Holder(driver="a", run="17")),
        (b"a 17 abc", Holder(driver="a", run="17", shape="abc")),
        (b"a - abc = - - more of a newer version", Holder(driver="a", shape="abc")),
        (
            b"a 17 abc count=4,split=many,=,%ff=1,sum=0 more",
            Holder(driver="a", run="17", shape="abc", parallelism={"count": 4}),
        ),
        (b"a 17 abc - - - seven,4,,", Holder(driver="a", run="17", shape="abc")),
        (b"", Holder(driver="")),
        (b"\xff\n1 2", Holder(driver="\ufffd", run="1", shape="2")),
    ],
)
def test_what_another_version_wrote_is_a_driver_all_the_same(redis_url, written, found):
    seats = InRedis(redis_url)
    presences = seats.presences()
    seats.client.set(presences.key(DRIVER), written)
    assert Lease(presences).holder() == found
