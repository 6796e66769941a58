"""``tiercel run`` as somebody types it at a terminal."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def tiercel_run(
    topology: str, *options: str, folder: Path, log: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen]:
    """The process, started in ``folder`` with logs as JSON; all that it says goes to ``log``. Killed if it is left running."""
    command = [sys.executable, "-m", "workers", "run", topology, *options, "--log", "json"]
    with log.open("w") as file:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
