"""``tiercel`` at a terminal, with a user's commands."""

from __future__ import annotations

import io
import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tiercel.workers.cli.app import main


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended."""

    code: int
    stdout: str
    stderr: str


def command(
    capsys: pytest.CaptureFixture[str], *arguments: str, body: str = "", **environment: str
) -> Ended:
    """Run ``tiercel`` with ``body`` as its input, in this process: a new one takes a second to
    start.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["tiercel", *arguments])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(body.encode())))
        with pytest.raises(SystemExit) as ended:
            main()
    code = ended.value.code or 0
    assert isinstance(code, int)
    return Ended(code, *capsys.readouterr())


@contextmanager
def tiercel_run(
    topology: str, *options: str, folder: Path, log: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen]:
    """Start ``tiercel run`` in ``folder`` with logs as JSON; all output goes to ``log``.

    It is killed if it is left running.
    """
    command = [sys.executable, "-m", "tiercel", "run", topology, *options, "--log", "json"]
    with log.open("w") as file:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@dataclass
class Terminal:
    """A command, and the terminal that it writes to."""

    process: subprocess.Popen
    ours: int
    _seen: bytearray = field(default_factory=bytearray)

    def seen(self) -> bytes:
        """Return all output to the terminal so far."""
        while select.select([self.ours], [], [], 0)[0]:
            try:
                self._seen += os.read(self.ours, 65536)
            except OSError:  # the command has ended
                break
        return bytes(self._seen)


@contextmanager
def at_a_terminal(*arguments: str, environment: Mapping[str, str]) -> Iterator[Terminal]:
    """Run a command at a terminal. Kill it if it is left running."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tiercel", *arguments]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
