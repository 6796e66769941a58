"""The number of slots is asked for when executors have come, and never waited for without end."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tiercel.spark_jobs.spark import executors, session
from tiercel.spark_jobs.spark.executors import (
    Executor,
    Readiness,
    absence_of,
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
        pytest.param({0.8: 2, 3.3: 4}, 4, 3.5, id="one after the other"),
        pytest.param({0.0: 3, 0.5: 2}, 2, 3.7, id="one that goes"),
        pytest.param({}, 0, 1.2, id="none"),
        pytest.param({2.0: 2}, 0, 1.2, id="none yet"),
        pytest.param({each * 2.0: each / 10 + 0.1 for each in range(99)}, 0.6, 10.2, id="no end"),
    ],
)
def test_slots_are_counted_when_there_are_enough_or_their_number_stays(
    executors: dict[float, int], slots: int, within_s: float
) -> None:
    cluster = Cluster(executors)
    assert cluster.steady_slots(4) == slots
    assert cluster.now - 100 <= within_s


def test_without_an_executor_one_line_says_why_the_last_one_ended_and_where_to_look() -> None:
    said = absence_of(0, "exited with exit code 1(unexpected).\nThe pod: x", "k8s://https://h:6443")
    assert said.startswith(
        "Spark has no executor, the last one ended: exited with exit code 1(unexpected). The pod: x"
    )
    assert "kubectl logs -l spark-role=executor" in said
    assert "ResourceManager" in absence_of(0, "", "yarn")
    assert "Spark's master" in absence_of(0, "", "spark://h:7077")


def test_time_that_was_spent_on_something_else_is_no_more_waited_for() -> None:
    cluster = Cluster({0.0: 1, 0.5: 2})
    assert steady_slots(lambda: 1, 4, 3.0, cluster.clock, cluster.wait, spent_s=2.0) == 1
    assert 100.9 <= cluster.now <= 101.2
    cluster.now = 100.0
    assert steady_slots(cluster.count, 4, 3.0, cluster.clock, cluster.wait, spent_s=2.0) == 2
    assert 103.4 <= cluster.now <= 103.8, "the next one has its whole time"


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


class Cold(SparkUnit):
    """A unit whose free slots change with each question: the last number stays."""

    def __init__(self, *free: int) -> None:
        self.free_slots = [*free]
        self.asked: list[int] = []
        self.context = SimpleNamespace(pythonExec="python", unit=self)
        self._local = False
        self._master = "spark://h:7077"
        self._steady_s = 0.2

    def _free(self) -> int:
        return self.free_slots.pop(0) if len(self.free_slots) > 1 else self.free_slots[0]

    def executors(self) -> list[Executor]:
        return []

    def _last_end(self) -> str:
        return "exit code 1"


class Answers:
    def __init__(self, context) -> None:
        self._unit = context.unit

    def answers(self, slots: int) -> Readiness:
        self._unit.asked.append(slots)
        return Readiness(slots=slots)


@pytest.mark.parametrize(
    ("free", "wanted", "slots", "asked"),
    [
        pytest.param([4], 4, 4, [4], id="all there"),
        # Spark notes the end of the answers a little later.
        pytest.param([1, 0, 0, 1], 4, 1, [1], id="one, for good"),
        pytest.param([1, 1, 3], 4, 3, [1, 3], id="others come meanwhile"),
    ],
)
def test_executors_are_asked_while_others_may_come(free, wanted, slots, asked, monkeypatch):
    monkeypatch.setattr(session, "Asking", Answers)
    unit = Cold(*free)
    assert unit.ready(wanted) == Readiness(slots=slots)
    assert unit.asked == asked


def test_without_an_executor_nobody_is_asked(monkeypatch):
    monkeypatch.setattr(executors, "_FIRST_S", 0.05)
    monkeypatch.setattr(session, "Asking", Answers)
    unit = Cold(0)
    ready = unit.ready(4)
    assert (ready.slots, ready.absent, unit.asked) == (0, True, [])
    assert ready.trouble.startswith("Spark has no executor, the last one ended: exit code 1; ")
