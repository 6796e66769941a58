"""While Redis is away a worker waits, says so once, and ends when it shall."""

import threading

from tiercel import RedisUnavailableError
from tiercel.workers.patience import patiently


class Redis:
    """Is away for so many calls."""

    def __init__(self, away: int) -> None:
        self.away = away
        self.calls = 0

    def ask(self, question: str) -> str:
        self.calls += 1
        if self.calls <= self.away:
            raise RedisUnavailableError("Redis is away")
        return question.upper()


def said(caplog) -> list[str]:
    return [
        record.message for record in caplog.records if record.name == "tiercel.workers.patience"
    ]


def test_what_answers_is_asked_once(caplog):
    redis = Redis(away=0)
    assert patiently(threading.Event(), redis.ask, "x") == "X"
    assert (redis.calls, said(caplog)) == (1, [])


def test_a_row_of_failures_is_said_once(caplog):
    redis = Redis(away=4)
    assert patiently(threading.Event(), redis.ask, question="x") == "X"
    assert (redis.calls, said(caplog)) == (5, ["Redis is away; trying again"])


def test_who_shall_end_does_not_wait(caplog):
    stopped = threading.Event()
    stopped.set()
    assert patiently(stopped, Redis(away=100).ask, "x") is None
    assert said(caplog) == []


def test_a_wait_is_broken_off():
    stopped = threading.Event()
    timer = threading.Timer(0.3, stopped.set)
    timer.start()
    assert patiently(stopped, Redis(away=10**6).ask, "x") is None
    timer.join()
