"""Base class of embedded servers: private folder, ports, guarded process, readiness."""

from __future__ import annotations

import os
import random
import secrets
import shutil
import socket
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Self

from tiercel.compose.errors import PortTakenError, ServiceStartError, ServiceStoppedError
from tiercel.compose.guard import GuardedProcess, Launch

LOOPBACK = "127.0.0.1"
# Below the range of Linux for outgoing connections: while a server restarts, no client's connection
# attempt can take its port.
_CANDIDATES = range(15_000, 32_000)
# Listening addresses that accept connections to loopback: loopback and any, in IPv4 and IPv6.
_TABLES = {
    "/proc/net/tcp": {"0100007F", "0" * 8},
    "/proc/net/tcp6": {"0" * 32, "0000000000000000FFFF00000100007F"},
}
_LISTENS = "0A"
_drawn: set[int] = set()
_ATTEMPTS = 3
_READY_TIMEOUT_S = 60.0
_PROBE_INTERVAL_S = 0.02
_STOP_GRACE_S = 60.0
_LOG_LINES = 12
# The file with the password of kept data, written once the data is complete.
_WHOLE = "password"
_PORT_TAKEN = ("eaddrinuse", "address already in use")


class EmbeddedServer(ABC):
    """A private server process that ends with this process.

    It listens on loopback only, with a random password, and has its data in a temporary folder, or
    in one that is kept.

    Address and password are fixed at the first start and survive restarts, so that clients can
    reconnect. Not thread-safe: one thread starts and stops it.

    Another user could take a port before the server does, and would then receive the password. So
    nothing is sent, and no client gets the address, until the server's own user listens on each
    port.
    """

    name: ClassVar[str]

    def __init__(self, kept: Path | None = None) -> None:
        """``kept`` is a folder that keeps the data, and may have data of an earlier server.

        The server then has the earlier password, but new ports.
        """
        self._kept = kept
        self._password = secrets.token_urlsafe(24)
        self._folder: Path | None = None
        self._process: GuardedProcess | None = None
        self._address_known = False

    @abstractmethod
    def _configure(self) -> None:
        """Draw ports and write the configuration into ``folder``.

        Called again if a port turns out to be taken.
        """

    @property
    @abstractmethod
    def _ports(self) -> Collection[int]:
        """The loopback ports that the server listens on once it is up."""

    @abstractmethod
    def _launch(self) -> Launch:
        """Return the command that runs the server in the foreground."""

    @abstractmethod
    def _answers(self) -> bool:
        """Return True if the server serves clients. Raises OSError if it is unreachable."""

    @abstractmethod
    def _wipe(self) -> None:
        """Remove the data; keep the configuration."""

    @property
    def folder(self) -> Path:
        """The private folder, made by the first start."""
        if self._folder is None:
            raise ServiceStartError(f"{self.name} has not been started")
        return self._folder

    @property
    def scratch(self) -> Path | None:
        """The folder if it is removed when this process ends; None if it is kept."""
        return self.folder if self._kept is None else None

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def pid(self) -> int | None:
        """The pid of the running server; None if it does not run."""
        return self._process.pid if self.running and self._process is not None else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the server unless it runs, with its earlier data; wait until it serves clients."""
        self.launch()
        self.wait_until_ready()
        return self

    def launch(self) -> None:
        """Start the server without waiting, so that several servers can come up in parallel."""
        if self.running:
            return
        self.kill()
        if self._folder is None:
            self._make_folder()
            self._configure()
        self._process = GuardedProcess(self._launch())

    def wait_until_ready(self, stopped: threading.Event | None = None) -> None:
        """Wait until the server serves clients.

        Raises ServiceStartError with the last log lines, ServiceStoppedError once ``stopped`` is
        set.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._wait_once(stopped)
            except ServiceStartError as error:
                self.kill()
                taken = isinstance(error, PortTakenError)
                if not taken or self._address_known or attempt == _ATTEMPTS:
                    raise
                self._draw_again()
            else:
                self._address_known = True
                self._note_password()
                return

    def _draw_again(self) -> None:
        """Draw other ports, because one is taken, and start; no client knows the address yet."""
        if self._kept_password() is None:
            self._wipe()
        self.log.unlink(missing_ok=True)
        self._configure()
        self.launch()

    def _make_folder(self) -> None:
        if self._kept is None:
            self._folder = Path(tempfile.mkdtemp(prefix=f"tiercel-{self.name.lower()}-"))
            return
        self._kept.mkdir(mode=0o700, exist_ok=True)
        self._folder = self._kept
        self.log.unlink(missing_ok=True)
        password = self._kept_password()
        if password is None:
            # An interrupted first start may have left incomplete files.
            self._wipe()
        else:
            self._password = password

    def _kept_password(self) -> str | None:
        """Return the password of complete data; None if there is no such data."""
        if self._kept is None:
            return None
        try:
            return (self._kept / _WHOLE).read_text()
        except FileNotFoundError:
            return None

    def _note_password(self) -> None:
        if self._kept is None or self._kept_password() is not None:
            return
        new = self._kept / f"{_WHOLE}.new"
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(self._password)
        new.replace(self._kept / _WHOLE)

    def stop(self) -> None:
        """Shut down cleanly; the data stays for the next ``start``."""
        if self._process is not None:
            self._process.stop(_STOP_GRACE_S)

    def kill(self) -> None:
        """Kill the server with SIGKILL, like a crash; its data stays as it is."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """Kill the server and remove its folder. Idempotent.

        A server with kept data is shut down cleanly instead, if it has ever served clients.
        """
        if self._kept is not None and self._address_known:
            self.stop()
        self.kill()
        if self._folder is not None and self._kept is None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait_once(self, stopped: threading.Event | None) -> None:
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while time.monotonic() < deadline:
            if stopped is not None and stopped.is_set():
                raise ServiceStoppedError(f"{self.name} was stopped while it started")
            if not self.running:
                last = self._log_tail()
                taken = any(sign in last.lower() for sign in _PORT_TAKEN)
                raise (PortTakenError if taken else ServiceStartError)(
                    f"{self.name} ended while it started; its last lines:\n{last}"
                )
            if self._listens():
                with suppress(OSError):
                    if self._answers():
                        return
            time.sleep(_PROBE_INTERVAL_S)
        raise ServiceStartError(
            f"{self.name} was not ready after {_READY_TIMEOUT_S:.0f} s; its last "
            f"lines:\n{self._log_tail()}"
        )

    def _listens(self) -> bool:
        """Return True if the server's own user, and no other, listens on each of its ports.

        Check before each connection that sends something, not after: a connection that another
        process accepted may outlive its listener. Raises PortTakenError if another user listens.
        """
        # The kernel's tables of all sockets take milliseconds to read; a connection takes none.
        if not all(map(_accepts, self._ports)):
            return False
        process = self._process
        assert process is not None  # noqa: S101 - for the type checker: it has been launched
        try:
            owner = Path(f"/proc/{process.pid}").stat().st_uid
        except FileNotFoundError:
            return False  # it has ended
        try:
            found = {port: listeners(port) for port in self._ports}
        except OSError as error:
            raise ServiceStartError(
                f"cannot see which user listens on the ports of {self.name}, so no password is "
                f"sent there: {error}"
            ) from error
        for port, users in found.items():
            if others := users - {owner}:
                raise PortTakenError(
                    f"another user (id {min(others)}) listens on {LOOPBACK}:{port}, the port of "
                    f"this {self.name}; no password was sent there"
                )
        return all(found.values())

    def _log_tail(self) -> str:
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return "  (no log)"
        return "\n".join(
            f"  {line.rstrip()}" for line in [line for line in lines if line.strip()][-_LOG_LINES:]
        )


def free_port(candidates: range | None = None) -> int:
    """Return a free TCP port of loopback, a different one at each call.

    Another process may take the port first: be ready to draw again. Raises ServiceStartError if
    none is free.
    """
    among = candidates or _CANDIDATES
    for port in random.sample(among, len(among)):
        if port in _drawn:
            continue
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            _drawn.add(port)
            return port
    raise ServiceStartError(
        f"no port from {among.start} to {among.stop - 1} of {LOOPBACK} is free: end the programs "
        "that hold them, which `ss --listening --tcp --processes` names"
    )


def _accepts(port: int) -> bool:
    """Return True if any process accepts connections to this loopback port. Sends nothing."""
    try:
        socket.create_connection((LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True


def listeners(port: int) -> set[int]:
    """Return the ids of users whose processes accept connections to this loopback port.

    The kernel's tables have the effective user that made each socket. Raises OSError if they cannot
    be read.
    """
    found = set()
    for table, addresses in _TABLES.items():
        path = Path(table)
        # The IPv6 table is missing if IPv6 is off.
        lines = path.read_text().splitlines()[1:] if "6" not in path.name or path.exists() else []
        for line in lines:
            _, local, _, state, _, _, _, user, *_ = line.split()
            address, _, number = local.partition(":")
            if state == _LISTENS and int(number, 16) == port and address in addresses:
                found.add(int(user))
    return found
