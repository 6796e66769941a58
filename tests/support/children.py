"""The processes of a running topology, for tests that kill them or prevent their start."""

import os
import sys
from pathlib import Path

from tests.support.waiting import wait_until

# An argument of the process from which Spark forks its Python workers, and so of theirs. In the
# command line of the JVM, it is within the setting that names it.
_DAEMON = b"\0tiercel.spark_jobs.spark.python_daemon"


class Python:
    """The program that ``PYSPARK_PYTHON`` names: a script that can be changed during a run."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "python"
        self._starts = folder / "starts"

    def becomes(self, does: str) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(f'#!/bin/sh\necho >>{self._starts}\n{does}\nexec "{sys.executable}" "$@"\n')
        new.chmod(0o755)
        new.rename(self.path)

    @property
    def starts(self) -> int:
        return len(self._starts.read_text()) if self._starts.exists() else 0


def kill(child, number) -> None:
    pid = child.pid
    assert pid is not None, f"{child.name} does not run"
    os.kill(pid, number)
    wait_until(lambda: child.pid not in (pid, None), 300, f"{child.name} to be started again")


def python_workers(driver: int) -> list[int]:
    """Return the processes below the driver that run bolt tasks, which are forked from an
    executor's daemon.
    """
    daemons = _below(driver, _DAEMON)
    return sorted(pid for pid, parent in daemons.items() if parent in daemons)


def python_processes(driver: int) -> list[int]:
    """Return the executors' daemons below the driver, and their forks."""
    return sorted(_below(driver, _DAEMON))


def spark_jvms(driver: int) -> list[int]:
    """Return Spark's JVM below the driver, and the executors' JVMs if they are on this machine."""
    return sorted(_below(driver, b"org.apache.spark."))


def below(pid: int, command: bytes) -> list[int]:
    """Return the processes below another with this word in their commands."""
    return sorted(_below(pid, command))


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    return [pid, *_below(pid, b"")]


def _below(ancestor: int, command: bytes) -> dict[int, int]:
    """Return the processes below another with this word in their commands, each with its parent."""
    parents = {}
    commands = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                status = (folder / "stat").read_text()
                commands[int(folder.name)] = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            parents[int(folder.name)] = int(status.rpartition(")")[2].split()[1])

    def below(pid: int) -> bool:
        while pid in parents and pid != ancestor:
            pid = parents[pid]
        return pid == ancestor

    return {
        pid: parents[pid]
        for pid, words in commands.items()
        if command in words and pid != ancestor and below(pid)
    }
