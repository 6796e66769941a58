"""The number of slots is asked for when executors have come, and never waited for without end."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tiercel.spark_jobs.spark.executors import (
    readiness_of,
    start_failure,
    steady_slots,
    this_machine,
)
from tiercel.spark_jobs.spark.session import SparkUnit

FROM_PYTHON = """org.apache.spark.SparkException:
Error from python worker:
  Traceback (most recent call last):
    File x
  OSError: AF_UNIX path too long
PYTHONPATH was:
  /x"""


class Cluster:
    """Executors that come at their times, in seconds: {time: slots from then on}."""

    def __init__(self, slots: dict[float, int]) -> None:
        self.slots = slots
        self.now = 100.0

    def count(self) -> int:
        return next(
            (slots for at, slots in reversed(self.slots.items()) if self.now - 100 >= at), 0
        )

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def steady_slots(self, wanted: int) -> int:
        return steady_slots(self.count, wanted, 3.0, self.clock, self.wait)


@pytest.mark.parametrize(
    ("executors", "slots", "within_s"),
    [
        pytest.param({0.0: 4}, 4, 0.0, id="all there"),
        pytest.param({0.0: 40}, 40, 0.0, id="more than enough"),
        pytest.param({0.0: 2}, 2, 3.2, id="fewer, for good"),
        pytest.param({2.0: 2, 4.5: 4}, 4, 4.7, id="one after the other"),
        pytest.param({0.0: 3, 0.5: 2}, 2, 3.7, id="one that goes"),
        pytest.param({}, 1, 10.2, id="none"),
        pytest.param({each * 2.0: each / 10 for each in range(100)}, 1, 10.2, id="without end"),
    ],
)
def test_slots_are_counted_when_there_are_enough_or_their_number_stays(
    executors: dict[float, int], slots: int, within_s: float
) -> None:
    cluster = Cluster(executors)
    assert cluster.steady_slots(4) == slots
    assert cluster.now - 100 <= within_s


def test_answers_of_one_executor_are_one_and_a_sound_one_is_counted_by_its_slots() -> None:
    broken = "127\t7\thost-3\tsh: 1: /no/python: not found"
    found = readiness_of([broken, broken, "ready\t8\thost-4\tready"], "/no/python")
    assert (found.slots, found.unfit) == (1, 2)
    assert found.trouble.startswith(
        "executor 7 on host-3 cannot start Python '/no/python': No such file or directory; set "
    )


def test_many_executors_are_one_line() -> None:
    found = readiness_of([f"1\t{each}\th\tit lacks pyarrow" for each in range(40)], "python")
    assert "it lacks pyarrow (nor can 39 more executors)" in found.trouble
    assert found.slots == 0


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 3", "it ended with exit code 3"),
        ("exit 0", "it ended with exit code 0"),
        ("echo no disk >&2; exit 1", "no disk"),
        ("echo; echo 'ImportError: libfoo.so'; exit 1", "ImportError: libfoo.so"),
    ],
)
def test_a_python_that_ends_at_once_is_told_by_its_last_line(
    tmp_path: Path, script: str, reason: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    found = this_machine(str(python), 2)
    assert found.slots == 0
    assert found.trouble.startswith(f"this machine cannot start Python {str(python)!r}: {reason};")


def test_a_python_that_works_has_all_slots(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    assert this_machine(str(python), 2) == this_machine(sys.executable, 2)


# Of a Python that ends before it has written anything.
NO_PORT = (
    "org.apache.spark.SparkException: EOFException occurred while reading the port number from "
    "tiercel.spark_jobs.spark.python_daemon's stdout"
)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            'java.io.IOException: Cannot run program "/no": error=2, No such file\n\tat x',
            'Cannot run program "/no": error=2, No such file',
        ),
        (
            FROM_PYTHON,
            "OSError: AF_UNIX path too long",
        ),
        (f"{NO_PORT}.\n\tat x", "it ended at once"),
        (f"{NO_PORT} and terminated with code: 3..", "it ended with exit code 3"),
        ("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)", ""),
        ("ExecutorLostFailure (executor 1 exited caused by one of the running tasks)", ""),
    ],
)
def test_a_task_without_python_is_told_from_one_whose_python_dies(said: str, reason: str) -> None:
    assert start_failure(said) == reason


class Backend:
    """Spark's scheduler backend: it still names executors that are asked to leave."""

    def __init__(self):
        self.ended = []

    def getExecutorIds(self):  # noqa: N802 - Spark's name
        return Joined(["0", "1", "12"])

    def executorsPendingDecommission(self):  # noqa: N802 - as above
        return SimpleNamespace(keySet=lambda: Joined(["1"]))

    def killExecutors(self, *arguments):  # noqa: N802 - as above
        self.ended.append(arguments)


class Joined(list):
    """A sequence of Scala."""

    def mkString(self, separator):  # noqa: N802 - as above
        return separator.join(self)


def spark_with(backend, live):
    """A unit whose Spark lists these executors as live, by slots and running tasks."""
    listed = [
        SimpleNamespace(
            id=lambda id_=id_: id_,
            maxTasks=lambda n=slots: n,
            activeTasks=lambda n=running: n,
            hostPort=lambda id_=id_: f"[fd00::{id_}]:7079" if id_ == "12" else f"10.0.0.{id_}:7079",
        )
        for id_, (slots, running) in live.items()
    ]
    jvm = SimpleNamespace(
        schedulerBackend=lambda: backend,
        statusStore=lambda: SimpleNamespace(
            executorList=lambda _: SimpleNamespace(iterator=lambda: Iterated(listed))
        ),
    )
    unit = object.__new__(SparkUnit)
    unit.context = SimpleNamespace(
        _jsc=SimpleNamespace(sc=lambda: jvm),
        _jvm=SimpleNamespace(
            java=SimpleNamespace(util=SimpleNamespace(ArrayList=JavaList)),
            PythonUtils=SimpleNamespace(toSeq=tuple),
        ),
    )
    return unit


class JavaList(list):
    add = list.append


class Iterated:
    """An iterator of Java."""

    def __init__(self, items):
        self._items = [*items]

    def hasNext(self):  # noqa: N802 - Java's name
        return bool(self._items)

    def next(self):
        return self._items.pop(0)


def test_an_executor_that_spark_has_marked_leaves_though_spark_still_names_it():
    unit = spark_with(Backend(), {"driver": (0, 0), "0": (2, 1), "1": (2, 0), "12": (1, 1)})
    assert unit.staying == "0,12"
    assert [(one.id, one.leaving, one.free) for one in unit.executors()] == [
        ("0", False, 1),
        ("1", True, 0),
        ("12", False, 0),
    ]
    assert [one.host for one in unit.executors()] == ["10.0.0.0", "10.0.0.1", "fd00::12"]


def test_executors_are_ended_without_force_and_without_another_total():
    backend = Backend()
    spark_with(backend, {}).end(["3", "4"])
    # Adjust the total, count a failure, kill tasks: none of the three.
    assert backend.ended == [(("3", "4"), False, False, False)]
