"""Records what operators do.

Each command and each button that changes something, or shows bodies.
"""

from __future__ import annotations

import logging
import os
import pwd
import socket

log = logging.getLogger(__name__)


def log_action(action: str, target: str, outcome: str, origin: str) -> None:
    """Log ``action`` on a topology or queue, what came of it, and where it came from."""
    log.info(
        "%s %s: %s; by %s",
        action,
        target,
        outcome,
        origin,
        extra={
            "event": "action",
            "action": action,
            "target": target,
            "outcome": outcome,
            "origin": origin,
        },
    )


def this_user() -> str:
    """Return the user and machine of this process, as the origin of a command."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user has no name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
