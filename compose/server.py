"""Base of all embedded servers: a private folder, ports, a guarded process, readiness, restart."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Self

from tiercel.compose.errors import ServiceStartError
from tiercel.compose.guard import GuardedProcess, Launch

_ATTEMPTS = 3
_READY_TIMEOUT_S = 60.0
_PROBE_INTERVAL_S = 0.02
_STOP_GRACE_S = 60.0
_LOG_LINES = 12
_PORT_TAKEN = ("eaddrinuse", "address already in use")


class EmbeddedServer(ABC):
    """A private server process, gone with this process.

    Loopback only, random password, data in a temporary folder.

    Address and password are fixed when the server is first started and survive every restart, so
    that clients can reconnect. Not thread-safe: one thread starts and stops it.
    """

    name: ClassVar[str]

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._process: GuardedProcess | None = None
        self._address_known = False

    @abstractmethod
    def _configure(self) -> None:
        """Draw ports and write the configuration into ``folder``.

        Called again if a port turned out to be taken.
        """

    @abstractmethod
    def _launch(self) -> Launch:
        """The command that runs the server in the foreground."""

    @abstractmethod
    def _answers(self) -> bool:
        """Return True if the server serves clients now. Raises OSError if it cannot be reached."""

    @abstractmethod
    def _wipe(self) -> None:
        """Remove the data, keep the configuration."""

    @property
    def folder(self) -> Path:
        """The private folder; made by the first start."""
        if self._folder is None:
            raise ServiceStartError(f"{self.name} has not been started")
        return self._folder

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def pid(self) -> int | None:
        """The pid of the running server, or None."""
        return self._process.pid if self.running and self._process is not None else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start it if it does not run, and wait until it serves clients.

        Keeps the data of an earlier run.
        """
        self.launch()
        self.wait_until_ready()
        return self

    def launch(self) -> None:
        """Start it without waiting, so that several servers can come up side by side."""
        if self.running:
            return
        self.kill()
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix=f"tiercel-{self.name.lower()}-"))
            self._configure()
        self._process = GuardedProcess(self._launch())

    def wait_until_ready(self) -> None:
        """Wait until it serves clients; raises ServiceStartError with the last log lines."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._wait_once()
            except ServiceStartError:
                taken = any(sign in self._log_tail().lower() for sign in _PORT_TAKEN)
                self.kill()
                if not taken or self._address_known or attempt == _ATTEMPTS:
                    raise
                self._draw_again()
            else:
                self._address_known = True
                return

    def _draw_again(self) -> None:
        """Another process took a port between the drawing and the start.

        No client knows our address yet, so take another.
        """
        self._wipe()
        self.log.unlink(missing_ok=True)
        self._configure()
        self.launch()

    def stop(self) -> None:
        """End it in an orderly way and keep its data for the next ``start``."""
        if self._process is not None:
            self._process.stop(_STOP_GRACE_S)

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would; its data stay as they are."""
        if self._process is not None:
            self._process.kill()

    def pause(self) -> None:
        """Stop it from answering without ending it (SIGSTOP), as a stalled machine would."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Undo ``pause``."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGCONT)

    def restart(self, *, keep_data: bool) -> None:
        """End it and start it again, in an orderly way with its data, or abruptly and empty."""
        if keep_data:
            self.stop()
        else:
            self.kill()
            self._wipe()
        self.start()

    def close(self) -> None:
        """Kill it and remove its folder. Idempotent."""
        self.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait_once(self) -> None:
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while time.monotonic() < deadline:
            if not self.running:
                raise ServiceStartError(
                    f"{self.name} ended while it started; its last lines:\n{self._log_tail()}"
                )
            try:
                if self._answers():
                    return
            except OSError:
                pass
            time.sleep(_PROBE_INTERVAL_S)
        raise ServiceStartError(
            f"{self.name} was not ready after {_READY_TIMEOUT_S:.0f} s; its last "
            f"lines:\n{self._log_tail()}"
        )

    def _log_tail(self) -> str:
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return "  (no log)"
        return "\n".join(
            f"  {line.rstrip()}" for line in [line for line in lines if line.strip()][-_LOG_LINES:]
        )
