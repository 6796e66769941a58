"""Lets ``tiercel publish``, ``depths`` and ``dead-letters`` find the private servers that ``tiercel run`` has started.

The addresses lie, passwords included, in a file that only the user can read, for as long as the servers run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from workers.config import Settings, runtime_folder

_NAME = "tiercel-{user}-servers.json"


@contextmanager
def announced(settings: Settings) -> Iterator[None]:
    """Make the addresses known to this user's other commands while the block runs; the latest announcement wins."""
    path = _path()
    content = json.dumps(
        {"pid": os.getpid(), "amqp": settings.amqp, "redis": settings.redis, "management": settings.management}
    )
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(content)
    temporary.replace(path)
    try:
        yield
    finally:
        with suppress(OSError, ValueError):
            if json.loads(path.read_text())["pid"] == os.getpid():
                path.unlink()


def with_announced(settings: Settings) -> Settings:
    """The settings, with the private servers' addresses if none are given and servers run."""
    if settings.amqp or settings.redis:
        return settings
    try:
        path = _path()
        if path.stat().st_uid != os.getuid():
            return settings
        found = json.loads(path.read_text())
        os.kill(found["pid"], 0)
    except (OSError, ValueError, KeyError):
        return settings
    return settings.with_services(found["amqp"], found["redis"], found["management"])


def _path() -> Path:
    return runtime_folder() / _NAME.format(user=os.getuid())
