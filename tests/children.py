"""The processes of a running topology, for tests that kill them."""

import os
from pathlib import Path

from tests.waiting import wait_until


def kill(child, number) -> None:
    pid = child.pid
    assert pid is not None, f"{child.name} does not run"
    os.kill(pid, number)
    wait_until(lambda: child.pid not in (pid, None), 300, f"{child.name} to be started again")


def python_workers(driver: int) -> list[int]:
    """Processes below the driver that were forked from PySpark's daemon."""
    daemons = _below(driver, b"pyspark.daemon")
    return sorted(pid for pid, parent in daemons.items() if parent in daemons)


def stage_workers(driver: int) -> list[int]:
    """Those of them that run the bolts."""
    return sorted(set(python_workers(driver)).intersection(_below(driver, b"\0pyspark.worker\0")))


def planners(driver: int) -> list[int]:
    """Processes below the driver in which Spark asks the relay's source for offsets: one a query."""
    return sorted(_below(driver, b"python_streaming_source_runner"))


def python_processes(driver: int) -> list[int]:
    """PySpark's daemon below the driver, and what was forked from it."""
    return sorted(_below(driver, b"pyspark.daemon"))


def spark_jvms(driver: int) -> list[int]:
    """Spark's JVM below the driver; the executors' too, where they are on this machine."""
    return sorted(_below(driver, b"org.apache.spark."))


def family(pid: int) -> list[int]:
    """A process and all that it has started."""
    return [pid, *_below(pid, b"")]


def _below(ancestor: int, command: bytes) -> dict[int, int]:
    """The processes below another with this word in their command, each with its parent."""
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

    return {pid: parents[pid] for pid, words in commands.items() if command in words and pid != ancestor and below(pid)}
