"""The code shipped to the executors of a cluster."""

from __future__ import annotations

import functools
import importlib
import os
import py_compile
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pika  # noqa: F401 - a package that is installed and imported
import pytest

from tiercel.spark_jobs.errors import TopologyError
from tiercel.spark_jobs.spark import shipping
from tiercel.spark_jobs.spark.settings import EVERYWHERE
from tiercel.spark_jobs.spark.shipping import OURS, PARTS, code_of, pack_code

ROOT = Path(__file__).parents[4]


@pytest.fixture
def users_folder(tmp_path, monkeypatch):
    """A folder with a topology's module, ``users_topology``, and the modules it may import."""
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
    """Return the output of a Python with only the archive and third-party packages."""
    paths = (
        f"import sys; sys.path[:] = [{str(archive)!r}] + [p for p in sys.path if p not in ('', "
        f"{str(ROOT)!r})]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", paths + script],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_lies_beside_a_users_module_travels_with_it(users_folder, tmp_path):
    pack_code("users_topology", tmp_path / "code.zip")
    others = {
        name
        for name in names(tmp_path / "code.zip")
        if name.split("/")[0] != OURS and not name.endswith(".pyc")
    }
    assert others == {
        "users_topology.py",
        "beside.py",
        "broken.py",
        "helpers/__init__.py",
        "helpers/words.txt",
    }


def test_it_is_importable_from_another_working_directory_with_its_data(users_folder, tmp_path):
    pack_code("users_topology", tmp_path / "code.zip")
    script = """
import users_topology, beside, helpers, importlib.resources
import tiercel.spark_jobs.spark.run, tiercel.acker.inbox.redis
assert "code.zip" in tiercel.spark_jobs.spark.run.__file__, tiercel.spark_jobs.spark.run.__file__
words = importlib.resources.files("helpers").joinpath("words.txt").read_text()
print(users_topology.VALUE, beside.VALUE, helpers.VALUE, words)
"""
    assert in_archive(tmp_path / "code.zip", script, tmp_path) == "1 2 3 one two"


def test_everything_of_ours_that_runs_in_a_task_travels_lua_scripts_too(users_folder, tmp_path):
    pack_code("users_topology", tmp_path / "code.zip")
    there = names(tmp_path / "code.zip")
    for folder in PARTS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".lua"):
                assert f"{OURS}/{path.relative_to(ROOT).as_posix()}" in there
    assert {
        name.split("/")[1]
        for name in there
        if name.startswith(f"{OURS}/") and "." not in name.split("/")[1]
    } == set(PARTS)


def test_an_example_travels_with_its_neighbours(tmp_path):
    importlib.import_module("tiercel.examples.word_count")
    pack_code("tiercel.examples.word_count", tmp_path / "code.zip")
    assert {name.split("/")[0] for name in names(tmp_path / "code.zip")} == {OURS}
    script = "import tiercel.examples.word_count as example; print(example.topology().name)"
    assert in_archive(tmp_path / "code.zip", script, tmp_path) == "word-count"


def test_the_process_that_forks_the_workers_starts_from_it(users_folder, tmp_path):
    pack_code("users_topology", tmp_path / "code.zip")
    script = """
from tiercel.spark_jobs.spark import python_daemon
python_daemon.import_everything(None)
assert "code.zip" in python_daemon.__file__, python_daemon.__file__
print(sys.modules["tiercel.acker"].__file__)
"""
    assert "code.zip" in in_archive(tmp_path / "code.zip", script, tmp_path)


def test_an_installed_module_travels_alone(tmp_path):
    pack_code("pika", tmp_path / "code.zip")
    assert {name.split("/")[0] for name in names(tmp_path / "code.zip")} == {OURS, "pika"}


def test_byte_code_is_taken_along_and_used(users_folder, tmp_path):
    py_compile.compile(str(users_folder / "users_topology.py"))
    pack_code("users_topology", tmp_path / "code.zip")
    assert "users_topology.pyc" in names(tmp_path / "code.zip")
    script = (
        "import users_topology; "
        "print(users_topology.__spec__.loader.get_filename('users_topology'))"
    )
    assert in_archive(tmp_path / "code.zip", script, tmp_path).endswith("users_topology.pyc")


def test_byte_code_of_an_older_source_is_not_used(users_folder, tmp_path):
    py_compile.compile(str(users_folder / "users_topology.py"))
    (users_folder / "users_topology.py").write_text("VALUE = 'changed since'\n")
    pack_code("users_topology", tmp_path / "code.zip")
    assert (
        in_archive(
            tmp_path / "code.zip", "import users_topology; print(users_topology.VALUE)", tmp_path
        )
        == "changed since"
    )


def test_too_much_is_refused_with_what_to_do(users_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(shipping, "_MOST_MB", 0)
    with pytest.raises(TopologyError, match="keep the topology in a folder of its own"):
        pack_code("users_topology", tmp_path / "code.zip")


def test_an_executor_starts_its_python_from_the_archive_in_its_folder(users_folder, tmp_path):
    """Spark does the same: in the executor's folder, where the archive lies, with its bare name as
    the path.
    """
    pack_code("users_topology", tmp_path / "tiercel.zip")
    environment = {**os.environ, "PYTHONPATH": "tiercel.zip"}
    module = EVERYWHERE["spark.python.daemon.module"]
    found = f"import importlib.util; print(importlib.util.find_spec({module!r}).origin)"
    started = functools.partial(
        subprocess.run, cwd=tmp_path, env=environment, capture_output=True, check=False
    )
    assert b"tiercel.zip" in started([sys.executable, "-c", found]).stdout
    done = started([sys.executable, "-m", module, "pyspark.worker"], stdin=subprocess.DEVNULL)
    assert (len(done.stdout), done.stderr) == (4, b"")


def test_the_digits_of_code_change_with_each_file_of_python_and_with_no_other(users_folder):
    before = code_of("users_topology")
    assert re.fullmatch("[0-9a-f]{8}", before)
    (users_folder / "notes.txt").write_text("other notes\n")
    (users_folder / "helpers" / "words.txt").write_text("three\n")
    assert code_of("users_topology") == before
    (users_folder / "helpers" / "__init__.py").write_text("VALUE = 4\n")
    changed = code_of("users_topology")
    (users_folder / "beside.py").rename(users_folder / "moved.py")
    assert len({before, changed, code_of("users_topology")}) == 3
