"""A private PostgreSQL on loopback, and its address as its clients expect it."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.support.troubled import Troubled
from tiercel.compose.errors import ServiceStartError
from tiercel.compose.guard import Launch
from tiercel.compose.install import PLAIN_ENVIRONMENT, find_postgres, require
from tiercel.compose.server import LOOPBACK, free_port

_USER = "tiercel"
_DATABASE = "postgres"
_INIT_TIMEOUT_S = 120
# Time for PostgreSQL's helpers to notice that they are orphans, and end.
_ORPHANS_S = 10.0
_POSTGRES_CONF = """
listen_addresses = '{host}'
port = {port}
unix_socket_directories = ''
password_encryption = scram-sha-256
max_connections = 100
"""
_PROTOCOL = 3 << 16
_ASKS_FOR_A_PASSWORD = b"R"


class EmbeddedPostgres(Troubled):
    """A server whose data survives ``stop`` and ``kill``, but not ``restart(keep_data=False)``.

    It never runs as root: if this process does, the server runs as the user ``postgres`` of
    Debian's package, or else as a user that owns nothing.
    """

    name = "PostgreSQL"

    def __init__(self) -> None:
        super().__init__()
        self._program = require("postgresql", find_postgres)
        self._port = 0

    @property
    def url(self) -> str:
        """Address with its password: never log it."""
        return f"postgresql://{_USER}:{self._password}@{LOOPBACK}:{self._port}/{_DATABASE}"

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def stop(self) -> None:
        # SIGTERM would make the server wait for its clients.
        if self.pid is not None:
            os.kill(self.pid, signal.SIGINT)
        super().stop()

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        super().kill()
        # Helpers have their own process groups, and prevent the start of a new server.
        until = time.monotonic() + _ORPHANS_S
        while self._folder is not None and _working_in(self._data):
            if time.monotonic() > until:
                raise ServiceStartError("helpers of the killed PostgreSQL do not end")
            time.sleep(0.01)

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the server and its helpers, which include one per client."""
        for pid in _working_in(self._data):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    @property
    def _ports(self) -> Collection[int]:
        return (self._port,)

    def _configure(self) -> None:
        self._port = free_port()
        if not self._data.exists():
            self._initialize()
        with (self._data / "postgresql.conf").open("a") as file:
            file.write(_POSTGRES_CONF.format(host=LOOPBACK, port=self._port))

    def _initialize(self) -> None:
        """Make the data folder, owned by the server's user."""
        secret = self.folder / "password"
        secret.write_text(self._password)
        if (owner := _other_user()) is not None:
            for path in (self.folder, secret):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        command = [
            *_as_other_user(),
            str(self._program.with_name("initdb")),
            f"--pgdata={self._data}",
            f"--username={_USER}",
            f"--pwfile={secret}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
            "--no-instructions",
        ]
        done = subprocess.run(
            command,
            env=PLAIN_ENVIRONMENT,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=_INIT_TIMEOUT_S,
        )
        secret.unlink()
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines() or ["it says nothing"]
            raise ServiceStartError(f"initdb: {said[-1]}")

    def _launch(self) -> Launch:
        return Launch(
            argv=[*_as_other_user(), str(self._program), "-D", str(self._data)],
            env=PLAIN_ENVIRONMENT,
            cwd=self.folder,
            output=self.log,
            scratch=self.folder,
        )

    def _answers(self) -> bool:
        parameters = f"user\0{_USER}\0database\0{_DATABASE}\0\0".encode()
        with socket.create_connection((LOOPBACK, self._port), timeout=1) as connection:
            connection.sendall(struct.pack(">II", 8 + len(parameters), _PROTOCOL) + parameters)
            return connection.recv(1) == _ASKS_FOR_A_PASSWORD

    def _wipe(self) -> None:
        shutil.rmtree(self._data, ignore_errors=True)
        if self._folder is not None:
            self._initialize()
            with (self._data / "postgresql.conf").open("a") as file:
                file.write(_POSTGRES_CONF.format(host=LOOPBACK, port=self._port))


def _other_user() -> pwd.struct_passwd | None:
    """Return the server's user if this process is root; otherwise None."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def _as_other_user() -> list[str]:
    owner = _other_user()
    if owner is None:
        return []
    return ["setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups"]


def _working_in(folder: Path) -> list[int]:
    """Return the processes with this working directory: the server and its helpers."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with suppress(OSError):
                if (process / "cwd").readlink() == folder:
                    found.append(int(process.name))
    return found


def libpq(url: str) -> dict[str, str]:
    """Return the environment that leads clients to this server."""
    parts = urlsplit(url)
    return {
        "PGHOST": parts.hostname or "",
        "PGPORT": str(parts.port),
        "PGUSER": unquote(parts.username or ""),
        "PGPASSWORD": unquote(parts.password or ""),
        "PGDATABASE": parts.path.strip("/"),
    }
