"""Errors that a person must act on: one line, exit code 2."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tiercel.acker.errors import RedisRefusedError
from tiercel.compose.errors import ServiceMissingError
from tiercel.queues.errors import BrokerRefusedError
from tiercel.spark_jobs.errors import SparkUnavailableError
from tiercel.workers.cli.app import one_line_errors
from tiercel.workers.errors import UsageError

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    "error",
    [
        UsageError,
        ServiceMissingError,
        RedisRefusedError,
        BrokerRefusedError,
        SparkUnavailableError,
    ],
)
def test_an_expected_error_is_one_line_without_a_traceback_or_a_password(
    error: type[Exception], capsys
) -> None:
    with pytest.raises(SystemExit) as exit_, one_line_errors():
        raise error("no login at amqp://guest:s3cret@rabbit")
    assert exit_.value.code == 2
    assert capsys.readouterr().err == "tiercel: no login at amqp://guest:***@rabbit\n"


@pytest.mark.parametrize("command", [["--help"], ["new", "--help"]])
def test_a_full_disk_behind_stdout_is_one_line(command) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "tiercel", *command],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert ended.stderr == (
        "tiercel: cannot write: No space left on device; make room, or write elsewhere\n"
    )
    assert ended.returncode == 1


def test_a_disk_that_cannot_be_written_to_is_one_line_with_the_file(capsys) -> None:
    with pytest.raises(SystemExit) as exit_, one_line_errors():
        raise OSError(errno.EROFS, "Read-only file system", "run-demo.json")
    assert exit_.value.code == 1
    assert capsys.readouterr().err.startswith(
        "tiercel: cannot write (run-demo.json): Read-only file system; "
    )
    with pytest.raises(FileNotFoundError), one_line_errors():
        raise FileNotFoundError(errno.ENOENT, "a bug")


@pytest.mark.parametrize("command", [["new", "shop"], ["check"], ["run", "shop:topology"]])
def test_a_deleted_current_folder_is_one_line(command, tmp_path) -> None:
    ended = subprocess.run(
        ["/bin/sh", "-c", f'rmdir {tmp_path} && exec "$@"', "sh",
         sys.executable, "-m", "tiercel", *command],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.stderr.startswith("tiercel: the current folder has been deleted: cd into one ")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)


def test_a_character_that_stdout_lacks_is_escaped() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tiercel", "check", "größe日本:topology"],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True, encoding="latin-1", timeout=60, check=False,
    )  # fmt: skip
    assert "größe\\u65e5\\u672c" in ended.stdout
    assert (ended.returncode, ended.stderr) == (2, "")


def test_an_unexpected_error_keeps_its_traceback() -> None:
    with pytest.raises(KeyError), one_line_errors():
        raise KeyError("a bug")


def test_without_an_error_nothing_happens(capsys) -> None:
    with one_line_errors():
        pass
    assert capsys.readouterr().err == ""
