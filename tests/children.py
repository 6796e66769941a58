"""The processes of a running topology, for tests that kill them."""

import os
from pathlib import Path

from tests.waiting import wait_until


def kill(child, number) -> None:
    pid = child.pid
    assert pid is not None, f"{child.name} does not run"
    os.kill(pid, number)
    wait_until(lambda: child.pid not in (pid, None), 60, f"{child.name} to be started again")


def python_workers(driver: int) -> list[int]:
    """Processes below the driver that were forked from PySpark's daemon."""
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
        while pid in parents and pid != driver:
            pid = parents[pid]
        return pid == driver

    daemons = {pid for pid, command in commands.items() if b"pyspark.daemon" in command and below(pid)}
    return sorted(pid for pid in daemons if parents[pid] in daemons)
