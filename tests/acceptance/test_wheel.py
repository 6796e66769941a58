"""The wheel in a clean environment: it runs beside folders of any name, and is typed."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]
THEIRS = (
    "acker/__init__.py",
    "compose/__init__.py",
    "examples/__init__.py",
    "queues.py",
    "spark_jobs.py",
    "workers/__init__.py",
)
TOPOLOGY = """
from tiercel import BasicBolt, BasicCollector, QueueSpout, Retry, Topology, TopologyBuilder, Tuple


class Shout(BasicBolt):
    retry = Retry(on=lambda error: error.status >= 500)

    def execute(self, tup: Tuple, collector: BasicCollector) -> None:
        print("heard", tup["line"])


def topology() -> Topology:
    builder = TopologyBuilder("shout")
    builder.set_spout("lines", QueueSpout("lines", fields="line string"))
    builder.set_bolt("shout", Shout()).shuffle_grouping("lines")
    return builder.build()
"""

# Ids of a type of their own, a `fail` as in Storm, and a grouping that needs no preparation.
OWN_PARTS = """
from collections.abc import Sequence
from typing import Any

from tiercel import CustomGrouping, QueueSink, Spout, SpoutCollector, TopologyBuilder


class Lines(Spout):
    output_fields = "line string"
    pending: dict[int, str] = {}

    def next_tuple(self, collector: SpoutCollector) -> None:
        self.pending[1] = "one"
        collector.emit(["one"], msg_id=1)

    def ack(self, msg_id: int) -> None:
        del self.pending[msg_id]

    def fail(self, msg_id: int) -> None:
        print(self.pending[msg_id])


class WithReason(Lines):
    def fail(self, msg_id: int, reason: str = "") -> None:
        print(self.pending[msg_id], reason)


class ByLength(CustomGrouping):
    def choose_tasks(self, task_id: int, values: Sequence[Any]) -> Sequence[int]:
        return [len(values[0])]


builder = TopologyBuilder("lines")
builder.set_spout("lines", Lines())
builder.set_bolt("sink", QueueSink("lines")).custom_grouping("lines", ByLength())
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """Return the Python of an environment with the wheel and the libraries only."""
    folder = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, capture_output=True, check=True)
    venv.create(folder / "env", symlinks=True)
    [place] = (folder / "env").glob("lib/python*/site-packages")
    # Python ignores .pth files in a folder that is itself named in a .pth file, such as the
    # checkout's.
    (place / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    [wheel] = folder.glob("tiercel-*.whl")
    python = folder / "env/bin/python"
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    subprocess.run(
        [*pip, "install", "--no-index", "--no-deps", str(wheel)],
        cwd=folder,
        capture_output=True,
        check=True,
    )
    return python


@pytest.fixture
def folder(tmp_path) -> Path:
    """A user's folder whose modules have the names of ours."""
    for name in THEIRS:
        path = tmp_path / "theirs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"raise SystemExit('{name} of the user was imported')\n")
    (tmp_path / "theirs/shout.py").write_text(TOPOLOGY)
    return tmp_path / "theirs"


def test_it_comes_from_the_environment_and_not_from_the_checkout(
    python: Path, folder: Path
) -> None:
    code = "import sys, tiercel.queues.spout as spout; print(spout.__file__); print(sys.path)"
    done = subprocess.run(
        [python, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    file, path = done.stdout.splitlines()
    assert file.startswith(str(python.parents[1]))
    assert f"'{ROOT}'" not in path


def test_a_topology_runs_in_a_folder_whose_modules_have_the_names_of_ours(
    python: Path, folder: Path, tmp_path: Path
) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {
        "XDG_RUNTIME_DIR": str(tmp_path)
    }
    command = python.parent / "tiercel"
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [command, "run", "shout:topology", "--log", "json"],
            cwd=folder,
            env=environment,
            stdout=file,
            stderr=file,
        )
    try:
        wait_until(lambda: "run_started" in log.read_text(), 300, "the topology to run")
        (folder / "text").write_text("one\ntwo\n")
        publish = [command, "publish", "lines", "text"]
        subprocess.run(
            publish, cwd=folder, env=environment, capture_output=True, timeout=100, check=True
        )
        wait_until(lambda: log.read_text().count("heard ") == 2, 300, "two lines to be heard")
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert "of the user was imported" not in log.read_text()


def mypy(python: Path, folder: Path, *files: str) -> subprocess.CompletedProcess[str]:
    """Return what a strict mypy says about files, with the types of the installed wheel."""
    options = ["--strict", "--no-incremental", "--python-executable", str(python)]
    command = [sys.executable, "-m", "mypy", *options, *files]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_strict_type_checker_takes_what_works(python: Path, folder: Path) -> None:
    (folder / "own_parts.py").write_text(OWN_PARTS)
    done = mypy(python, folder, "shout.py", "own_parts.py")
    assert done.returncode == 0, done.stdout


def test_a_strict_type_checker_knows_the_types_of_every_public_name(
    python: Path, folder: Path
) -> None:
    (folder / "wrong.py").write_text(
        "from tiercel import Nonsense, TopologyBuilder\n\nTopologyBuilder(3)\n"
    )
    fails_without_id = OWN_PARTS.replace("def fail(self, msg_id: int)", "def fail(self)")
    (folder / "wrong_parts.py").write_text(fails_without_id)
    done = mypy(python, folder, "wrong.py", "wrong_parts.py")
    assert 'has no attribute "Nonsense"' in done.stdout
    assert "[arg-type]" in done.stdout
    assert 'Signature of "fail" incompatible' in done.stdout
