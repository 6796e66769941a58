"""An outage is logged once when it begins and once when it ends, however many parts are waiting."""

import pytest

from tests.support.clock import Clock
from tiercel.queues import outage
from tiercel.queues.outage import Outage

FULL = "cannot append tuples: Redis is full (OOM); raise its maxmemory"


@pytest.fixture
def said(caplog, monkeypatch):
    """Returns the lines logged so far, with their events."""
    caplog.set_level("INFO")
    monkeypatch.setattr(outage, "_process", "the driver")
    return lambda: [(record.event, record.getMessage()) for record in caplog.records]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def redis(clock):
    return Outage("Redis", clock)


def events(said):
    return [event for event, _ in said()]


def test_many_that_wait_are_two_lines_and_the_last_that_is_answered_ends_it(redis, clock, said):
    for _ in range(3):
        for task in range(12):
            redis.begins(task, f"cannot take from inbox {task}: Redis does not answer")
    clock.now = 65.0
    for task in range(11):
        redis.ends(task)
    assert events(said) == ["redis_away"]
    redis.ends(11)
    redis.ends(11)
    assert said() == [
        (
            "redis_away",
            "cannot take from inbox 0: Redis does not answer; the driver waits for Redis",
        ),
        ("redis_back", "Redis works again after 65 s; the driver goes on"),
    ]


def test_who_is_answered_without_having_waited_says_nothing(redis, said):
    redis.ends("another")
    assert said() == []


def test_a_server_that_refuses_and_accepts_in_turn_is_said_once_per_minute(redis, clock, said):
    for turn in range(250):
        clock.now = turn / 4
        redis.begins("outbox", FULL)
        redis.ends("outbox")
    assert events(said) == ["redis_away", "redis_back"] * 2


def test_an_outage_soon_after_another_is_said_when_it_lasts(redis, clock, said):
    redis.begins("outbox", FULL)
    redis.ends("outbox")
    clock.now = 10.0
    redis.begins("outbox", FULL)
    assert events(said) == ["redis_away", "redis_back"]
    clock.now = 12.5
    redis.begins("outbox", FULL)
    redis.ends("outbox")
    assert events(said) == ["redis_away", "redis_back"] * 2


def test_other_trouble_is_said_at_once(redis, said):
    redis.begins("outbox", FULL)
    redis.ends("outbox")
    redis.begins("outbox", "cannot append tuples: Redis does not answer")
    assert events(said) == ["redis_away", "redis_back", "redis_away"]


def test_who_ends_while_it_waits_holds_up_no_line(redis, said):
    redis.begins("first", FULL)
    redis.begins("second", FULL)
    redis.leaves("first")
    redis.ends("second")
    assert events(said) == ["redis_away", "redis_back"]


class RefusedError(Exception):
    refused = True


def test_an_outage_that_turns_into_a_refusal_is_said_once_more(redis, said):
    redis.begins("first", "Redis does not answer")
    redis.begins("first", RefusedError("Redis refuses (WRONGPASS)"))
    redis.begins("second", RefusedError("Redis refuses (WRONGPASS)"))
    redis.ends("second")
    redis.ends("first")
    assert events(said) == ["redis_away", "redis_away", "redis_back"]


def test_a_server_that_refuses_one_command_is_said_once_per_minute(redis, clock, said):
    for turn in range(250):
        clock.now = turn / 4
        redis.begins("spout", RefusedError("cannot append: Redis refuses (may not run XADD)"))
        redis.ends("spout")  # another command is allowed
    assert events(said) == ["redis_away", "redis_back"] * 2
