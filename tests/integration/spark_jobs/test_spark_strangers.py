"""Spark's ports give nothing to a process that does not belong to the run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.block_thief import ports_of_session, processes_of, stolen_from

MASTERS = ["local[1]", pytest.param("local-cluster[1,1,1024]", marks=pytest.mark.rest)]
PASSWORD = "drawn-for-this-test-alone"
VICTIM = f"""
import functools, json, sys
from pathlib import Path

from tiercel.spark_jobs.spark.session import SparkUnit
from tiercel.workers.config import use_this_python_for_spark

use_this_python_for_spark(Path.cwd())
unit = SparkUnit("victim", sys.argv[1], json.loads(sys.argv[2]))


def hold(address, _):
    return len(address)


unit.context.parallelize([0], 1).foreach(functools.partial(hold, "amqp://user:{PASSWORD}@127.0.0.1/"))
print("ready", flush=True)
sys.stdin.read()
unit.stop()
"""
OPEN = '{"spark.authenticate": "false", "spark.network.crypto.enabled": "false"}'


@contextmanager
def victim(master: str, options: str = "{}") -> Iterator[subprocess.Popen[str]]:
    """A context that has run a task with a password, until the block ends."""
    with subprocess.Popen(
        [sys.executable, "-c", VICTIM, master, options],
        cwd=Path(__file__).parents[3],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        if said != "ready\n":
            process.kill()
            pytest.fail(process.stderr.read())
        yield process
        process.communicate()
        assert process.returncode == 0


def stolen(process: subprocess.Popen[str]) -> list[bytes]:
    ports = ports_of_session(process.pid)
    assert len(ports) >= 2, "Spark's own port, and that of its blocks"
    return [block for port in sorted(ports) for block in stolen_from(port)]


@pytest.mark.rest
def test_the_thief_of_this_test_does_get_the_password_where_nothing_is_asked_for():
    with victim("local[1]", OPEN) as process:
        assert any(PASSWORD.encode() in block for block in stolen(process))
        assert any("requires no secret" in line for line in process.stderr), "the log says so"


@pytest.mark.parametrize("master", MASTERS)
def test_a_strangers_process_can_fetch_no_broadcast_of_a_run(master):
    with victim(master) as process:
        assert stolen(process) == []


@pytest.mark.parametrize("master", MASTERS)
def test_the_secret_is_on_no_command_line(master):
    with victim(master) as process:
        lines = [(each / "cmdline").read_bytes() for each in processes_of(process.pid)]
        assert any(b"spark.authenticate=true" in line for line in lines)
        assert not any(b"spark.authenticate.secret" in line for line in lines)
