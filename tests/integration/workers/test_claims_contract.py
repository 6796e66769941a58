"""The contract of claims, on its memory twin and on Redis."""

from __future__ import annotations

import uuid

import pytest

from tiercel import RedisUnavailableError
from tiercel.acker.connection.client import connect
from tiercel.workers.control.claims import CLAIM, MemoryClaims
from tiercel.workers.control.redis_claims import RedisClaims

TASKS = range(3, 6)


class Memory:
    def __init__(self):
        self.now = 0.0
        self.claimed = {}

    def worker(self, name):
        return MemoryClaims(name, self.claimed, lambda: self.now)

    def expire(self, seconds):
        self.now += seconds


class Redis:
    def __init__(self, url):
        self.url, self.topology = url, f"claims-{uuid.uuid4().hex}"

    def worker(self, name):
        return RedisClaims(self.url, self.topology)

    def expire(self, seconds):
        """As if this time had gone by."""
        client = connect(self.url)
        for key in client.keys(f"tiercel:{{{self.topology}}}:claim:*"):
            left = client.pttl(key) - seconds * 1000
            client.pexpire(key, int(left)) if left > 0 else client.delete(key)


@pytest.fixture(params=["memory", "redis"])
def place(request):
    return Memory() if request.param == "memory" else Redis(request.getfixturevalue("redis_url"))


def test_each_worker_gets_a_task_of_its_own_until_there_are_none_left(place):
    workers = [place.worker(str(number)) for number in range(4)]
    assert [worker.take(TASKS) for worker in workers] == [3, 4, 5, None]


def test_a_claim_that_is_kept_stays_and_one_that_is_not_lapses(place):
    kept = place.worker("a")
    forgotten = place.worker("b")
    late = place.worker("c")
    assert (kept.take(TASKS), forgotten.take(TASKS)) == (3, 4)
    place.expire(CLAIM.total_seconds() - 2)
    assert kept.keep(3)
    place.expire(3)
    assert late.take(TASKS) == 4
    assert kept.keep(3)
    assert not forgotten.keep(4)


def test_a_claim_that_lapsed_is_claimed_again_if_nobody_else_has_it(place):
    worker = place.worker("a")
    worker.take(TASKS)
    place.expire(CLAIM.total_seconds() + 1)
    assert worker.keep(3)
    assert place.worker("b").take(TASKS) == 4


def test_a_task_that_was_left_is_free(place):
    worker = place.worker("a")
    other = place.worker("b")
    worker.take(TASKS)
    worker.leave(3)
    worker.leave(3)
    assert other.take(TASKS) == 3


def test_nobody_gives_another_ones_task_free(place):
    worker = place.worker("a")
    other = place.worker("b")
    worker.take(TASKS)
    other.leave(3)
    assert other.take(TASKS) == 4


def test_a_repeated_call_changes_nothing(place):
    worker = place.worker("a")
    assert worker.take(range(3, 4)) == 3
    assert worker.take(range(3, 4)) in (3, None)
    assert worker.keep(3)
    assert worker.keep(3)


def test_a_redis_that_is_away_is_an_error_that_passes(redis):
    server = redis()
    claims = RedisClaims(server.url, "claims")
    assert claims.take(TASKS) == 3
    server.kill()
    for call in (lambda: claims.take(TASKS), lambda: claims.keep(3), lambda: claims.leave(3)):
        with pytest.raises(RedisUnavailableError):
            call()
