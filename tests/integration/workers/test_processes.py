"""The supervisor over real, tiny processes."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from tiercel.workers.processes import Backoff, Child, Supervisor

ROOT = Path(__file__).parents[3]
QUICK = Backoff(first=timedelta(milliseconds=10), longest=timedelta(milliseconds=50))
FOREVER = ["sleep", "1000"]


def alive(pid: int) -> bool:
    """A zombie that has not been reaped yet counts as dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def supervisor():
    with Supervisor(grace=timedelta(seconds=5)) as running:
        yield running


def test_a_killed_child_is_started_again_as_another_process(supervisor: Supervisor) -> None:
    child = supervisor.start(Child("a", FOREVER, backoff=QUICK))
    first = child.pid
    os.kill(first, signal.SIGKILL)
    second = wait_until(
        lambda: child.pid if child.pid not in (None, first) else None, message="a new process"
    )
    assert alive(second)
    wait_until(lambda: child.restarts == 1)
    assert child.exit_code is None


def test_a_child_that_fails_again_and_again_is_started_again_and_again(
    supervisor: Supervisor,
) -> None:
    child = supervisor.start(Child("a", ["sh", "-c", "exit 1"], backoff=QUICK))
    wait_until(lambda: child.restarts >= 5)


def test_a_child_that_has_finished_is_not_started_again_and_the_log_says_so(
    supervisor: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    child = supervisor.start(Child("a", ["true"], backoff=QUICK))
    assert wait_until(lambda: "a ended with exit code 0 and is not started again" in caplog.text)
    assert (child.exit_code, child.restarts, child.pid, supervisor.refused) == (0, 0, None, ())


def test_a_child_that_refuses_to_work_is_not_started_again_and_is_known(
    supervisor: Supervisor,
) -> None:
    child = supervisor.start(Child("a", ["sh", "-c", "exit 2"], backoff=QUICK))
    wait_until(lambda: supervisor.refused == (child,))
    assert child.restarts == 0


def test_stopping_lets_children_end_in_order(supervisor: Supervisor, tmp_path: Path) -> None:
    started = tmp_path / "started"
    ended = tmp_path / "ended"
    script = 'trap "touch $1; exit 0" TERM; touch $0; while :; do sleep 0.01; done'
    child = supervisor.start(Child("a", ["sh", "-c", script, str(started), str(ended)]))
    wait_until(started.exists)
    supervisor.stop()
    assert ended.exists()
    assert child.exit_code == 0


def test_a_child_that_does_not_end_in_time_is_killed_with_its_own_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = (
        'trap "" TERM; sleep 1000 & echo $$ $! > $0.new; mv $0.new $0; wait; while '
        ":; do sleep 1000; done"
    )
    child = Child("a", ["sh", "-c", script, str(pids)])
    child.start()
    wait_until(pids.exists)
    child.stop(timedelta(milliseconds=50))
    for pid in map(int, pids.read_text().split()):
        wait_until(lambda pid=pid: not alive(pid), message=f"{pid} is gone")


def test_what_a_dead_child_leaves_behind_is_killed_too(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    left = tmp_path / "pid"
    supervisor.start(Child("a", ["sh", "-c", "sleep 1000 & echo $! > $0; exit 0", str(left)]))
    wait_until(lambda: left.exists() and left.read_text().strip())
    wait_until(lambda: not alive(int(left.read_text())), message="the orphan is gone")


def test_children_are_gone_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = (
        "import os, signal, sys\nfrom tiercel.workers.processes import Child, Supervisor\n"
        "s = Supervisor()\ns.start(Child('a', ['sh', '-c', 'sleep 1000 & echo $$ $! > $0.new; mv "
        "$0.new $0; wait', sys.argv[1]]))\nwhile not os.path.exists(sys.argv[1]): pass\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(pids)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    for pid in map(int, pids.read_text().split()):
        wait_until(lambda pid=pid: not alive(pid), message=f"{pid} is gone")


def test_children_survive_the_thread_that_started_them(supervisor: Supervisor) -> None:
    child = Child("a", FOREVER)
    starter = threading.Thread(target=supervisor.start, args=(child,))
    starter.start()
    starter.join()
    assert alive(child.pid)


def test_a_child_sees_our_environment_and_what_is_added_to_it(
    supervisor: Supervisor, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("OURS", "1")
    out = tmp_path / "out"
    supervisor.start(
        Child(
            "a", ["sh", "-c", "echo $OURS $ADDED > $0.new; mv $0.new $0", str(out)], {"ADDED": "2"}
        )
    )
    wait_until(out.exists)
    assert out.read_text() == "1 2\n"


def test_stopping_during_the_pause_before_a_restart_starts_nothing() -> None:
    child = Child(
        "a",
        ["sh", "-c", "exit 1"],
        backoff=Backoff(first=timedelta(hours=1), longest=timedelta(hours=1)),
    )
    child.start()
    wait_until(lambda: child.pid is None)
    child.stop(timedelta(seconds=5))
    child.stop(timedelta(seconds=5))
    assert (child.pid, child.restarts, child.exit_code) == (None, 0, 1)


def test_names_of_children_are_unique_and_none_is_started_after_the_end(
    supervisor: Supervisor,
) -> None:
    supervisor.start(Child("a", FOREVER))
    with pytest.raises(ValueError, match="there is a child 'a' already"):
        supervisor.start(Child("a", FOREVER))
    supervisor.stop()
    with pytest.raises(RuntimeError):
        supervisor.start(Child("b", FOREVER))


def test_the_pause_before_a_restart_doubles_up_to_a_limit() -> None:
    backoff = Backoff(first=timedelta(seconds=1), longest=timedelta(seconds=5))
    assert [backoff.delay(n).total_seconds() for n in (1, 2, 3, 4, 100)] == [1, 2, 4, 5, 5]
