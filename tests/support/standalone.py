"""A standalone cluster of Spark, with a master and workers that are hosts of their own: each has an
address, and a folder for temporary files that no other one has.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Self

import pyspark

from tests.support.children import below
from tests.support.waiting import wait_until
from tiercel.spark_jobs.spark.settings import SMALL_JVM

_SPARK = Path(pyspark.__file__).parent
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"


class Standalone:
    """A master, and workers of one core each. Use as a context manager."""

    def __init__(self, folder: Path, hosts: int = 2) -> None:
        self.url = ""
        self._folder = folder
        self._names = [f"host-{number}" for number in range(1, hosts + 1)]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self._start("master", _MASTER, "--host", "127.0.0.1", "--port", "0")
        self.url = self._said("master", r"Starting Spark master at (spark://\S+)")
        for name in self._names:
            self._add(name)
        return self

    def __exit__(self, *_: object) -> None:
        for name in [*self._processes]:
            self.kill(name)

    @property
    def hosts(self) -> set[str]:
        """Folders for temporary files, which Python processes of a host know as ``TMPDIR``."""
        return {str(self._temporary(name)) for name in self._names}

    def join(self) -> None:
        """Add a host to those that are there."""
        self._names.append(f"host-{len(self._names) + 1}")
        self._add(self._names[-1])

    def executors(self, name: str) -> list[int]:
        """Return the processes of executors on a host."""
        return below(self._processes[name].pid, b"CoarseGrainedExecutorBackend")

    def registered(self, name: str) -> int:
        """Return how many executors of a host Spark's driver has had."""
        logs = (self._folder / name).glob("*/*/stderr")
        return sum("Successfully registered with driver" in log.read_text() for log in logs)

    def kill(self, name: str) -> None:
        """End a host at once, with its executors."""
        process = self._processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _add(self, name: str) -> None:
        host = f"127.0.0.{self._names.index(name) + 2}"
        size = ("--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / name))
        self._start(name, _WORKER, "--host", host, *size, self.url)
        self._said(name, "(Successfully registered with master)")

    def _start(self, name: str, role: str, *arguments: str) -> None:
        self._temporary(name).mkdir(parents=True)
        with self._log(name).open("w") as log:
            self._processes[name] = subprocess.Popen(
                [_SPARK / "bin/spark-class", role, "--webui-port", "0", *arguments],
                env={
                    **os.environ,
                    "SPARK_HOME": str(_SPARK),
                    "SPARK_DAEMON_MEMORY": "256m",
                    "SPARK_DAEMON_JAVA_OPTS": SMALL_JVM,
                    "SPARK_LOCAL_DIRS": str(self._temporary(name)),
                    "TMPDIR": str(self._temporary(name)),
                },
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _said(self, name: str, pattern: str) -> str:
        found = wait_until(
            lambda: re.search(pattern, self._log(name).read_text()), 60, f"{name}: {pattern}"
        )
        return str(found[1])

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _temporary(self, name: str) -> Path:
        return self._folder / f"{name}-tmp"
