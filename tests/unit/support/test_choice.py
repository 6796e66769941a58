"""Every test is in exactly one of `make test` and `make test-all`."""

import re
import subprocess
import sys
from pathlib import Path, PurePath

import pytest

from tests.support.choice import (
    ALONE,
    BY_FOLDER,
    LONGEST_FIRST,
    NEWEST,
    QUICK,
    REST,
    SEND_COMMANDS,
    SLOW,
    WAIT,
    asks_newest,
    chosen,
    on_chosen_servers,
    waits,
)

ROOT = Path(__file__).parents[3]
MAKEFILE = (ROOT / "Makefile").read_text()
COLLECT = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]


def recipe(target):
    """Return the lines of one target of the Makefile."""
    [lines] = re.findall(
        rf"^{target}:.*\n((?:(?:\t|ifeq|else|endif).*\n)+)", MAKEFILE, re.MULTILINE
    )
    return lines


def test_every_folder_of_tests_is_in_the_rule():
    folders = {
        path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("test_*.py")
    }
    assert folders == set(BY_FOLDER) == set(LONGEST_FIRST)


@pytest.mark.parametrize("folder", BY_FOLDER)
def test_a_mark_decides_and_else_the_folder(folder):
    assert chosen(folder, ["timeout"]) == BY_FOLDER[folder]
    assert [chosen(folder, [mark]) for mark in (QUICK, REST)] == [QUICK, REST]


def test_what_runs_alone_is_where_the_target_that_takes_it_looks():
    with pytest.raises(ValueError, match="takes what runs alone from tests/faults only"):
        chosen("acceptance", [ALONE])
    assert chosen("faults", [ALONE]) == REST
    assert recipe("test-faults").endswith("tests/faults\n")


def test_what_is_both_or_of_no_known_folder_is_refused():
    with pytest.raises(ValueError, match="take one mark away"):
        chosen("unit", [QUICK, REST])
    with pytest.raises(ValueError, match="tests/strange"):
        chosen("strange", [QUICK])


def test_a_slow_test_is_where_the_target_that_takes_slow_ones_looks():
    with pytest.raises(ValueError, match="no target runs slow tests of tests/semantics"):
        chosen("semantics", ["slow"])
    assert chosen("faults", ["slow"]) == BY_FOLDER["faults"]
    assert all(f"tests/{folder}" in recipe("test-matrix") for folder in SLOW)


def test_every_test_that_is_collected_is_one_of_the_two():
    """Checked in the two folders where marks matter most, because collecting all tests takes half a
    minute.
    """
    argv = [
        *COLLECT,
        "-m",
        f"{QUICK} and {REST} or not ({QUICK} or {REST})",
        "tests/faults",
        "tests/acceptance",
    ]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, (
        done.stdout[-1000:] + done.stderr[-1000:]
    )
    assert re.search(r"^no tests collected \(\d{3} deselected\)", done.stdout, re.MULTILINE), (
        done.stdout[-1000:]
    )


def test_make_test_takes_the_quick_ones_and_make_test_all_the_rest_too():
    assert set(re.findall(r"-m (\w+)", recipe("test"))) == {QUICK}
    assert re.findall(r'-m "(.+)"', recipe("test-rest")) == [f"{REST} and not {ALONE}"]
    assert re.findall(r'-m "(.+)"', recipe("test-faults")) == [f"{REST} and {ALONE}"]
    assert "test-faults test-newest" in recipe("test-rest")
    assert re.search(r"^test-all: test test-rest$", MAKEFILE, re.MULTILINE)


@pytest.mark.parametrize(
    ("path", "again"),
    [
        ("integration/queues/test_consumer.py", True),
        ("integration/spark_jobs/state/test_runner.py", True),
        ("integration/workers/test_lease_contract.py", True),
        ("integration/workers/test_top.py", False),
        ("unit/queues/test_consumer.py", False),
    ],
)
def test_what_sends_commands_to_servers_is_tested_again_on_the_newest(path, again):
    assert asks_newest(PurePath(path)) == again
    assert re.findall(r"-m (\w+)", recipe("test-newest")) == [NEWEST]
    assert all((ROOT / "tests" / folder).is_dir() for folder in SEND_COMMANDS)


def test_what_is_on_no_chosen_server_is_not_tested_again():
    assert on_chosen_servers(["amqp_url", "servers"], [])
    assert on_chosen_servers(["ledger", "request"], ["redis in three shards"])
    assert not on_chosen_servers(["ledger", "request"], ["redis cluster in three shards"])
    assert not on_chosen_servers(["ledger", "servers"], ["memory"])
    assert not on_chosen_servers(["tmp_path"], [])


def test_continuous_integration_runs_make_test_and_then_all():
    assert "make test test-all" in (ROOT / ".ci/run").read_text()


def test_the_files_that_wait_exist_and_are_not_quick():
    for file in WAIT:
        assert (ROOT / "tests" / file).is_file(), file
        assert waits(f"tests/{file}")
    assert not waits("tests/acceptance/test_demo.py")
