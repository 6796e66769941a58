"""Finds the free slots, and the executors on which Python starts. Does not import pyspark.

A Python that cannot start fails its Spark task within milliseconds, and Spark retries at once and
forever. So each executor is checked before a run begins, by a job without Python: a shell starts
Python as Spark would, and reports the result.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiercel.queues.nouns import counted

_LOOK_S = 0.1
# Executors register one after the other: seconds apart when an application begins, because their
# machines start JVMs, and within a second when some come back.
FIRST_STEADY_S = 3.0
STEADY_S = 1.0
_LONGEST_S = 10.0
_FIRST_S = 1.0
_READY = "tiercel-can-run"
# Libraries that cannot travel in an archive.
_LIBRARIES = ("numpy", "pyarrow", "redis", "pika", "pyspark")
_PYTHON = f"""
import importlib.util, sys
if sys.version_info[:2] != {sys.version_info[:2]}:
    sys.exit("its Python is %d.%d, the driver's is {sys.version_info[0]}.{sys.version_info[1]}"
             % sys.version_info[:2])
lacking = [each for each in {_LIBRARIES} if importlib.util.find_spec(each) is None]
if lacking:
    sys.exit("it lacks " + ", ".join(lacking))
import tiercel.spark_jobs.spark.python_daemon
print("{_READY}")
"""
# Arguments: Python, the program for it, folders to import from, seconds to keep the slot of an
# executor that cannot run bolts. Its parent is the executor's JVM, whose command line names it.
_SHELL = rf"""
for archive in "$SPARK_HOME"/python/lib/*.zip; do PYTHONPATH="$archive:$PYTHONPATH"; done
export PYTHONPATH="$3:$PYTHONPATH"
said=$("$1" -c "$2" 2>&1 </dev/null); code=$?
named() {{ tr '\000' '\n' <"/proc/$PPID/cmdline" | sed -n "/^--$1\$/{{n;p;}}"; }}
case $said in *{_READY}) code=ready;; esac
printf '%s\t%s\t%s\t%s\n' "$code" "$(named executor-id)" "$(named hostname)" \
    "$(printf %s "$said" | tail -n 1)"
if [ "$code" != ready ]; then sleep "$4"; fi
"""
_EXIT_CODES = {"126": "Permission denied", "127": "No such file or directory"}
_PATIENCE_S = 30.0
# Found in Spark's error for a task whose Python process could not start. Errors and deaths of a
# process that has started do not match.
_NO_START = re.compile(
    r"Cannot run program .*|Error from python worker.*|failed to launch worker.*"
    r"|\[PYTHON_VERSION_MISMATCH\].*|ModuleNotFoundError: .*"
    r"|java\.\S*(?:FileNotFound|AccessDenied)Exception: .*|Bad data in tiercel\..*"
    r"|EOFException occurred while reading the port number.*"
)
_LAST_WORDS = re.compile(r"^\s*(\w*(?:Error|Exception): .+)$", re.MULTILINE)
_LONGEST_REASON = 300
# Newest attempts that are looked at.
_NEWEST = 50
# Where an operator finds why no executor comes, or why each ends as it starts; by Spark's master.
_WHO_KNOWS = {
    "k8s://": "; if pods come and go, their logs say why (kubectl logs -l spark-role=executor), "
    "else kubectl get pods and kubectl get events",
    "yarn": "; the page of YARN's ResourceManager says what the application waits for",
    "spark://": "; the page of Spark's master says which workers have a free core and enough "
    "memory, and the folder work of a worker has the output of its executors",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Executor:
    """One live executor of Spark."""

    id: str
    # Number of Spark tasks that it can run at once, and that it runs.
    slots: int
    running: int = 0
    # True if it is asked to leave: Spark starts no task on it any more.
    leaving: bool = False
    # The address or name that it gave to Spark.
    host: str = ""

    @property
    def free(self) -> int:
        """The number of Spark tasks that Spark would start on it now."""
        return 0 if self.leaving else max(0, self.slots - self.running)


@dataclass(frozen=True, slots=True)
class UnfitExecutor:
    """An executor that cannot start Python, and why, in one line."""

    executor: str
    host: str
    reason: str

    def said(self, python: str) -> str:
        """Return the message for the operator."""
        who = f"executor {self.executor} on {self.host}" if self.executor else "this machine"
        return f"{who} cannot start Python {python!r}: {self.reason}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Readiness:
    """The free slots of Spark, and why some of them cannot run bolts."""

    # Slots of executors that can start Python.
    slots: int
    # Slots of executors that cannot.
    unfit: int = 0
    # No executor has a free slot.
    absent: bool = False
    # One line that says why slots are missing, and what to do; empty if none is.
    trouble: str = ""


def steady_slots(  # noqa: PLR0913, PLR0917 - a clock for tests
    count: Callable[[], int],
    wanted: int,
    steady_s: float,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
    spent_s: float = 0.0,
) -> int:
    """Return the slots of executors once there are ``wanted``, or no more come for ``steady_s``,
    of which ``spent_s`` have passed.

    Waits at most ten seconds, and one second for the first executor; 0 if there is none. Call it
    before a run begins, because the run's tasks take the free slots.
    """
    began = clock()
    slots = count()
    steady_at = clock() + steady_s - spent_s
    while slots < wanted and clock() < (steady_at if slots else began + _FIRST_S):
        if clock() >= began + _LONGEST_S:
            break
        wait(_LOOK_S)
        found = count()
        if found != slots:
            slots = found
            steady_at = clock() + steady_s
    return slots


def readiness_of(answers: Sequence[str], python: str) -> Readiness:
    """Evaluate the lines of the shells, one per slot."""
    found = [answer.split("\t", 3) for answer in answers]
    faults = {
        UnfitExecutor(
            executor, host, _EXIT_CODES.get(code) or said or f"it ended with exit code {code}"
        )
        for code, executor, host, said in found
        if code != "ready"
    }
    slots = sum(code == "ready" for code, *_ in found)
    return Readiness(slots=slots, unfit=len(found) - slots, trouble=trouble_of(faults, python))


def trouble_of(faults: set[UnfitExecutor], python: str) -> str:
    """Describe all faults in one line; empty without faults."""
    if not faults:
        return ""
    first, *others = sorted(faults, key=str)
    more = f" (nor can {len(others)} more executors)" if others else ""
    return (
        f"{first.said(python)[:_LONGEST_REASON]}{more}; set PYSPARK_PYTHON to a Python that has "
        "tiercel's dependencies on each executor, of the driver's version"
    )


def absence_of(executors: int, ended: str, master: str) -> str:
    """Describe in one line why no executor has a free slot.

    ``ended`` is the reason of Spark for the end of the last executor; empty if none has ended.

    >>> absence_of(2, "", "spark://m:7077")
    'no slot is free on 2 executors: they have tasks of an earlier run, or do not start Python'
    >>> absence_of(0, "", "local-cluster[1,1,1024]")
    'Spark has no executor'
    """
    if executors:
        return (
            f"no slot is free on {counted(executors, 'executor')}: they have tasks of an earlier "
            "run, or do not start Python"
        )
    last = f", the last one ended: {' '.join(ended.split())[:_LONGEST_REASON]}" if ended else ""
    kind = next((kind for kind in _WHO_KNOWS if master.startswith(kind)), "")
    return f"Spark has no executor{last}{_WHO_KNOWS.get(kind, '')}"


def this_machine(python: str, slots: int) -> Readiness:
    """Evaluate local mode, whose only executor is this process."""
    # The driver's own Python has started already.
    if python == sys.executable:
        return Readiness(slots=slots)
    shell = ["/bin/sh", "-c", _SHELL, "tiercel", *_arguments(python, "", 0.0)]
    answer = subprocess.run(shell, capture_output=True, text=True, check=False).stdout  # noqa: S603 - the user's own Python
    one = readiness_of(answer.splitlines()[:1], python)
    return one if one.trouble else Readiness(slots=slots)


class Asking:
    """Checks the executors of a cluster, one job at a time. ``context`` is a ``SparkContext``."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def answers(self, slots: int, hold_s: float = 0.0) -> Readiness:
        """Check the executor of each free slot; one that cannot run bolts keeps it for ``hold_s``.

        Returns when all have answered, or when an executor fails even the shell's task.
        """
        context = self._context
        context.setJobGroup("tiercel-check", "tiercel asks executors whether Python starts")
        folders = context.environment.get("PYTHONPATH", "")
        command = ["/bin/sh", "-c", _SHELL, "tiercel"]
        command += _arguments(context.pythonExec, folders, hold_s)
        numbers = context._jvm.java.util.ArrayList()  # noqa: SLF001 - a job without Python
        for number in range(slots):
            numbers.add(number)
        jobs = context._jsc.parallelize(numbers, slots)  # noqa: SLF001
        words = context._jvm.java.util.ArrayList()  # noqa: SLF001
        for word in command:
            words.add(word)
        future = jobs.pipe(words).collectAsync()
        deadline = time.monotonic() + _PATIENCE_S + hold_s
        while not future.isDone():
            failed = [each for job in future.jobIds() for each in start_failures(context, job)]
            faults = {fault for _, fault in failed}
            if faults or time.monotonic() > deadline:
                future.cancel(True)
                fit = 0 if faults else slots
                return Readiness(
                    slots=fit,
                    unfit=slots - fit,
                    trouble=trouble_of(faults, context.pythonExec),
                )
            time.sleep(_LOOK_S)
        return readiness_of([str(line) for line in future.get()], context.pythonExec)


def start_failures(context: Any, job: int) -> Iterator[tuple[int, UnfitExecutor]]:
    """Yield the newest failures of a Spark job's tasks to start Python, each with the number of its
    attempt.
    """
    tracker = context.statusTracker()
    info = tracker.getJobInfo(job)
    for stage in info.stageIds if info is not None else ():
        seen = tracker.getStageInfo(stage)
        if seen is None or not seen.numFailedTasks:
            continue
        tasks = context._jsc.sc().statusStore().taskList(stage, 0, _NEWEST).iterator()  # noqa: SLF001
        while tasks.hasNext():
            task = tasks.next()
            said = str(task.errorMessage().get()) if task.errorMessage().isDefined() else ""
            reason = start_failure(said)
            if reason:
                yield (
                    int(task.taskId()),
                    UnfitExecutor(str(task.executorId()), str(task.host()), reason),
                )


def running_tasks(context: Any, stages: Mapping[int, int]) -> Iterator[tuple[int, int, str]]:
    """Yield each running task of these stages, {stage: number of its tasks}, as its stage, its
    number in the stage, and its executor's id.
    """
    java: Any = context._jvm  # noqa: SLF001 - the only way to Spark's own list
    running = java.java.util.ArrayList()
    running.add(java.org.apache.spark.status.api.v1.TaskStatus.RUNNING)
    by_id = java.org.apache.spark.status.api.v1.TaskSorting.ID
    store = context._jsc.sc().statusStore()  # noqa: SLF001
    for stage, most in stages.items():
        tasks = store.taskList(stage, 0, 0, most, by_id, running).iterator()
        while tasks.hasNext():
            task = tasks.next()
            yield stage, int(task.index()), str(task.executorId())


def start_failure(said: str) -> str:
    """Return why no Python could start, from Spark's error for a task; empty for another failure.

    >>> start_failure('java.io.IOException: Cannot run program "/no/python": error=2, No such file')
    'Cannot run program "/no/python": error=2, No such file'
    >>> start_failure("org.apache.spark.SparkException: Python worker exited unexpectedly")
    ''
    """
    found = _NO_START.search(said)
    if found is None:
        return ""
    if found[0].startswith("Error from python worker"):
        words = _LAST_WORDS.findall(said[found.end() :])
        return str(words[-1]) if words else "it ended at once"
    if found[0].startswith("EOFException"):
        code = re.search(r"code: (-?\d+)", found[0])
        return f"it ended with exit code {code[1]}" if code else "it ended at once"
    return found[0].strip()


def _arguments(python: str, folders: str, hold_s: float) -> list[str]:
    return [python, _PYTHON, folders, f"{hold_s:.0f}"]
