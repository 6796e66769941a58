"""Lets ``tiercel publish``, ``depths`` and ``dead-letters`` find the private servers that ``tiercel
run`` has started.

The addresses lie, passwords included, in a file that only the user can read, for as long as the
servers run. The file is in a folder that only the user can enter, for without XDG_RUNTIME_DIR it is
in /tmp, where others could take its name first, or lay a link there to a file that they chose.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tiercel.workers.config import Settings, runtime_folder
from tiercel.workers.errors import ConfigError

_NAME = "servers.json"
_LONGEST = 64 * 1024


@contextmanager
def announced(settings: Settings) -> Iterator[None]:
    """Make the addresses known to this user's other commands while the block runs.

    The latest announcement wins.

    Raises ConfigError if the folder cannot be this user's alone.
    """
    content = json.dumps(
        {
            "pid": os.getpid(),
            "amqp": settings.amqp,
            "redis": settings.redis,
            "management": settings.management,
        }
    )
    with _folder(make=True) as folder:
        _write(folder, content)
        try:
            yield
        finally:
            with suppress(OSError, ValueError):
                if _read(folder)["pid"] == os.getpid():
                    os.unlink(_NAME, dir_fd=folder)


def with_announced(settings: Settings) -> Settings:
    """Return the settings, with the private servers' addresses if none are given and servers run.

    A note in a folder that is not this user's alone is passed over.
    """
    if settings.amqp or settings.redis:
        return settings
    try:
        with _folder(make=False) as folder:
            found = _read(folder)
        os.kill(found["pid"], 0)
        return settings.with_services(found["amqp"], found["redis"], found["management"])
    except (ConfigError, OSError, ValueError, KeyError, TypeError):
        return settings


@contextmanager
def _folder(*, make: bool) -> Iterator[int]:
    """Open the folder of this user's notes.

    What is done through it stays in it, whatever happens to its name meanwhile.
    """
    path = runtime_folder() / f"tiercel-{os.getuid()}"
    try:
        if make:
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _unusable(path) from error
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise _unusable(path)
        yield descriptor
    finally:
        os.close(descriptor)


def _unusable(path: Path) -> ConfigError:
    return ConfigError(
        f"{path} must be a folder that belongs to this user, with mode 0700, for passwords are "
        "noted there: have it removed, or set XDG_RUNTIME_DIR to a folder of yours"
    )


def _write(folder: int, content: str) -> None:
    temporary = f"{_NAME}.{os.getpid()}"
    # Left by a process that had our number and was killed while it wrote.
    with suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=folder), "w") as file:
        file.write(content)
    os.replace(temporary, _NAME, src_dir_fd=folder, dst_dir_fd=folder)


def _read(folder: int) -> dict[str, Any]:
    """Return the note. Raises OSError, ValueError, also if it is no plain file of this user's."""
    # Without O_NONBLOCK a pipe of this name would be waited for.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(_NAME, flags, dir_fd=folder)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise ValueError(f"{_NAME} is no file of this user's alone")
        note = json.loads(file.read(_LONGEST))
    if not isinstance(note, dict):
        raise TypeError(f"{_NAME} holds no addresses")
    return note
