"""A private Redis or Valkey: everything in memory, loopback only."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

from tiercel.compose.guard import Launch
from tiercel.compose.install import PLAIN_ENVIRONMENT, find_redis, require
from tiercel.compose.ports import LOOPBACK, free_port
from tiercel.compose.server import EmbeddedServer

_CONFIG = """\
port {port}
bind {host}
requirepass {password}
dir {folder}
daemonize no
logfile ""
save ""
appendonly no
shutdown-on-sigterm save force
maxmemory-policy noeviction
"""


class EmbeddedRedis(EmbeddedServer):
    """It forgets everything when it is killed, and keeps it over ``stop`` and ``start``."""

    name = "Redis"

    def __init__(self) -> None:
        super().__init__()
        self._program = require("redis-server", find_redis)
        self._password = secrets.token_urlsafe(24)
        self._port = 0

    @property
    def url(self) -> str:
        """Address with its password: never log it."""
        return f"redis://:{self._password}@{LOOPBACK}:{self._port}/0"

    @property
    def _dump(self) -> Path:
        return self.folder / "dump.rdb"

    def wait_until_ready(self) -> None:
        super().wait_until_ready()
        # Loaded by now. Left in place, it would bring old data back after a later crash.
        self._dump.unlink(missing_ok=True)

    def _configure(self) -> None:
        self._port = free_port()
        text = _CONFIG.format(
            port=self._port, host=LOOPBACK, password=self._password, folder=self.folder
        )
        (self.folder / "redis.conf").write_text(text)

    def _launch(self) -> Launch:
        return Launch(
            argv=[str(self._program), str(self.folder / "redis.conf")],
            env=PLAIN_ENVIRONMENT,
            cwd=self.folder,
            output=self.log,
            scratch=self.folder,
        )

    def _answers(self) -> bool:
        return answers_as_redis(self._port, self._password)

    def _wipe(self) -> None:
        self._dump.unlink(missing_ok=True)


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
