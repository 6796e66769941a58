"""A test that was too late is run again; a test that saw a broken promise is not."""

import subprocess
import sys

import pytest

from tests.support.second_try import second_try

SOME = """
import time
from subprocess import TimeoutExpired

import pytest

from tests.support.second_try import second_try
from tests.support.waiting import wait_until

pytestmark = second_try("acceptance", MARKS)
calls = []


def waits():
    wait_until(lambda: False, 0.01, "the page")


def hangs():
    time.sleep(5)


def is_slow():
    assert time.monotonic() - (time.monotonic() - 9) < 5


def is_cut_off():
    raise TimeoutExpired("docker", 60)


def finds_the_port_taken():
    raise OSError(98, "Address already in use")


def is_wrong():
    assert 3 == 4, "a message is missing"


def breaks():
    raise KeyError("discount")


HANGS = pytest.param(hangs, marks=pytest.mark.timeout(1))


@pytest.mark.parametrize(
    "way", [waits, HANGS, is_slow, is_cut_off, finds_the_port_taken, is_wrong, breaks]
)
def test_one(way):
    calls.append(way)
    if calls.count(way) == 1:
        way()
"""


@pytest.mark.parametrize("folder", ["unit", "semantics", "faults"])
def test_what_shows_a_promise_has_one_try(folder):
    assert second_try(folder, []) is None


@pytest.mark.parametrize(
    ("marks", "counted"),
    [
        (["promised"], "2 failed, 5 passed, 5 rerun"),
        ([], "7 passed, 7 rerun"),
    ],
    ids=["promised", "other"],
)
def test_a_promise_is_tried_again_only_where_it_was_late(marks, counted, tmp_path, pytestconfig):
    (tmp_path / "test_some.py").write_text(SOME.replace("MARKS", repr(marks)))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rR", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=pytestconfig.rootpath,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = done.stdout
    assert counted in said, said
    assert "RERUN" in said
    if marks:
        assert "a message is missing" in said
        assert "KeyError: 'discount'" in said
