"""The contract of ``Metrics``, run over both backends."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.clock import Clock
from tests.support.proxy import Proxy
from tiercel import RedisUnavailableError
from tiercel.acker.metrics.contract import Counted, ErrorReport, Window
from tiercel.acker.metrics.memory import MemoryMetrics
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.acker.redis.clients import connect, connect_topology

THEN = datetime(2024, 2, 29, 12, 30, 0, 123456, UTC)


@pytest.fixture
def clock():
    # A slot of each window begins at this time.
    return Clock(1_000 * 86_400.0)


@pytest.fixture(params=["memory", "redis"])
def metrics(request, clock):
    """The error windows last as long as the test, if that is ten seconds."""
    if request.param == "memory":
        yield MemoryMetrics(clock)
        return
    made = RedisMetrics(request.getfixturevalue("redis_url"), f"metrics-{uuid.uuid4().hex}", clock)
    yield made
    made.close()


def error(number: int = 0, message: str = "boom", task: int = 3) -> ErrorReport:
    return ErrorReport(
        at=THEN + timedelta(seconds=number), component="split", task=task, message=message
    )


def test_counters_add_up_by_component_and_task(metrics):
    metrics.add("split", 1, {"executed": 2, "acked": 1})
    metrics.add("split", 1, {"executed": 3})
    metrics.add("split", 2, {"executed": 1})
    metrics.add('count: it\'s "all" 漢字', 3, {"complete_ms_bucket:-3": 7})
    metrics.add("idle", 9, {})
    assert metrics.totals() == {
        "split": {1: {"executed": 5, "acked": 1}, 2: {"executed": 1}},
        'count: it\'s "all" 漢字': {3: {"complete_ms_bucket:-3": 7}},
    }


def test_counters_of_several_tasks_add_up_in_one_call(metrics):
    metrics.add("split", 1, {"executed": 2})
    metrics.add_all({("split", 1): {"executed": 1}, ("count", 2): {"acked": 4}, ("idle", 3): {}})
    metrics.add_all({})
    assert metrics.totals() == {"split": {1: {"executed": 3}}, "count": {2: {"acked": 4}}}


def executed(metrics, window):
    counted = metrics.over(window)
    return counted.counts.get("split", {}).get(1, {}).get("executed", 0), counted.seconds


def test_before_anything_is_counted_every_window_is_empty_and_has_no_length(metrics):
    metrics.add("idle", 1, {})
    assert [metrics.over(window) for window in Window] == [Counted(counts={}, seconds=0)] * 4


def test_a_window_holds_what_was_counted_in_it_and_says_how_long_it_is(metrics, clock):
    for _ in range(200):  # every nine minutes for thirty hours
        metrics.add("split", 1, {"executed": 1})
        clock.now += 540
    assert executed(metrics, Window.TEN_MINUTES) == (1, 600)
    assert executed(metrics, Window.THREE_HOURS) == (20, 10_800)
    assert executed(metrics, Window.ONE_DAY) == (160, 86_400)
    assert executed(metrics, Window.ALL_TIME) == (200, 108_000)


@pytest.mark.parametrize(
    ("window", "slot"),
    [(Window.TEN_MINUTES, 30), (Window.THREE_HOURS, 540), (Window.ONE_DAY, 4320)],
)
def test_a_count_stays_in_a_window_for_its_length_and_leaves_it_within_a_slot_more(
    metrics, clock, window, slot
):
    clock.now += slot - 1
    metrics.add("split", 1, {"executed": 3})
    clock.now += window.value
    assert executed(metrics, window) == (3, window.value)
    clock.now += slot
    assert executed(metrics, window) == (0, window.value + slot - 1)
    assert executed(metrics, Window.ALL_TIME)[0] == 3


def test_a_window_is_as_long_as_counting_goes_on(metrics, clock):
    clock.now += 7
    metrics.add("split", 1, {"executed": 1})
    clock.now += 13
    assert [metrics.over(window).seconds for window in Window] == [13] * 4


def test_what_is_kept_for_the_windows_is_bounded_and_expires(redis_url, clock):
    name = f"metrics-{uuid.uuid4().hex}"
    metrics = RedisMetrics(redis_url, name, clock)
    client = connect(redis_url)
    metrics.add("split", 1, {"executed": 1})
    lifetimes = sorted(
        client.pttl(key) // 1000 for key in client.keys(f"tiercel:{{{name}}}:metrics:*:*")
    )
    assert [
        seconds - left < 60 for seconds, left in zip((690, 12_420, 99_360), lifetimes, strict=True)
    ] == [True] * 3
    metrics.clear()
    assert client.keys(f"*{name}*") == []
    metrics.close()


@pytest.mark.parametrize("lost", [1, 3])
def test_a_call_whose_reply_was_lost_is_counted_once(redis_url, lost):
    with Proxy(redis_url) as proxy:
        metrics = RedisMetrics(proxy.url, f"metrics-{uuid.uuid4().hex}")
        metrics.add("split", 1, {"executed": 1})
        proxy.lose_next(lost)
        if lost == 1:  # the client itself repeats the call twice
            metrics.add("split", 1, {"executed": 1000})
        else:
            with pytest.raises(RedisUnavailableError):
                metrics.add("split", 1, {"executed": 1000})
        metrics.add("split", 1, {"executed": 5})
        assert proxy.lost == lost
        assert (
            executed(metrics, Window.ALL_TIME)[0]
            == executed(metrics, Window.TEN_MINUTES)[0]
            == 1006
        )
        metrics.close()


def test_what_could_not_be_counted_is_counted_with_the_next_call(redis):
    server = redis()
    metrics = RedisMetrics(server.url, "t")
    server.stop()
    for _ in range(3):
        with pytest.raises(RedisUnavailableError):
            metrics.add("split", 1, {"executed": 7})
    server.start()
    metrics.add("split", 1, {})
    assert metrics.totals() == {"split": {1: {"executed": 21}}}
    metrics.close()


def test_errors_come_newest_first(metrics):
    metrics.report([error(1), error(2)])
    metrics.report([])
    metrics.report([error(3, "naïve 🦅")])
    assert metrics.errors() == [error(3, "naïve 🦅"), error(2), error(1)]
    assert metrics.errors(limit=1) == [error(3, "naïve 🦅")]
    assert metrics.errors(limit=0) == []


def test_an_error_that_is_reported_late_lies_where_its_time_is(metrics):
    metrics.report([error(1), error(3)])
    metrics.report([error(2)])
    assert metrics.errors() == [error(3), error(2), error(1)]
    assert metrics.errors(limit=1) == [error(2)]


def test_a_message_keeps_its_first_500_characters(metrics):
    metrics.report([error(message="é" * 501)])
    assert metrics.errors()[0].message == "é" * 500


def test_the_newest_thousand_errors_are_kept(metrics):
    metrics.report([error(number, task=number) for number in range(700)])
    metrics.report([error(number, task=number) for number in range(700, 1400)])
    kept = metrics.errors(limit=5000)
    assert len(kept) == 1000
    assert (kept[0], kept[-1]) == (error(1399, task=1399), error(400, task=400))


def test_of_one_task_the_first_five_errors_of_a_window_are_kept_and_others_do_not_count(metrics):
    metrics.report([error(number) for number in range(3)])
    metrics.report(
        [
            *(error(number, task=4) for number in range(7)),
            *(error(number) for number in range(3, 9)),
        ]
    )
    metrics.report([error(9), error(9, task=5)])
    kept = metrics.errors()[::-1]
    assert [each for each in kept if each.task == 3] == [error(number) for number in range(5)]
    assert [each for each in kept if each.task == 4] == [
        error(number, task=4) for number in range(5)
    ]
    assert [each for each in kept if each.task == 5] == [error(9, task=5)]


def test_two_processes_of_one_task_share_its_window(redis_url):
    name = f"metrics-{uuid.uuid4().hex}"
    one = RedisMetrics(redis_url, name)
    two = RedisMetrics(redis_url, name)
    for number in range(4):
        for metrics in (one, two):
            metrics.report([error(number)])
    assert len(one.errors()) == 5
    one.close()
    two.close()


def test_after_ten_seconds_a_task_may_report_again_in_memory():
    now = [100.0]
    metrics = MemoryMetrics(lambda: now[0])
    metrics.report([error(number) for number in range(6)])
    now[0] += 9.9
    metrics.report([error(20)])
    assert len(metrics.errors()) == 5
    now[0] += 0.1
    metrics.report([error(number) for number in range(30, 36)])
    assert metrics.errors()[:5] == [error(number) for number in range(34, 29, -1)]


def test_after_ten_seconds_a_task_may_report_again_in_redis(redis_url):
    name = f"metrics-{uuid.uuid4().hex}"
    metrics = RedisMetrics(redis_url, name)
    metrics.report([error(number) for number in range(6)])
    client = connect_topology(redis_url, name)
    task, window = next(iter(client.hgetall(metrics._windows_key).items()))
    began, count = map(int, window.split())
    client.hset(metrics._windows_key, task, f"{began - 5_000} {count}")
    metrics.report([error(20)])
    assert len(metrics.errors()) == 5
    client.hset(metrics._windows_key, task, f"{began - 10_000} {count}")
    metrics.report([error(number) for number in range(30, 36)])
    assert metrics.errors()[:5] == [error(number) for number in range(34, 29, -1)]
    client.hset(metrics._windows_key, task, f"{began + 3_600_000} {count}")
    metrics.report([error(40)])
    assert metrics.errors(1) == [error(40)], "a server's clock may be put back"
    metrics.close()
    client.close()


def test_the_windows_of_errors_expire_with_the_last_one(redis_url):
    name = f"metrics-{uuid.uuid4().hex}"
    metrics = RedisMetrics(redis_url, name)
    client = connect_topology(redis_url, name)
    for extra in range(1, 4):
        metrics.report([error(task=extra * 1_000_000 + 3)])
        assert 9_000 < client.pttl(metrics._windows_key) <= 10_000
    metrics.close()
    client.close()


def test_the_counts_of_tasks_that_are_over_stay_with_their_component(metrics):
    for number in range(1, 300):
        extra = number * 1_000_000 + 3
        metrics.add_all({("split", extra): {"executed": 2, "acked": 1}, ("count", extra): {"a": 1}})
    metrics.add("split", 3, {"executed": 5})
    metrics.retire(lambda task: 1_000_000 < task < 299_000_000)
    metrics.retire(lambda task: task == 1_000_003)
    last = 299_000_003
    assert metrics.totals() == {
        "split": {
            0: {"executed": 596, "acked": 298},
            3: {"executed": 5},
            last: {"executed": 2, "acked": 1},
        },
        "count": {0: {"a": 298}, last: {"a": 1}},
    }
    # A process that ended late.
    metrics.add("split", 1_000_003, {"executed": 1})
    metrics.retire(lambda task: task > 1_000_000)
    assert metrics.totals() == {
        "split": {0: {"executed": 599, "acked": 299}, 3: {"executed": 5}},
        "count": {0: {"a": 299}},
    }
    assert executed(metrics, Window.ALL_TIME)[1] == executed(metrics, Window.ONE_DAY)[1]


def test_everything_can_be_cleared(metrics):
    metrics.add("split", 1, {"executed": 2})
    metrics.report([error()])
    metrics.clear()
    assert metrics.totals() == {}
    assert [metrics.over(window) for window in Window] == [Counted(counts={}, seconds=0)] * 4
    assert metrics.errors() == []
    metrics.report([error(number) for number in range(5)])
    assert len(metrics.errors()) == 5


def test_a_server_that_is_away_is_an_error_of_ours(redis):
    server = redis()
    metrics = RedisMetrics(server.url, "t")
    server.stop()
    with pytest.raises(RedisUnavailableError, match="cannot count"):
        metrics.add("split", 1, {"executed": 1})
    metrics.close()
