"""Free ports of the loopback interface, and the users whose processes listen on them."""

from __future__ import annotations

import random
import socket
from pathlib import Path

from tiercel.compose.errors import ServiceStartError

LOOPBACK = "127.0.0.1"

# Below the range from which Linux takes the ports of outgoing connections: while a server is being
# restarted, none of its clients' connection attempts can take its port away.
_CANDIDATES = range(15_000, 32_000)
# For what is told its port long before it listens, and cannot draw again: a range of their own.
OF_CONTAINERS = range(10_000, 15_000)

_drawn: set[int] = set()


# What takes connections to the loopback address: itself, any address, and both for IPv6.
_TABLES = {
    "/proc/net/tcp": {"0100007F", "0" * 8},
    "/proc/net/tcp6": {"0" * 32, "0000000000000000FFFF00000100007F"},
}
_LISTENS = "0A"


def free_port(candidates: range | None = None) -> int:
    """Return a loopback TCP port that no process listens on, and another one at each call.

    Another process may take it before it is used: be ready to draw again. Raises ServiceStartError
    if all are taken.
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


def listeners(port: int) -> set[int]:
    """Return the ids of the users whose processes take connections to this loopback port.

    The kernel's tables have the effective user that made the socket. Raises OSError if they cannot
    be read.
    """
    found = set()
    for table, addresses in _TABLES.items():
        path = Path(table)
        # Where IPv6 is switched off there is no table of it.
        lines = path.read_text().splitlines()[1:] if "6" not in path.name or path.exists() else []
        for line in lines:
            _, local, _, state, _, _, _, user, *_ = line.split()
            address, _, number = local.partition(":")
            if state == _LISTENS and int(number, 16) == port and address in addresses:
                found.add(int(user))
    return found
