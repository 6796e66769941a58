"""The current code of a topology is read by a process that has not imported it before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tiercel.workers.config import child_environment
from tiercel.workers.local.run import Outline

ROOT = Path(__file__).parents[4]
TOPOLOGY = """
from tiercel import BasicBolt, QueueSpout, TopologyBuilder
import json, pandas
IMPORTS

class Shout(BasicBolt):
    def execute(self, tup, collector):
        pass


def topology():
    builder = TopologyBuilder("shout")
    builder.set_spout("lines", QueueSpout("lines", fields="line string"))
    builder.set_bolt("shout", Shout()).shuffle_grouping("lines")
    return builder.build()
"""


def outline(folder: Path, name: str) -> Outline:
    answer = folder / "answer"
    module = "tiercel.workers.local.run"
    subprocess.run(
        [sys.executable, "-m", module, name, str(answer)],
        cwd=folder,
        env=child_environment({"PYTHONPATH": str(ROOT), "TIERCEL_SPOUT_TASKS": "2"}),
        check=True,
        timeout=60,
    )
    return Outline.from_json(answer.read_text())


def names(found: Outline, folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in found.files)


def test_a_module_is_followed_with_what_it_imports_of_the_users(tmp_path: Path):
    (tmp_path / "shout.py").write_text(TOPOLOGY.replace("IMPORTS", "import helpers"))
    (tmp_path / "helpers.py").write_text("")
    (tmp_path / "test_shout.py").write_text("")
    found = outline(tmp_path, "shout:topology")
    assert (found.error, found.topology) == ("", "shout")
    assert names(found, tmp_path) == ["helpers.py", "shout.py"]


def test_a_package_is_followed_as_a_whole(tmp_path: Path):
    package = tmp_path / "shop" / "flows"
    package.mkdir(parents=True)
    (package / "shout.py").write_text(TOPOLOGY.replace("IMPORTS", ""))
    (package / "later.py").write_text("imported when it is needed")
    (package / "__init__.py").touch()
    (package.parent / "__init__.py").touch()
    assert names(outline(tmp_path, "shop.flows.shout:topology"), tmp_path) == [
        "shop/__init__.py",
        "shop/flows/__init__.py",
        "shop/flows/later.py",
        "shop/flows/shout.py",
    ]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def (", "shout cannot be imported: SyntaxError: invalid syntax (shout.py, line 1)"),
        ("1 / 0", "shout cannot be imported: ZeroDivisionError: division by zero (shout.py:1)"),
        ("", "shout:topology: module shout has no attribute 'topology'"),
    ],
)
def test_code_that_cannot_be_loaded_is_one_line(tmp_path: Path, code: str, said: str):
    (tmp_path / "shout.py").write_text(code)
    assert outline(tmp_path, "shout:topology") == Outline(error=said)
