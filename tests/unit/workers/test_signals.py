"""A signal ends a process at whatever moment it comes."""

import signal
import subprocess
import sys

# The handler breaks into a wait for the event that it is to set: its lock is held then.
PROGRAM = """
import os, signal, threading
from tiercel.workers.signals import on_signals

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
