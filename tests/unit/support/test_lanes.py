"""Of three processes, one takes the files that wait."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from tests.support.lanes import Lanes

WORK = [f"tests/work_{number}.py" for number in range(8)]
WAIT = [f"tests/wait_{number}.py" for number in range(4)]


class Process:
    """A worker process of pytest-xdist."""

    def __init__(self) -> None:
        self.gateway = Mock()
        self.shutting_down = False
        self.sent: list[int] = []

    def send_runtest_some(self, tests: list[int]) -> None:
        self.sent += tests

    def shutdown(self) -> None:
        self.shutting_down = True


def files_of(processes: list[Process], files: list[str]) -> list[list[str]]:
    """Give each process the tests, two per file, and let the processes run them in turn. Return the
    files in the order in which each process took them.
    """
    tests = [f"{file}::test_{letter}" for file in files for letter in "ab"]
    config = Mock()
    config.getvalue.side_effect = {"tx": len(processes) * ["popen"]}.get
    config.option.loadscopereorder = False
    lanes = Lanes(config, Mock())
    for process in processes:
        lanes.add_node(process)
        lanes.add_node_collection(process, tests)
    lanes.schedule()
    done = [0] * len(processes)
    while not lanes.tests_finished:
        for number, process in enumerate(processes):
            if done[number] < len(process.sent):
                lanes.mark_test_complete(process, process.sent[done[number]])
                done[number] += 1
    return [list(dict.fromkeys(files[test // 2] for test in one.sent)) for one in processes]


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[Process]:
    monkeypatch.setattr("tests.support.lanes.waits", WAIT.__contains__)
    return [Process(), Process(), Process()]


def test_the_last_process_takes_the_files_that_wait(processes: list[Process]) -> None:
    first, second, last = files_of(processes, [*WORK, *WAIT])
    assert last == WAIT
    assert sorted(first + second) == WORK


def test_a_process_without_files_of_its_own_takes_others(processes: list[Process]) -> None:
    taken = files_of(processes, [*WAIT, WORK[0]])
    assert WORK[0] in taken[0]
    assert all(taken)
    assert sorted([*taken[0], *taken[1], *taken[2]]) == sorted([*WAIT, WORK[0]])
