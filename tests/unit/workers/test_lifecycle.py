"""While Redis is down a worker waits, logs it once, and ends on request."""

import os
import signal
import subprocess
import sys
import threading

from tiercel import RedisUnavailableError
from tiercel.workers.lifecycle import Heartbeat, patiently


def test_a_beat_makes_the_file_young(tmp_path):
    heartbeat = Heartbeat(tmp_path / "beat")
    heartbeat.beat()
    os.utime(tmp_path / "beat", (0, 0))
    heartbeat.beat()
    assert (tmp_path / "beat").stat().st_mtime > 0


def test_where_nobody_watches_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Heartbeat().beat()
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_is_said_once_and_the_work_goes_on(tmp_path, caplog):
    heartbeat = Heartbeat(tmp_path / "nowhere" / "beat")
    heartbeat.beat()
    heartbeat.beat()
    assert [record.event for record in caplog.records] == ["heartbeat_failed"]


# The handler interrupts a wait for the event that it sets, while the event's lock is held.
PROGRAM = """
import os, signal, threading
from tiercel.workers.lifecycle import on_signals

stopped = threading.Event()
on_signals(stopped.set)
with stopped._cond:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):
        pass
print(stopped.wait(10), flush=True)
AGAIN
"""


def ran(again: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("AGAIN", again)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_a_signal_in_the_middle_of_a_wait_is_heard():
    ended = ran("")
    assert (ended.stdout, ended.returncode) == ("True\n", 0)


def test_a_second_signal_ends_the_process_at_once():
    assert ran("os.kill(os.getpid(), signal.SIGINT)").returncode == -signal.SIGINT


def test_another_signal_is_heard_too():
    ended = ran("stopped.clear(); os.kill(os.getpid(), signal.SIGTERM); print(stopped.wait(10))")
    assert ended.stdout == "True\nTrue\n"


# Its last object dies when Python has given up its signal handlers.
ENDING = """
import os, signal, sys, threading
from tiercel.workers.lifecycle import on_signals

class Late:
    # Arguments, because modules are empty by then.
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGINT):
        kill(pid, number)

on_signals(threading.Event().set)
late = Late()
sys.exit(3)
"""


def test_a_signal_to_a_process_that_is_ending_does_not_change_its_exit_code():
    program = [sys.executable, "-c", ENDING]
    ended = subprocess.run(program, capture_output=True, timeout=30, check=False)
    assert (ended.returncode, ended.stderr) == (3, b"")


class Redis:
    """Is down for this many calls."""

    def __init__(self, away: int) -> None:
        self.away = away
        self.calls = 0

    def ask(self, question: str) -> str:
        self.calls += 1
        if self.calls <= self.away:
            raise RedisUnavailableError("Redis is away")
        return question.upper()


def said(caplog) -> list[str]:
    caplog.set_level("INFO")
    return [
        record.message
        for record in caplog.records
        if record.name == "tiercel.queues.outage" and record.levelname != "DEBUG"
    ]


def test_what_answers_is_asked_once(caplog):
    redis = Redis(away=0)
    assert patiently(threading.Event(), redis.ask, "x") == "X"
    assert (redis.calls, said(caplog)) == (1, [])


def test_a_row_of_failures_is_said_once(caplog):
    caplog.set_level("INFO")
    redis = Redis(away=4)
    assert patiently(threading.Event(), redis.ask, question="x") == "X"
    away, back = said(caplog)
    assert redis.calls == 5
    assert away.startswith("Redis is away; ")
    assert away.endswith(" waits for Redis")
    assert back.startswith("Redis works again after ")


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
