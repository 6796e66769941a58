"""The folder of --keep: one run at a time, and no change to the user's files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tiercel.workers.errors import ConfigError
from tiercel.workers.local.private import kept_folder


def test_it_is_made_for_the_user_alone_and_taken_again(tmp_path: Path):
    folder = tmp_path / "a" / "b"
    for _ in range(2):
        with kept_folder(folder) as kept:
            assert kept == folder
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            (folder / "redis").mkdir(exist_ok=True)


def test_it_may_be_named_from_the_current_folder(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with kept_folder(Path("data")) as kept:
        assert kept == tmp_path / "data"


def test_two_runs_do_not_share_it(tmp_path: Path):
    with (
        kept_folder(tmp_path / "data"),
        pytest.raises(ConfigError, match=rf"process {os.getpid()} uses it"),
        kept_folder(tmp_path / "data"),
    ):
        pass
    with kept_folder(tmp_path / "data"):
        pass


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("years")
    with pytest.raises(ConfigError, match="it has other files"), kept_folder(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_is_no_folder(tmp_path: Path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError, match=r"--keep .*file: File exists"),
        kept_folder(tmp_path / "file"),
    ):
        pass


@pytest.mark.parametrize("name", ["two words", 'quo"te', "ünï"])
def test_a_name_that_the_servers_would_misread_is_refused(tmp_path: Path, name: str):
    with pytest.raises(ConfigError, match="no blanks"), kept_folder(tmp_path / name):
        pass
    assert list(tmp_path.iterdir()) == []
