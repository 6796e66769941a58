"""Executors that cannot start Python are retried at growing intervals, one line says what is wrong,
and no message is blamed.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.acceptance import rebalanced
from tests.support.children import Python
from tests.support.running import running
from tests.support.runs import SHOUT, Desk
from tests.support.standalone import Standalone
from tests.support.waiting import wait_until
from tiercel import Publisher
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.workers.control.presence import Lease
from tiercel.workers.control.redis_control import RedisPresences

pytestmark = [pytest.mark.promised, pytest.mark.timeout(900)]


@pytest.fixture
def python(tmp_path, monkeypatch):
    found = Python(tmp_path)
    monkeypatch.setenv("PYSPARK_PYTHON", str(found.path))
    return found


def stack_on(master: str, folder: Path):
    (folder / "work").mkdir()
    return running(
        "tests.acceptance.rebalanced:topology",
        folder / "work",
        rebalanced.FOLDER,
        queues=(rebalanced.QUEUE,),
        master=master,
    )


def written(stack) -> Counter[int]:
    lines = [line for path in stack.folder.iterdir() for line in path.read_text().splitlines()]
    return Counter(int(line.split()[0]) for line in lines)


def records(capfd, said: list[str]) -> list[str]:
    """Return all lines on the processes' stderr so far."""
    said.append(capfd.readouterr().err)
    return "".join(said).splitlines()


def trouble(stack) -> str:
    holder = Lease(RedisPresences(stack.redis_url, rebalanced.NAME)).holder()
    return holder.trouble if holder else ""


def publish(stack, first: int) -> range:
    numbers = range(first, first + 300)
    with Publisher(stack.amqp_url) as publisher:
        publisher.publish(rebalanced.QUEUE, [b'{"number": %d}' % number for number in numbers])
    return numbers


def none_is_blamed(stack) -> None:
    [depth] = stack.depths(rebalanced.QUEUE)
    assert not depth.dead_lettered
    spouts: Counter[str] = Counter()
    for task in RedisMetrics(stack.redis_url, rebalanced.NAME).totals()["numbers"].values():
        spouts.update(task)
    assert not spouts["failed"]
    assert not spouts["timeout"]


@pytest.mark.slow
def test_a_python_that_is_missing_and_then_ends_at_once_and_then_works(python, tmp_path, capfd):
    said: list[str] = []

    def lines(part: str) -> list[str]:
        return [line for line in records(capfd, said) if part in line]

    with stack_on("local-cluster[2,1,1024]", tmp_path) as stack:
        published = publish(stack, 0)
        wait_until(lambda: len(lines("no executor can run bolts")) >= 2, 240, "two attempts")
        [first, second, *_] = lines("no executor can run bolts")
        assert f"cannot start Python '{python.path}': No such file or directory" in first
        assert "executor " in first
        assert "PYSPARK_PYTHON" in first
        assert "trying again in 2 s" in first
        assert "trying again in 4 s" in second
        assert "No such file" in trouble(stack)

        python.becomes("exit 3")
        wait_until(lambda: lines("exit code 3"), 60, "the other reason to be said")
        starts, waits = python.starts, len(lines("no executor can run bolts"))
        wait_until(lambda: len(lines("no executor can run bolts")) > waits, 120, "one more attempt")
        assert python.starts - starts <= 4, "one for each executor, each time"
        assert len(lines("")) < 100, "Spark's flood is no part of it"

        python.becomes("")
        wait_until(lambda: set(written(stack)) >= set(published), 120, "all to be processed")
        assert not trouble(stack)
        none_is_blamed(stack)

        python.path.unlink()
        before = len(lines("no executor can run bolts"))
        for pid in executors():
            os.kill(pid, 9)
        more = publish(stack, 10_000)
        wait_until(
            lambda: len(lines("no executor can run bolts")) > before, 120, "it to be noticed again"
        )
        python.becomes("")
        wait_until(lambda: set(written(stack)) >= set(more), 120, "the others to be processed")
        none_is_blamed(stack)
        assert len(lines("")) < 400


def executors() -> list[int]:
    """Return the executors' processes below this one."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            command = (folder / "cmdline").read_bytes()
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        ours = f"{rebalanced.FOLDER}=".encode() in environment
        if ours and b"CoarseGrainedExecutorBackend" in command:
            found.append(int(folder.name))
    return found


@pytest.mark.slow
def test_one_broken_executor_of_two_is_named_and_the_other_one_works(
    python, tmp_path, capfd, monkeypatch
):
    said: list[str] = []
    # Executors have the environment of their host.
    monkeypatch.setenv(rebalanced.FOLDER, str(tmp_path / "work"))
    python.becomes('case "$TMPDIR" in */host-2-tmp) echo no disk >&2; exit 1;; esac')
    (tmp_path / "hosts").mkdir()
    with Standalone(tmp_path / "hosts") as spark, stack_on(spark.url, tmp_path) as stack:
        published = publish(stack, 0)
        wait_until(lambda: set(written(stack)) >= set(published), 240, "all to be processed")
        [named] = set(
            re.findall(r"on (\S+ cannot start Python [^;]*)", "\n".join(records(capfd, said)))
        )
        assert named == f"127.0.0.3 cannot start Python '{python.path}': no disk"
        none_is_blamed(stack)

        python.becomes("")
        wait_until(
            lambda: [line for line in records(capfd, said) if "in 2 Spark tasks" in line],
            120,
            "a run on both",
        )
        more = publish(stack, 10_000)
        wait_until(lambda: set(written(stack)) >= set(more), 120, "the others to be processed")
        none_is_blamed(stack)


def test_tiercel_run_refuses_a_python_that_does_not_exist(tmp_path):
    desk = Desk(tmp_path, {"PYSPARK_PYTHON": "/nowhere/python"})
    desk.write("shout.py", SHOUT)
    ended = desk.tiercel("run", "shout:topology", code=2)
    [line] = ended.stderr.splitlines()
    assert "PYSPARK_PYTHON" in line
    assert "'/nowhere/python'" in line
