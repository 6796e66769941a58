"""A private Redis or Valkey: loopback only, and purely in memory unless its data are kept."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Collection
from pathlib import Path

from tiercel.compose.guard import Launch
from tiercel.compose.install import PLAIN_ENVIRONMENT, find_redis, require
from tiercel.compose.server import LOOPBACK, EmbeddedServer, free_port

_CONFIG = """\
port {port}
bind {host}
requirepass {password}
dir {folder}
daemonize no
logfile ""
save ""
appendonly {logged}
shutdown-on-sigterm save force
maxmemory-policy noeviction
"""


class EmbeddedRedis(EmbeddedServer):
    """A server that loses its data when it is killed, and keeps them over ``stop`` and ``start``.

    With kept data, a kill loses only the last second.
    """

    name = "Redis"

    def __init__(self, kept: Path | None = None) -> None:
        super().__init__(kept)
        self._program = require("redis-server", find_redis)
        self._port = 0

    @property
    def url(self) -> str:
        """Address with its password: never log it."""
        return f"redis://:{self._password}@{LOOPBACK}:{self._port}/0"

    @property
    def _dump(self) -> Path:
        return self.folder / "dump.rdb"

    def wait_until_ready(self, stopped: threading.Event | None = None) -> None:
        super().wait_until_ready(stopped)
        # The dump is loaded by now. Left in place, it would bring old data back after a later
        # crash.
        self._dump.unlink(missing_ok=True)

    @property
    def _ports(self) -> Collection[int]:
        return (self._port,)

    def _configure(self) -> None:
        self._port = free_port()
        text = _CONFIG.format(
            port=self._port,
            host=LOOPBACK,
            password=self._password,
            folder=self.folder,
            logged="no" if self._kept is None else "yes",
        )
        (self.folder / "redis.conf").write_text(text)

    def _launch(self) -> Launch:
        return Launch(
            argv=[str(self._program), str(self.folder / "redis.conf")],
            env=PLAIN_ENVIRONMENT,
            cwd=self.folder,
            output=self.log,
            scratch=self.scratch,
        )

    def _answers(self) -> bool:
        return answers_as_redis(self._port, self._password)

    def _wipe(self) -> None:
        self._dump.unlink(missing_ok=True)
        # The append-only log: of version 7 and later, and of earlier versions.
        shutil.rmtree(self.folder / "appendonlydir", ignore_errors=True)
        (self.folder / "appendonly.aof").unlink(missing_ok=True)


def answers_as_redis(port: int, password: str) -> bool:
    """Return True if a server serves clients on this loopback port.

    Raises OSError if no process listens.
    """
    with socket.create_connection((LOOPBACK, port), timeout=1) as connection:
        connection.sendall(f"AUTH {password}\r\nPING\r\nQUIT\r\n".encode())
        return b"+PONG" in _read_all(connection)


def _read_all(connection: socket.socket) -> bytes:
    received = b""
    while part := connection.recv(1024):
        received += part
    return received
