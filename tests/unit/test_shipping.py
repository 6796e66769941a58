"""The code that goes to the executors of a cluster."""

from __future__ import annotations

import importlib
import py_compile
import subprocess
import sys
import zipfile
from pathlib import Path

import pika  # noqa: F401 - a package that is installed and imported
import pytest

from spark_jobs import shipping
from spark_jobs.errors import TopologyError
from spark_jobs.shipping import OURS, pack_code

ROOT = Path(__file__).parents[2]


@pytest.fixture
def users_folder(tmp_path, monkeypatch):
    """A folder with a topology's module, ``users_topology``, and what it may import."""
    folder = tmp_path / "users"
    (folder / "helpers").mkdir(parents=True)
    (folder / "users_topology.py").write_text("VALUE = 1\n")
    (folder / "beside.py").write_text("VALUE = 2\n")
    (folder / "broken.py").write_text("this is no Python\n")
    (folder / "helpers" / "__init__.py").write_text("VALUE = 3\n")
    (folder / "helpers" / "words.txt").write_text("one two\n")
    (folder / "notes.txt").write_text("not code\n")
    (folder / "data").mkdir()
    (folder / "data" / "large").write_bytes(bytes(100))
    (folder / ".hidden.py").write_text("")
    monkeypatch.syspath_prepend(folder)
    importlib.import_module("users_topology")
    yield folder
    del sys.modules["users_topology"]


def names(archive: Path) -> set[str]:
    with zipfile.ZipFile(archive) as packed:
        return set(packed.namelist())


def in_archive(archive: Path, script: str, folder: Path) -> str:
    """What a Python says that has the archive, third-party packages, and nothing else of ours."""
    paths = f"import sys; sys.path[:] = [{str(archive)!r}] + [p for p in sys.path if p not in ('', {str(ROOT)!r})]\n"
    done = subprocess.run([sys.executable, "-c", paths + script], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_lies_beside_a_users_module_travels_with_it(users_folder, tmp_path):
    pack_code("users_topology", tmp_path / "code.zip")
    others = {name for name in names(tmp_path / "code.zip") if name.split("/")[0] not in OURS and not name.endswith(".pyc")}
    assert others == {"users_topology.py", "beside.py", "broken.py", "helpers/__init__.py", "helpers/words.txt"}


def test_it_is_importable_from_another_working_directory_with_its_data(users_folder, tmp_path):
    pack_code("users_topology", tmp_path / "code.zip")
    script = """
import users_topology, beside, helpers, importlib.resources, spark_jobs.spark.run, queues.inbox.redis_streams
assert "code.zip" in spark_jobs.spark.run.__file__, spark_jobs.spark.run.__file__
print(users_topology.VALUE, beside.VALUE, helpers.VALUE, importlib.resources.files("helpers").joinpath("words.txt").read_text())
"""
    assert in_archive(tmp_path / "code.zip", script, tmp_path) == "1 2 3 one two"


def test_everything_of_ours_that_runs_in_a_task_travels_lua_scripts_too(users_folder, tmp_path):
    pack_code("users_topology", tmp_path / "code.zip")
    there = names(tmp_path / "code.zip")
    for folder in OURS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".lua"):
                assert path.relative_to(ROOT).as_posix() in there


def test_an_installed_module_travels_alone(tmp_path):
    pack_code("pika", tmp_path / "code.zip")
    assert {name.split("/")[0] for name in names(tmp_path / "code.zip")} == {*OURS, "pika"}


def test_byte_code_is_taken_along_and_used(users_folder, tmp_path):
    py_compile.compile(str(users_folder / "users_topology.py"))
    pack_code("users_topology", tmp_path / "code.zip")
    assert "users_topology.pyc" in names(tmp_path / "code.zip")
    script = "import users_topology; print(users_topology.__spec__.loader.get_filename('users_topology'))"
    assert in_archive(tmp_path / "code.zip", script, tmp_path).endswith("users_topology.pyc")


def test_byte_code_of_an_older_source_is_not_used(users_folder, tmp_path):
    py_compile.compile(str(users_folder / "users_topology.py"))
    (users_folder / "users_topology.py").write_text("VALUE = 'changed since'\n")
    pack_code("users_topology", tmp_path / "code.zip")
    assert in_archive(tmp_path / "code.zip", "import users_topology; print(users_topology.VALUE)", tmp_path) == "changed since"


def test_too_much_is_refused_with_what_to_do(users_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(shipping, "_MOST_MB", 0)
    with pytest.raises(TopologyError, match="keep the topology in a folder of its own"):
        pack_code("users_topology", tmp_path / "code.zip")
