"""The limits in Redis: their cost, what tasks share, and lost replies."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from tests.support.proxy import Proxy
from tiercel import RedisUnavailableError
from tiercel.acker.limits import Grant, LimitSpec, Rate, RedisLimits
from tiercel.acker.redis.pool import Pool

PER_MINUTE = Rate(permits=1, seconds=60)


def test_a_value_is_one_small_string_that_expires(in_redis):
    place = in_redis()
    place.open(PER_MINUTE).take(7, {b"tenant": 2, b"x" * 5000: 2})
    found = list(place.buckets())
    assert len(found) == 2
    for client, key in found:
        assert client.strlen(key) == 8 + 24
        assert client.memory_usage(key) <= 256
        # The time until the bucket is full, plus half a minute and the longest wait.
        assert 90_000 <= client.pttl(key) <= 100_000


def test_a_task_that_asks_again_adds_nothing(in_redis):
    place = in_redis()
    limits = place.open(PER_MINUTE)
    for _ in range(20):
        limits.take(1, {b"": 1})
        limits.take(2, {b"": 1})
        limits.give_back(2, {b"": 0})
    [(client, key)] = place.buckets()
    assert client.strlen(key) == 8 + 2 * 24


def test_what_is_asked_in_one_call_is_one_round_trip(in_redis, monkeypatch):
    place = in_redis(shards=3)
    limits = place.open(PER_MINUTE)
    limits.take(1, {b"%d" % number: 1 for number in range(20)})
    trips = []
    exchange = Pool.exchange

    def counted(pool, commands):
        trips.append(len(commands))
        return exchange(pool, commands)

    monkeypatch.setattr(Pool, "exchange", counted)
    limits.take(1, {b"%d" % number: 1 for number in range(200)})
    limits.give_back(1, {b"%d" % number: 1 for number in range(200)})
    assert trips == [200, 200]


@pytest.mark.parametrize("changed", [{"topology": "another"}, {"component": "calls"}])
def test_another_bolt_has_another_limit(in_redis, changed):
    place = in_redis()
    changed = {name: f"{value}-{place.topology}" for name, value in changed.items()}
    for limits in (place.open(PER_MINUTE), place.open(PER_MINUTE, **changed)):
        assert limits.take(1, {b"": 1})[b""].permits == 1


def test_all_processes_share_the_limit_of_a_value_on_any_number_of_servers(in_redis, redis):
    place = in_redis(shards=5)
    urls = (place.url, redis().url)
    values = {b"%d" % number: 1 for number in range(100)}
    first = place.open(PER_MINUTE, urls=urls).take(1, values)
    second = place.open(PER_MINUTE, urls=urls).take(2, values)
    assert {grant.permits for grant in first.values()} == {1}
    assert {grant.permits for grant in second.values()} == {0}


def test_a_limit_that_was_changed_holds_from_the_next_call_on(in_redis):
    place = in_redis()
    place.open(Rate(permits=1, seconds=3600)).take(1, {b"": 1})
    per_second = place.open(Rate(permits=1))
    assert per_second.take(1, {b"": 1})[b""].again_ms <= 1000
    place.pass_time(1)
    assert per_second.take(1, {b"": 1})[b""].permits == 1


def test_a_call_whose_reply_was_lost_takes_once(in_redis):
    place = in_redis()
    with Proxy(place.url) as proxy:
        limits = RedisLimits(place.spec(PER_MINUTE, urls=(proxy.url,)))
        limits.take(1, {b"other": 1})
        proxy.lose_next(1)
        assert limits.take(1, {b"": 1}) == {b"": Grant(permits=1)}
        assert proxy.lost == 1
        limits.close()


@pytest.mark.parametrize(("returned", "wanted"), [(1, 0), (0, 1), (0, 7)])
def test_a_call_that_is_repeated_changes_nothing(in_redis, returned, wanted):
    place = in_redis()
    limits = place.open(Rate(permits=100))
    limits.take(1, {b"": 4})
    call = limits._asking(1, b"", returned, wanted)
    first = call.perform()
    [(client, key)] = place.buckets()
    held = client.get(key)
    assert call.perform().permits == first.permits
    assert client.get(key) == held


def test_a_server_that_is_away_is_an_error_of_ours(redis):
    server = redis()
    spec = LimitSpec(topology="t", component="c", urls=(server.url,), shards=1, rate=PER_MINUTE)
    limits = RedisLimits(spec)
    server.stop()
    with pytest.raises(RedisUnavailableError, match="cannot take permits"):
        limits.take(1, {b"": 1})
    server.start()
    assert limits.take(1, {b"": 1})[b""].permits == 1
    limits.close()


def test_four_tasks_get_what_the_rate_says_by_the_server_s_clock(in_redis):
    place = in_redis()
    rate = Rate(permits=200)
    got = Counter()
    calls = Counter()
    # Seconds by which a task was too late to keep its permits, because the machine stalled.
    late = []
    over = threading.Event()

    def want_more(limits, task):
        due = time.monotonic()
        while not over.is_set():
            grant = limits.take(task, {b"": 1000})[b""]
            now = time.monotonic()
            if now - due > 0.05:
                late.append(now - due)
            got[task] += grant.permits
            calls[task] += 1
            due = now + grant.again_ms / 1000
            over.wait(grant.again_ms / 1000)

    tasks = []
    for task in (1, 2, 3, 4):
        limits = place.open(rate)
        limits.give_back(task, {b"": 0})  # it connects
        tasks.append(threading.Thread(target=want_more, args=(limits, task)))
    began = time.monotonic()
    for task in tasks:
        task.start()
    over.wait(3)
    over.set()
    for task in tasks:
        task.join()
    seconds = time.monotonic() - began
    in_bucket = rate.depth_us / rate.interval_us
    total = sum(got.values())
    lost = 200 * sum(late)
    assert 0.98 * 200 * seconds - rate.most - lost <= total <= 200 * seconds + in_bucket
    assert max(got.values()) - min(got.values()) <= 4 * rate.most + lost
    assert sum(calls.values()) <= 1.3 * total / rate.most + 20 + 8 * len(late)
