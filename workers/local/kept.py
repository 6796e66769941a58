"""The folder of ``--keep``: for the data of private servers, and for one run at a time."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tiercel.workers.errors import ConfigError

# In the folder; by it a later run knows that the rest is ours too. It holds the run's pid.
_MARK = "tiercel-run.pid"
# RabbitMQ's start script takes others apart, and Redis' configuration has its own quotes.
_PLAIN = re.compile(r"[\w./+@:=~-]+", re.ASCII)


@contextmanager
def kept_folder(folder: Path) -> Iterator[Path]:
    """Yield the folder, absolute, made if there is none, which no other run uses during the block.

    Raises ConfigError if it is none for this, or if another run has it.
    """
    path = folder.expanduser().absolute()
    if not _PLAIN.fullmatch(str(path)):
        raise ConfigError(
            f"--keep {str(path)!r}: name a folder whose path has only letters, digits and "
            ". _ + @ : = ~ - in it, and no blanks"
        )
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        mark = _mark(path)
    except OSError as error:
        raise ConfigError(f"--keep {path}: {error.strerror}") from error
    try:
        _lock(path, mark)
        yield path
    finally:
        os.close(mark)


def _mark(path: Path) -> int:
    if path.stat().st_uid != os.getuid():
        raise ConfigError(f"--keep {path}: the folder is another user's")
    if any(path.iterdir()) and not (path / _MARK).is_file():
        raise ConfigError(
            f"--keep {path}: other things lie there: name a new or an empty folder, or one that an "
            "earlier run has kept"
        )
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path / _MARK, flags, 0o600)


def _lock(path: Path, mark: int) -> None:
    """Held until the file is closed, or this process ends."""
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(mark, 20, 0).decode(errors="replace").strip()
        raise ConfigError(f"--keep {path}: process {pid} uses it: end that run first") from None
    os.ftruncate(mark, 0)
    os.pwrite(mark, f"{os.getpid()}\n".encode(), 0)
