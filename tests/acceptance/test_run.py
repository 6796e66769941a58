"""``tiercel run`` as a user types it: private servers, another terminal that
publishes, and Ctrl-C.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.terminal import tiercel_run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]

TOPOLOGY = """
from tiercel import BasicBolt, QueueSpout, TopologyBuilder


class Shout(BasicBolt):
    def execute(self, tup, collector):
        print("heard", tup["line"])


def topology():
    builder = TopologyBuilder("shout")
    builder.set_spout("lines", QueueSpout("lines", fields="line string"))
    builder.set_bolt("shout", Shout()).shuffle_grouping("lines")
    return builder.build()
"""


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(folder)}


def tiercel(folder: Path, *arguments: str) -> str:
    """The output of a command that must succeed."""
    command = [sys.executable, "-m", "tiercel", *arguments]
    finished = subprocess.run(
        command,
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@contextmanager
def running(folder: Path, log: Path):
    (folder / "shout.py").write_text(TOPOLOGY)
    with tiercel_run(
        "shout:topology", folder=folder, log=log, environment=environment(folder)
    ) as process:
        wait_until(lambda: "run_started" in log.read_text(), 300, "the topology to run")
        yield process


def alive(marker: str) -> list[str]:
    """Command lines of the processes whose environment names ``marker``."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and marker.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, id="SIGINT", marks=pytest.mark.quick),
        pytest.param(signal.SIGTERM, id="SIGTERM"),
        pytest.param(None, id="tiercel kill"),
    ],
)
def test_it_processes_what_another_terminal_publishes_and_ends_cleanly(tmp_path, number):
    log = tmp_path / "log"
    (tmp_path / "text").write_text("one\ntwo\n\nthree\n")
    with running(tmp_path, log) as process:
        assert "published 3 messages" in tiercel(tmp_path, "publish", "lines", "text")
        wait_until(lambda: log.read_text().count("heard ") == 3, 300, "three lines to be heard")
        (tmp_path / "bad").write_bytes(b"\xff\n")
        tiercel(tmp_path, "publish", "lines", "bad")
        wait_until(
            lambda: "UTF-8" in tiercel(tmp_path, "dead-letters", "show", "lines"),
            30,
            "a dead letter",
        )
        assert "lines" in tiercel(tmp_path, "depths")
        assert "put 1 messages back" in tiercel(tmp_path, "dead-letters", "requeue", "lines")
        if number is None:
            assert "shout has ended" in tiercel(tmp_path, "kill", "shout")
        else:
            process.send_signal(number)
        assert process.wait(30) == 0
    wait_until(lambda: not alive(str(tmp_path)), 10, "every process to be gone")
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert {"services_ready", "run_started", "spark_output"} <= {
        record["event"] for record in records
    }
    assert not [record for record in records if record["level"] == "error"]
