"""The contract of the driver's lease, on its memory twin and on Redis."""

from __future__ import annotations

import uuid

import pytest

from tiercel.acker.connection.client import connect
from tiercel.workers.control.lease import LASTS, Holder
from tiercel.workers.control.memory_lease import MemoryLease
from tiercel.workers.control.redis_lease import RedisLease

A = Holder(driver="a", run="17", shape="abc", parallelism={"count": 4, "split words, all=": 2})
B = Holder(driver="b")


class Memory:
    def __init__(self):
        self.now = 0.0
        self.lease = MemoryLease(lambda: self.now)

    def expire(self, seconds):
        self.now += seconds


class Redis:
    def __init__(self, url):
        self.client, self.topology = connect(url), f"lease-{uuid.uuid4().hex}"
        self.lease = RedisLease(url, self.topology)

    @property
    def key(self):
        return f"tiercel:{{{self.topology}}}:lease"

    def expire(self, seconds):
        """As if this time had gone by."""
        left = self.client.pttl(self.key) - seconds * 1000
        self.client.pexpire(self.key, int(left)) if left > 0 else self.client.delete(self.key)


@pytest.fixture(params=["memory", "redis"])
def place(request):
    made = Memory() if request.param == "memory" else Redis(request.getfixturevalue("redis_url"))
    yield made
    made.lease.close()


@pytest.fixture
def lease(place):
    return place.lease


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
        Holder(driver="a", run="18"),
    ):
        assert lease.take(holder)
        assert lease.holder() == holder


def test_it_lapses_unless_it_is_renewed(place, lease):
    assert lease.take(A)
    place.expire(LASTS.total_seconds() - 1)
    assert lease.take(A)
    place.expire(LASTS.total_seconds() - 1)
    assert not lease.take(B)
    place.expire(1)
    assert lease.holder() is None
    assert lease.take(B)
    assert not lease.take(A)


def test_who_gives_it_up_gives_up_its_own_only(lease):
    lease.leave("a")
    assert lease.take(B)
    lease.leave("a")
    assert lease.holder() == B
    for _ in range(2):
        lease.leave("b")
        assert lease.holder() is None
    assert lease.take(A)


def test_only_the_holder_draws_runs_and_each_has_a_higher_number_whoever_drew_it(place, lease):
    assert lease.draw("a") is None
    lease.take(A)
    drawn = [lease.draw("a") for _ in range(20)]
    assert lease.draw("b") is None
    lease.leave("a")
    lease.take(B)
    assert lease.draw("a") is None
    drawn += [lease.draw("b") for _ in range(20)]
    assert drawn == sorted(set(drawn))
    place.expire(LASTS.total_seconds())
    assert lease.draw("b") is None
    assert 0 < drawn[0] < drawn[-1] < 2**53


def test_a_clock_that_was_set_back_gives_no_lower_number(redis_url):
    place = Redis(redis_url)
    place.lease.take(A)
    drawn = place.lease.draw("a")
    seconds, _ = place.client.time()
    assert abs(drawn / 1e6 - seconds) < 60
    ahead = drawn + 10**12
    place.client.set(f"tiercel:{{{place.topology}}}:run", ahead)
    assert [place.lease.draw("a"), place.lease.draw("a")] == [ahead + 1, ahead + 2]


@pytest.mark.parametrize(
    ("written", "found"),
    [
        (b"a", Holder(driver="a")),
        (b"a 17", Holder(driver="a", run="17")),
        (b"a 17 abc", Holder(driver="a", run="17", shape="abc")),
        (b"a - abc more of a newer version", Holder(driver="a", shape="abc")),
        (
            b"a 17 abc count=4,split=many,=,%ff=1,sum=0 more",
            Holder(driver="a", run="17", shape="abc", parallelism={"count": 4}),
        ),
        (b"", Holder(driver="-")),
        (b"\xff\n1 2", Holder(driver="\ufffd", run="1", shape="2")),
    ],
)
def test_what_another_version_wrote_is_a_driver_all_the_same(redis_url, written, found):
    place = Redis(redis_url)
    place.client.set(place.key, written)
    assert place.lease.holder() == found


def test_a_server_out_of_memory_takes_no_driver_its_lease(redis):
    place = Redis(redis().url)
    place.lease.take(A)
    place.client.config_set("maxmemory", 1)
    assert place.lease.take(A)
    assert place.lease.draw("a")
    place.lease.leave("a")
    assert place.lease.take(B)
