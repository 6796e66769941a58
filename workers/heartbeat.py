"""Tells the watchers of this process that its loop still turns.

Such as a container's health check.
"""

from __future__ import annotations

import logging
from pathlib import Path

log = logging.getLogger(__name__)


class Heartbeat:
    """A file that is touched. Its age is what a watcher looks at."""

    def __init__(self, path: Path | None = None) -> None:
        """``path`` of None: nothing watches."""
        self._path = path

    def beat(self) -> None:
        """Call it about once a second.

        What cannot be written is said once, and the work goes on.
        """
        if self._path is None:
            return
        try:
            self._path.touch()
        except OSError as error:
            self._path = None
            log.warning("no heartbeat: %s", error, extra={"event": "heartbeat_failed"})
