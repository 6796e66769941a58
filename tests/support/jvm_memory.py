"""Memory needs of a JVM.

The heap is as large as its garbage has ever been, so the process's memory says little.

The JVM is queried by the protocol of ``jcmd``, which a JRE lacks.
"""

from __future__ import annotations

import os
import re
import signal
import socket
from contextlib import suppress
from pathlib import Path

from tests.support.waiting import wait_until

_WAIT_S = 10.0


def needed_bytes(pid: int) -> int:
    """Return the live heap after a full collection, plus the process's memory outside the heap; 0
    if the process has ended.
    """
    with suppress(OSError, AssertionError):
        _ask(pid, "GC.run")
        heap = _ask(pid, "GC.heap_info")
        generations = re.findall(
            r"generation\s+total \d+K, used (\d+)K \[0x(\w+), 0x\w+, 0x(\w+)\)", heap
        )
        if not generations:
            raise ValueError(f"not the heap of a serial collector: {heap}")
        live = sum(1024 * int(used) for used, _, _ in generations)
        places = [(int(begins, 16), int(ends, 16)) for _, begins, ends in generations]
        return live + _resident_outside(pid, places)
    return 0


def _resident_outside(pid: int, places: list[tuple[int, int]]) -> int:
    """Return a process's resident memory outside these addresses."""
    size = 0
    counts = True
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-[0-9a-f]+ ", line):
            address = int(found[1], 16)
            counts = not any(begins <= address < ends for begins, ends in places)
        elif counts and line.startswith("Rss:"):
            size += 1024 * int(line.split()[1])
    return size


def _ask(pid: int, command: str) -> str:
    """Raise OSError if the JVM has ended, and AssertionError if it does not answer."""
    place = Path(f"/tmp/.java_pid{pid}")
    if not place.exists():
        # If this file exists, SIGQUIT makes the JVM listen.
        wanted = Path(f"/proc/{pid}/cwd/.attach_pid{pid}")
        wanted.touch()
        try:
            os.kill(pid, signal.SIGQUIT)
            wait_until(place.exists, _WAIT_S, "the JVM to listen")
        finally:
            wanted.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(_WAIT_S)
        line.connect(str(place))
        line.sendall(b"1\0jcmd\0%s\0\0\0" % command.encode())
        answer = b"".join(iter(lambda: line.recv(65536), b""))
    code, _, said = answer.decode().partition("\n")
    if code != "0":
        raise ValueError(f"{command}: {said}")
    return said
