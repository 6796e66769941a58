"""A start that takes long and is interrupted, with real processes."""

import subprocess
import sys
import threading
import time

import pytest

from tests.support.waiting import wait_until
from tiercel.workers.driver.process import start_unless

# It takes a while to end, like a JVM.
SLOW_TO_END = """
import pathlib, signal, sys, time

def end(*_):
    time.sleep(0.3)
    pathlib.Path(sys.argv[1]).unlink()
    sys.exit(143)

signal.signal(signal.SIGTERM, end)
pathlib.Path(sys.argv[1]).touch()
time.sleep(60)
"""


def test_a_start_that_nothing_stops_gives_what_it_began():
    assert start_unless(threading.Event(), lambda: "started") == "started"


def test_a_start_that_fails_by_itself_says_so():
    def fail():
        raise RuntimeError("no Java")

    with pytest.raises(RuntimeError, match="no Java"):
        start_unless(threading.Event(), fail)


def test_a_start_that_waits_is_broken_off_at_once_and_its_process_ends_in_order(tmp_path):
    stopped = threading.Event()
    file = tmp_path / "file"
    began = []

    def start():
        process = subprocess.Popen([sys.executable, "-c", SLOW_TO_END, str(file)])
        began.append(process)
        wait_until(file.exists, 30, "the process to be there")
        stopped.set()
        while file.exists():
            time.sleep(0.01)
        raise ConnectionError("the server is gone")

    at = time.monotonic()
    assert start_unless(stopped, start) is None
    assert time.monotonic() - at < 30
    assert not file.exists()
    assert began[0].wait(10) == 143


def test_other_processes_are_left_alone():
    stopped = threading.Event()
    stopped.set()
    with subprocess.Popen(["sleep", "60"]) as other:
        assert start_unless(stopped, lambda: subprocess.call(["sleep", "60"])) is None
        assert other.poll() is None
        other.kill()


def test_a_start_that_was_over_when_the_stop_came_is_kept():
    stopped = threading.Event()

    def start():
        stopped.set()
        return "started"

    assert start_unless(stopped, start) == "started"
