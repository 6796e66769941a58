"""``tiercel spout`` without a task number: identical commands, as a supervisor starts them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.support.broker import unique
from tests.support.waiting import wait_until
from tiercel import BasicBolt, QueueSpout, TopologyBuilder
from tiercel.workers.control.contract import State
from tiercel.workers.control.presence import Presence, SpoutSeats
from tiercel.workers.control.redis_control import RedisControl, RedisPresences
from tiercel.workers.control.registry import Registry
from tiercel.workers.control.steering import Steering

pytestmark = pytest.mark.timeout(180)

ROOT = Path(__file__).parents[3]
TOPOLOGY = """
from tiercel import BasicBolt, Config, QueueSpout, TopologyBuilder


def topology():
    builder = TopologyBuilder("NAME", Config(shutdown_grace_secs=1))
    for spout in SPOUTS:
        builder.set_spout(spout, QueueSpout(f"NAME-{spout}", fields="line string"))
    builder.set_bolt("sink", BasicBolt()).shuffle_grouping(SPOUTS[0])
    return builder.build()
"""


class Worker:
    """One process; its log is parsed into events."""

    def __init__(
        self, folder: Path, name: str, environment: dict[str, str], *arguments: str
    ) -> None:
        self.log = folder / f"{name}.log"
        command = [
            sys.executable,
            "-m",
            "tiercel",
            "spout",
            "equal:topology",
            *arguments,
            "--log",
            "json",
        ]
        with self.log.open("w") as file:
            self.process = subprocess.Popen(
                command, cwd=folder, env={**os.environ, **environment}, stdout=file, stderr=file
            )

    def events(self) -> list[dict]:
        lines = [line for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [json.loads(line) for line in lines]

    def says(self, event: str, times: int = 1) -> dict:
        """Wait until the process has logged this event."""
        found = wait_until(
            lambda: (
                (those := [each for each in self.events() if each.get("event") == event])[
                    times - 1 :
                ]
                and those
            ),
            60,
            f"{event} of {self.log.name}",
        )
        return found[times - 1]

    def task(self, times: int = 1) -> str:
        return self.says("task_claimed", times)["message"].split()[3]

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@pytest.fixture
def start(tmp_path, amqp_url, redis_url):
    """``start(name, *arguments, spouts=…, tasks=…)`` starts a worker."""
    topology = unique("equal")
    with ExitStack() as exits:

        def started(name, *arguments, spouts=("lines",), tasks=2, **more):
            text = f"SPOUTS = {spouts!r}\n" + TOPOLOGY.replace("NAME", topology)
            (tmp_path / "equal.py").write_text(text)
            servers = {
                "TIERCEL_AMQP": amqp_url,
                "TIERCEL_REDIS": redis_url,
                "PYTHONPATH": str(ROOT),
            }
            worker = Worker(
                tmp_path, name, {**servers, "TIERCEL_SPOUT_TASKS": str(tasks), **more}, *arguments
            )
            exits.callback(worker.process.wait)
            exits.callback(worker.process.kill)
            return worker

        started.topology = topology
        yield started


def test_equal_workers_take_different_tasks_and_the_one_too_many_waits_until_one_ends(start):
    first = start("first")
    assert first.task() == "lines-0"
    second = start("second")
    third = start("third")
    wait_until(
        lambda: sum("task_claimed" in each.log.read_text() for each in (second, third)) == 1,
        60,
        "a second worker",
    )
    working, waiting = (
        (second, third) if "task_claimed" in second.log.read_text() else (third, second)
    )
    assert working.task() == "lines-1"
    waiting.says("in_reserve")
    assert first.end() == 0
    assert waiting.task() == "lines-0"
    assert [each.end() for each in (working, waiting)] == [0, 0]


def test_another_topology_that_reads_the_queue_is_named_at_the_start(start, redis_url):
    rival = f"rival-of-{start.topology}"
    builder = TopologyBuilder(rival)
    builder.set_spout("lines", QueueSpout(f"{start.topology}-lines"))
    builder.set_bolt("sink", BasicBolt()).shuffle_grouping("lines")
    with (
        closing(Registry(redis_url)) as registry,
        closing(SpoutSeats(RedisPresences(redis_url, rival))) as seats,
    ):
        registry.announce(builder.build())
        alone = start("alone", tasks=1)
        alone.task()
        alone.says("driver_missing")  # after it has looked for others
        assert seats.report("worker", 1, Presence(active=True, pending=0))
        beside = start("beside", "--task-index", "0", "lines", tasks=1)
        told = beside.says("queue_shared")
    assert told["message"].startswith(f"topology {rival} reads queue {start.topology}-lines too")
    assert "queue_shared" not in alone.log.read_text(), "it only ran some day"


@pytest.mark.rest
def test_a_worker_that_was_away_for_too_long_leaves_its_task_to_the_other(start):
    first = start("first", tasks=1)
    first.task()
    second = start("second", tasks=1)
    second.says("in_reserve")
    first.process.send_signal(signal.SIGSTOP)
    assert second.task() == "lines-0"
    first.process.send_signal(signal.SIGCONT)
    first.says("task_lost")
    first.says("in_reserve")
    assert second.end() == 0
    assert first.task(times=2) == "lines-0"
    assert first.end() == 0


def test_a_worker_that_is_told_its_task_takes_it_from_one_that_found_it_free(start, redis_url):
    seats = SpoutSeats(RedisPresences(redis_url, start.topology))
    first = start("first", tasks=1)
    assert first.task() == "lines-0"
    told = start("told", "lines", "--task-index", "0", tasks=1)
    here = socket.gethostname()
    taken = told.says("task_taken")
    assert (taken["level"], taken["pid"], taken["host"]) == ("warning", first.process.pid, here)
    lost = first.says("task_lost")["message"]
    assert lost == f"process {told.process.pid} on {here} has this task now: leaving it"
    first.says("in_reserve")
    wait_until(lambda: seats.present(range(1, 2)), 60, "the presence of the worker that was told")
    assert told.end() == 0
    assert first.task(times=2) == "lines-0"
    assert first.end() == 0
    assert seats.present(range(1, 2)) == {}, "a worker that ends leaves no presence"


def test_a_worker_of_all_spouts_has_a_task_of_each_and_ends_when_the_topology_is_killed(
    start, redis_url, tmp_path
):
    beat = tmp_path / "beat"
    both = start("both", spouts=("lines", "others"), TIERCEL_HEARTBEAT=str(beat))

    def claimed():
        events = [each for each in both.events() if each.get("event") == "task_claimed"]
        return {each["message"].split()[3] for each in events}

    wait_until(lambda: claimed() == {"lines-0", "others-0"}, 60, "a task of each")
    wait_until(beat.exists, 30, "a heartbeat, once both of them beat")
    RedisControl(redis_url, start.topology).order(State.KILLED)
    assert both.process.wait(60) == 0


def test_whoever_waits_in_reserve_ends_too_when_the_topology_is_killed(start, redis_url):
    first = start("first", tasks=1)
    first.task()
    second = start("second", tasks=1)
    second.says("in_reserve")
    said = []
    steering = Steering.open(redis_url, start.topology, said.append, threading.Event())
    assert steering.kill(0)
    assert said[-1] == f"{start.topology} has ended"
    assert [each.process.wait(30) for each in (first, second)] == [0, 0]
    assert "task_claimed" not in second.log.read_text()


def test_its_heartbeat_stops_when_its_loop_does(start, tmp_path):
    beat = tmp_path / "beat"
    worker = start("worker", TIERCEL_HEARTBEAT=str(beat))
    worker.task()
    wait_until(beat.exists)
    first = beat.stat().st_mtime_ns
    wait_until(lambda: beat.stat().st_mtime_ns > first, message="the next beat")
    worker.process.send_signal(signal.SIGSTOP)
    stopped_at = time.time()
    wait_until(lambda: time.time() - beat.stat().st_mtime > 3, 10)
    assert beat.stat().st_mtime <= stopped_at
    worker.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nobody"], "its spouts are lines"),
        (["--task-index", "0"], "name the spout too"),
        (["lines", "--task-index", "2"], "tasks 0 to 1"),
    ],
)
def test_a_wrong_call_is_one_line(start, arguments, said):
    worker = start("wrong", *arguments)
    assert worker.process.wait(60) == 2
    [line] = worker.log.read_text().splitlines()
    assert said in line
