"""The answer to Ctrl-C: a line, at once, whatever this process is about."""

from __future__ import annotations

import logging
import threading

log = logging.getLogger(__name__)


def say_when(stopped: threading.Event) -> None:
    """Say that the end has begun as soon as ``stopped`` is set, in a thread."""

    def wait() -> None:
        stopped.wait()
        log.info(
            "stopping: what is in flight is given back; Ctrl-C again ends it at once",
            extra={"event": "stopping"},
        )

    threading.Thread(target=wait, name="stopping", daemon=True).start()
