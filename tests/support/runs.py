"""``tiercel run`` with a user's commands, in a folder with a topology, and what it leaves behind.

Notes, temporary files and data are below that folder too, which identifies all of its processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.terminal import tiercel_run
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]

SHOUT = """
from tiercel import BasicBolt, Config, QueueSpout, TopologyBuilder


class Shout(BasicBolt):
    def execute(self, tup, collector):
        print("heard", tup["line"])


def topology():
    # To end Spark takes long on a busy machine.
    builder = TopologyBuilder("shout", Config(shutdown_grace_secs=60))
    builder.set_spout("lines", QueueSpout("lines", fields="line string"))
    builder.set_bolt("shout", Shout()).shuffle_grouping("lines")
    return builder.build()
"""


@dataclass
class Desk:
    """A user's folder."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    _logs: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("runtime", "tmp"):
            (self.folder / name).mkdir(exist_ok=True)

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "XDG_RUNTIME_DIR": str(self.folder / "runtime"),
            "TMPDIR": str(self.folder / "tmp"),
            **self.variables,
        }

    @property
    def log(self) -> str:
        """Return the log of the newest run so far."""
        return self._logs[-1].read_text()

    def events(self, *names: str) -> list[dict[str, Any]]:
        """Return the records of these names in the newest run's log, in order."""
        records = [json.loads(line) for line in self.log.splitlines(keepends=True) if "\n" in line]
        return [record for record in records if record.get("event") in names]

    def write(self, name: str, text: str) -> None:
        """Write a file as an editor does."""
        (self.folder / name).write_text(text)

    def tiercel(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; it must exit with this code."""
        command = [sys.executable, "-m", "tiercel", *arguments]
        ended = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended

    @contextmanager
    def run(
        self, topology: str, *options: str, until: str = "run_started"
    ) -> Iterator[subprocess.Popen]:
        """Start a run and wait until it has logged this event. Kill it if it is left running."""
        log = self.folder / f"log-{len(self._logs)}"
        self._logs.append(log)
        with tiercel_run(
            topology, *options, folder=self.folder, log=log, environment=self.environment
        ) as process:
            wait_until(
                lambda: f'"{until}"' in log.read_text() or process.poll() is not None,
                300,
                f"{until} of {topology}",
            )
            assert process.poll() is None, log.read_text()
            yield process

    def alive(self) -> list[str]:
        """Return the command lines of processes whose environment names the folder."""
        found = []
        for folder in Path("/proc").iterdir():
            try:
                if (
                    folder.name.isdigit()
                    and os.fsencode(self.folder) in (folder / "environ").read_bytes()
                ):
                    found.append((folder / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return found

    def assert_nothing_is_left(self) -> None:
        """Check that no process, temporary file or note is left."""
        wait_until(lambda: not self.alive(), 10, "every process to be gone")
        wait_until(lambda: self._litter() == [], 10, f"no litter: {self._litter()}")

    def _litter(self) -> list[str]:
        return [
            path.name
            for path in [
                *(self.folder / "tmp").iterdir(),
                *(self.folder / "runtime").glob("*/*"),
            ]
            # Leftovers of the JVM and Spark.
            if not path.name.startswith(("hsperfdata", "spark-", "blockmgr-"))
        ]
