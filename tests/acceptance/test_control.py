"""Ticks without messages, and a topology that is deactivated, activated, killed and run again, with
a user's commands.
"""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.broker import put, unique
from tests.support.terminal import tiercel_run
from tests.support.waiting import wait_until
from tiercel.queues.broker.depths import depths

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]

TOPOLOGY = """
from tiercel import Bolt, Config, QueueSpout, TopologyBuilder


class Listen(Bolt):
    output_fields = "said string"

    def execute(self, tup, collector):
        if tup.is_tick:
            collector.emit(["first bolt ticks"])
            collector.ack(tup)
        else:
            print("heard", tup["line"])
            if tup["line"] != "hold":
                collector.ack(tup)


class Print(Bolt):
    def execute(self, tup, collector):
        print("second bolt ticks" if tup.is_tick else tup["said"])
        collector.ack(tup)


def topology():
    builder = TopologyBuilder("NAME", Config(tick_tuple_freq_secs=0.5, shutdown_grace_secs=1))
    builder.set_spout("lines", QueueSpout("NAME", fields="line string"), parallelism=2)
    builder.set_bolt("listen", Listen()).shuffle_grouping("lines")
    builder.set_bolt("print", Print()).global_grouping("listen")
    return builder.build()
"""


class Stage:
    def __init__(self, services, folder):
        self.name = unique("controlled")
        self.folder = folder
        self.services = services
        (folder / "controlled.py").write_text(TOPOLOGY.replace("NAME", self.name))
        servers = {"TIERCEL_AMQP": services.amqp_url, "TIERCEL_REDIS": services.redis_url}
        self.environment = {**os.environ, **servers, "PYTHONPATH": str(ROOT)}

    def tiercel(self, *arguments):
        command = [sys.executable, "-m", "tiercel", *arguments]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def running(self, log):
        with tiercel_run(
            "controlled:topology", folder=self.folder, log=log, environment=self.environment
        ) as process:
            yield process

    def publish(self, *lines):
        put(self.services.amqp_url, self.name, *lines)

    def depth(self):
        """Return (ready, unacked)."""
        [found] = depths(self.services.amqp_url, [self.name], self.services.management_url)
        return found.ready, found.unacked


@pytest.fixture
def stage(services, tmp_path):
    return Stage(services, tmp_path)


def says(log, what, seconds=300):
    wait_until(lambda: what in log.read_text(), seconds, f"{what!r} in the log")


def errors_in(log):
    records = [json.loads(line) for line in log.read_text().splitlines()]
    return [record for record in records if record["level"] == "error"]


def test_ticks_come_without_messages_and_the_topology_obeys(stage, tmp_path):
    log = tmp_path / "log"
    again = tmp_path / "again"
    with stage.running(log) as process:
        says(log, "first bolt ticks", 180)
        says(log, "second bolt ticks")
        stage.publish(b"one")
        says(log, "heard one")

        wait_until(
            lambda: "is deactivated" in stage.tiercel("deactivate", stage.name),
            60,
            "it to be deactivated",
        )
        stage.publish(b"two", b"three")
        wait_until(
            lambda: stage.depth() == (2, 0), 30, "two messages to be ready and none to be held"
        )
        wait_until(
            lambda: "is active, " in stage.tiercel("activate", stage.name), 60, "it to be active"
        )
        wait_until(lambda: stage.depth() == (0, 0), 30, "both messages to be processed")
        says(log, "heard three")

        stage.publish(b"hold")
        says(log, "heard hold")
        said = stage.tiercel("kill", stage.name, "--wait", "15")
        assert "1 message in flight" in said
        assert "has ended" in said
        assert process.wait(60) == 0
    wait_until(lambda: stage.depth() == (1, 0), 30, "what was in flight to be given back")
    assert not errors_in(log)
    with stage.running(again):
        says(again, "heard hold", 180)
