"""Free ports of the loopback interface."""

from __future__ import annotations

import random
import socket

LOOPBACK = "127.0.0.1"

# Below the range from which Linux takes the ports of outgoing connections: while a server is being restarted, none of its
# clients' connection attempts can take its port away.
_CANDIDATES = range(15_000, 32_000)


def free_port() -> int:
    """A loopback TCP port that nobody listens on. Somebody may take it before it is used: be ready to draw again."""
    while True:
        port = random.choice(_CANDIDATES)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            return port
