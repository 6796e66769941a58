"""Run pip, and say in a few lines how far it is.

    python3 .ci/install.py LOG COMMAND…

``COMMAND`` is pip's, with its arguments. All that it prints goes into the file ``LOG``. What
appears is each large download with its progress, each package that is built, and, if pip fails, its
last lines. Standard library only: this runs before anything is installed.
"""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

# A download is announced from this size on.
LARGE_MB = 100.0
# Time between two lines of progress. A terminal gets one line, written again each second.
EVERY_S = 10.0
LAST_LINES = 30
_LOOK_S = 1.0

_NAMED = 3

_INSTALLING = "Installing collected packages:"
_DOWNLOADING = re.compile(r"\s*Downloading (?:\S*/)?(\S+) \(([\d.]+) MB\)")
_BUILDING = re.compile(r"\s*Building wheel for (\S+) .*: started")


class Progress:
    """Turns pip's lines, and the size of its downloads, into a few lines of our own."""

    def __init__(self, folder: Path, out: TextIO) -> None:
        """``folder`` is where pip puts a download until it is complete."""
        self._folder = folder
        self._out = out
        self._large: tuple[str, float] | None = None
        self._said_at = 0.0
        self._open_line = False

    def line(self, line: str) -> None:
        """Take one line of pip's."""
        self._large = None
        if (found := _DOWNLOADING.match(line)) and float(found[2]) >= LARGE_MB:
            self._large = found[1], float(found[2])
            self._said_at = time.monotonic()
            self._say(f"downloading {found[1]}, {float(found[2]):.0f} MB")
        elif found := _BUILDING.match(line):
            self._say(f"building {found[1]}")
        elif line.startswith(_INSTALLING):
            names = line.removeprefix(_INSTALLING).strip()
            many = names.count(",") + 1
            self._say(f"unpacking {names if many <= _NAMED else f'{many} packages'}")

    def look(self) -> None:
        """Tell the progress of a large download, if it is time to."""
        terminal = self._out.isatty()
        pause = _LOOK_S if terminal else EVERY_S
        if self._large is None or time.monotonic() - self._said_at < pause:
            return
        self._said_at = time.monotonic()
        name, whole = self._large
        done = min(whole, max(_sizes(self._folder), default=0) / 1e6)
        if terminal:
            line = f"\rtiercel:   {name}: {done:.0f} of {whole:.0f} MB "
            print(line, end="", file=self._out, flush=True)
            self._open_line = True
        else:
            self._say(f"{name}: {done:.0f} of {whole:.0f} MB")

    def end(self) -> None:
        """End a line that was to be written again."""
        if self._open_line:
            print(file=self._out, flush=True)
            self._open_line = False

    def _say(self, what: str) -> None:
        self.end()
        print(f"tiercel:   {what}", file=self._out, flush=True)


def run(log: Path, command: Sequence[str], out: TextIO) -> int:
    """Run pip. Return its exit code."""
    last: deque[str] = deque(maxlen=LAST_LINES)
    temporary = tempfile.TemporaryDirectory(prefix="tiercel-pip-", dir=log.parent)
    with temporary as folder, log.open("a") as file:
        progress = Progress(Path(folder), out)

        def take(line: str) -> None:
            file.write(line)
            last.append(line)
            progress.line(line)

        code = _follow(command, {**os.environ, "TMPDIR": folder}, take, progress.look)
        progress.end()
    if code:
        print(f"tiercel: pip failed. All that it said is in {log}; its last lines:", file=out)
        print("".join(f"  {line}" for line in last), end="", file=out, flush=True)
    return code


def _follow(
    command: Sequence[str],
    environment: dict[str, str],
    take: Callable[[str], None],
    look: Callable[[], None],
) -> int:
    """Run ``command``; call ``take`` with each line, ``look`` while none comes.

    Return its exit code.
    """
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    with subprocess.Popen(  # noqa: S603 - the Makefile's command
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        out = process.stdout
        assert out is not None  # noqa: S101 - for the type checker: it is a pipe

        def read() -> None:
            for line in out:
                lines.put(line)
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        while True:
            try:
                line = lines.get(timeout=_LOOK_S)
            except queue.Empty:
                look()
                continue
            if line is None:
                return process.wait()
            take(line)


def _sizes(folder: Path) -> list[int]:
    """The sizes of all files below ``folder``, which may vanish meanwhile."""
    found = []
    for path in folder.rglob("*"):
        try:
            found.append(path.stat().st_size)
        except FileNotFoundError:
            continue
    return found


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), sys.argv[2:], sys.stdout))
