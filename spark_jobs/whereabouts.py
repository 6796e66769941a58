"""Host, pid, start time and code of a process, as one word in Redis that monitors read. Pure."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from datetime import UTC, datetime

_HOST_LENGTH = 100
_STRANGE = re.compile(r"[^A-Za-z0-9_.-]")
_WORD = re.compile(r"([A-Za-z0-9_.-]{1,100})/(\d{1,10})/(\d{1,11})(?:/([0-9a-f]{1,16}))?", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Whereabouts:
    """Place, start time and code of one process."""

    # Name of its machine or container.
    host: str
    pid: int
    # Approximate start time: aware, UTC, to the second.
    since: datetime
    # ``Topology.code``; empty: unknown.
    code: str = ""

    def packed(self) -> str:
        """Encode this as one word."""
        code = f"/{self.code}" if self.code else ""
        return f"{packed_host(self.host)}/{self.pid}/{int(self.since.timestamp())}{code}"


def packed_host(host: str = "") -> str:
    """Return the host of ``packed``, by default this one."""
    return _STRANGE.sub("_", host or socket.gethostname())[:_HOST_LENGTH] or "_"


def of_this_process(code: str = "") -> Whereabouts:
    """Return the whereabouts of this process, which starts now and runs this code."""
    return Whereabouts(
        host=socket.gethostname(), pid=os.getpid(), since=datetime.now(UTC), code=code
    )


def unpacked(word: str) -> Whereabouts | None:
    """Decode a word from ``packed``; None for anything else, such as another version's word."""
    found = _WORD.fullmatch(word)
    if found is None:
        return None
    host, pid, since, code = found.groups()
    begun = datetime.fromtimestamp(int(since), UTC)
    return Whereabouts(host=host, pid=int(pid), since=begun, code=code or "")
