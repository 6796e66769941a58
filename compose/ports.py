"""Free ports of the loopback interface."""

from __future__ import annotations

import random
import socket

LOOPBACK = "127.0.0.1"

# Below the range from which Linux takes the ports of outgoing connections: while a server is being
# restarted, none of its clients' connection attempts can take its port away.
_CANDIDATES = range(15_000, 32_000)
# For what is told its port long before it listens, and cannot draw again: a range of their own.
OF_CONTAINERS = range(10_000, 15_000)

_drawn: set[int] = set()


def free_port(candidates: range | None = None) -> int:
    """Return a loopback TCP port that no process listens on, and another one at each call.

    Another process may take it before it is used: be ready to draw again.
    """
    while True:
        port = random.choice(candidates or _CANDIDATES)
        if port in _drawn:
            continue
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            _drawn.add(port)
            return port
