"""Changes of files are reported once, and only after the file is completely written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tiercel.workers.local.run import Changes, warn_of_changes


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "bolts.py"
    path.write_text("one")
    return path


def settled(changes: Changes) -> list[Path]:
    """Return the results of two looks in a row."""
    first = changes.look()
    return first or changes.look()


def test_what_has_not_changed_is_not_told(file: Path):
    changes = Changes([file])
    assert settled(changes) == []
    os.utime(file, ns=(0, file.stat().st_mtime_ns))
    assert settled(changes) == []


@pytest.mark.parametrize("text", ["more than one", "two"])
def test_a_change_is_told_once(file: Path, text: str):
    changes = Changes([file])
    file.write_text(text)
    os.utime(file, ns=(5, 5))
    assert settled(changes) == [file]
    assert settled(changes) == []


def test_a_file_that_is_still_being_written_is_waited_for(file: Path):
    changes = Changes([file])
    for size in range(5, 9):
        file.write_text("x" * size)
        assert changes.look() == []
    assert changes.look() == [file]


def test_a_file_that_is_gone_and_one_that_comes_are_changes(file: Path, tmp_path: Path):
    other = tmp_path / "later.py"
    changes = Changes([file, other])
    file.unlink()
    other.touch()
    assert settled(changes) == [file, other]


def test_a_file_that_is_followed_from_now_on_has_not_changed(file: Path, tmp_path: Path):
    other = tmp_path / "other.py"
    other.touch()
    changes = Changes([file])
    file.write_text("changed before the other was followed")
    changes.also([other])
    assert settled(changes) == [file]
    other.write_text("x")
    assert settled(changes) == [other]
    changes.follow([file])
    other.write_text("xyz")
    assert settled(changes) == []


def test_a_run_without_reload_says_once_that_its_code_has_changed(tmp_path, caplog):
    file = tmp_path / "orders.py"
    file.write_text("a = 1")
    code = Changes([file])
    warn_of_changes(code)
    assert not caplog.records
    file.write_text("a = 22")
    for _ in range(4):
        warn_of_changes(code)
    [said] = caplog.records
    assert said.getMessage().startswith("orders.py changed, and this run has the old code: start")
