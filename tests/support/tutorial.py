"""Follows docs/tutorial.md from top to bottom: saves its files, types its commands.

A page has blocks of five kinds:

* ``sh`` is typed, line by line. With a title that begins with "once" it is skipped, because it
  makes the environment in which the suite runs. With the title "fails" it must fail.
* ``text`` is in the output of the commands before it, line by line and in order, apart from
  blanks; ``…`` matches anything. Commands that only read are repeated until they print it.
* with the title ``FILE`` the block is saved; with ``FILE, at the end`` it is appended; with
  ``FILE, NAME`` it replaces that function or class.
* ``python`` without a title is a part of an existing file.
"""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.waiting import wait_until

_BLOCK = re.compile(r'^```(\w+)(?: title="(.*?)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
_LOOKS = ("tiercel depths", "tiercel dead-letters show", "tiercel errors")
_BACKGROUND = "tiercel run"
# Spark starts within this time even on a busy machine.
_PATIENCE_S = 300
_LOOK_S = 90


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    kind: str
    title: str
    text: str

    @property
    def commands(self) -> list[str]:
        return [line for line in self.text.splitlines() if line.strip()]


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of a page in order."""
    return [Block(*found.groups("")) for found in _BLOCK.finditer(page)]


def says(output: str, expected: str) -> bool:
    """Return True if the lines of ``expected`` are in ``output``, in order."""
    rest = " ".join(re.sub(r"[│┃╭╮╰╯─━]", " ", output).split())
    for line in expected.splitlines():
        for part in filter(None, (" ".join(part.split()) for part in line.split("…"))):
            _, found, rest = rest.partition(part)
            if not found:
                return False
    return True


@dataclass
class Tutor:
    """One reader of a page, with a folder and two terminals."""

    folder: Path
    # Without servers, commands that need them are skipped, with their output.
    servers: bool
    typed: list[str] = field(default_factory=list)
    _said: str | None = ""
    _last: str = ""
    _runs: int = 0
    _run: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end_run()

    def read(self, page: str) -> None:
        """Do everything that the page says."""
        for block in blocks_of(page):
            if block.kind == "text":
                self._compare(block.text)
            elif block.kind == "sh":
                if not block.title.startswith("once"):
                    self._type(block)
            elif block.title:
                self._save(*block.title.split(", ", 1), text=block.text)
            elif block.kind == "python":
                self._find(block.text)

    def log(self) -> str:
        """Return the output of the last ``tiercel run`` so far."""
        return (self.folder / f"../run-{self._runs}.log").read_text()

    # -- commands ----------------------------------------------------------------------------------

    def _type(self, block: Block) -> None:
        for command in block.commands:
            self._last = command
            needs_servers = command.startswith("tiercel ") and not command.startswith("tiercel new")
            if needs_servers and not self.servers:
                self._said = None
            elif command.startswith("cd "):
                self.folder = self.folder / command.removeprefix("cd ")
                self.typed.append(command)
            elif command.startswith(_BACKGROUND):
                self._start(command)
            elif command.startswith(_LOOKS):
                # Typed once its expected output is known.
                self._said = ""
            else:
                fails = block.title == "fails"
                failed, self._said = self._answer(command)
                assert failed == fails, f"{command}\n{self._said}"

    def _answer(self, command: str) -> tuple[bool, str]:
        """Return whether a command failed, and its output."""
        done = subprocess.run(
            command,
            shell=True,
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        self.typed.append(command)
        return done.returncode != 0, done.stdout + done.stderr

    def _start(self, command: str) -> None:
        self._end_run()
        self._runs += 1
        with (self.folder / f"../run-{self._runs}.log").open("wb") as log:
            self._run = subprocess.Popen(
                command.split(), cwd=self.folder, env=self._environment(), stdout=log, stderr=log
            )
        self.typed.append(command)

    def _end_run(self) -> None:
        if self._run is not None:
            # A run whose topology was killed ends by itself, perhaps just now: Python no longer
            # handles a signal then.
            if not self._last.startswith("tiercel kill"):
                self._run.send_signal(signal.SIGINT)
            try:
                assert self._run.wait(60) == 0, self.log()
            finally:
                self._run.kill()
                self._run.wait()
                self._run = None

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if "TIERCEL" not in name}
        return {
            **kept,
            # As after `. .venv/bin/activate`.
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            # The second terminal finds the servers of the first here, and not another test's.
            "XDG_RUNTIME_DIR": str(self.folder),
            "PYTHONUNBUFFERED": "1",
            # Wide enough that no cell of a table is wrapped.
            "COLUMNS": "300",
        }

    # -- output and files --------------------------------------------------------------------------

    def _compare(self, expected: str) -> None:
        if self._said is None:
            return
        if self._last.startswith(_BACKGROUND):
            wait_until(lambda: says(self.log(), expected), _PATIENCE_S, expected)
        elif self._last.startswith(_LOOKS):
            wait_until(lambda: self._looks_so(expected), _LOOK_S, f"{self._last}\n{expected}")
        else:
            assert says(self._said, expected), f"{self._last}\n{self._said}"

    def _looks_so(self, expected: str) -> bool:
        # It fails while a queue does not exist yet.
        failed, said = self._answer(self._last)
        print(said)  # noqa: T201 - pytest shows it where the page is not right
        return not failed and says(said, expected)

    def _save(self, name: str, place: str = "", *, text: str) -> None:
        file = self.folder / name
        if place == "at the end":
            text = f"{file.read_text()}\n\n{text}"
        elif place:
            lines = file.read_text().splitlines(keepends=True)
            [node] = [
                node
                for node in ast.parse("".join(lines)).body
                if getattr(node, "name", None) == place
            ]
            lines[node.lineno - 1 : node.end_lineno] = [text]
            text = "".join(lines)
        file.write_text(text)

    def _find(self, part: str) -> None:
        assert any(part in file.read_text() for file in self.folder.glob("*.py")), part
