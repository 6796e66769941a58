"""Embedded servers that tests freeze and restart."""

from __future__ import annotations

import os
import signal

from tiercel.compose.server import EmbeddedServer


class Troubled(EmbeddedServer):
    """A server that a test can freeze, and restart with or without its data."""

    def pause(self) -> None:
        """Freeze the server with SIGSTOP, like a stalled machine."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Undo ``pause``."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGCONT)

    def restart(self, *, keep_data: bool) -> None:
        """Restart the server, cleanly with its data or abruptly without."""
        if keep_data:
            self.stop()
        else:
            self.kill()
            self._wipe()
        self.start()
