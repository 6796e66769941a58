"""Bounds the memory of processes, as a container does: a process above the bound is killed."""

from __future__ import annotations

import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol, Self

_LOOK_S = 0.1
_GROUPS = Path("/sys/fs/cgroup")


class _Judge(Protocol):
    def admit(self, pids: Iterable[int]) -> None: ...
    def kills(self) -> int: ...
    def close(self) -> None: ...


class MemoryBound:
    """While entered, limits the processes that ``find`` returns, now or later, to ``limit`` bytes
    together.

    The bound is a control group if this user may make one, and the kernel kills; otherwise this
    process kills, as oomd does.
    """

    def __init__(self, find: Callable[[], Iterable[int]], limit: int) -> None:
        self._find = find
        self._limit = limit
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def kills(self) -> int:
        """Count the processes killed for their memory."""
        return self._judge.kills()

    def __enter__(self) -> Self:
        self._judge: _Judge
        try:
            self._judge = _Group(self._limit)
        except OSError:
            self._judge = _Oomd(self._limit)
        self._judge.admit(self._find())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._judge.close()

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_S):
            self._judge.admit(self._find())


class _Group:
    """A control group, of either version."""

    def __init__(self, limit: int) -> None:
        """Raise OSError if this user may not make a control group."""
        self._v1 = (_GROUPS / "memory").is_dir()
        self._root = _GROUPS / "memory" if self._v1 else _GROUPS
        self._group = self._root / f"tiercel-test-{secrets.token_hex(4)}"
        self._group.mkdir()
        try:
            # Without swap, if the kernel counts it; otherwise it only takes longer.
            (self._group / ("memory.limit_in_bytes" if self._v1 else "memory.max")).write_text(
                str(limit)
            )
            with suppress(OSError):
                (
                    self._group / ("memory.memsw.limit_in_bytes" if self._v1 else "memory.swap.max")
                ).write_text(str(limit) if self._v1 else "0")
        except OSError:
            self._group.rmdir()
            raise

    def admit(self, pids: Iterable[int]) -> None:
        self._move(pids, self._group)

    def kills(self) -> int:
        counts = (self._group / ("memory.oom_control" if self._v1 else "memory.events")).read_text()
        return next(
            int(line.split()[1]) for line in counts.splitlines() if line.startswith("oom_kill ")
        )

    def close(self) -> None:
        """Move its processes back to our group."""
        ours = next(
            path.lstrip("/")
            for _, controllers, path in (
                line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()
            )
            if controllers == ("memory" if self._v1 else "")
        )
        # Repeated, because a process may fork while it is moved.
        while pids := [int(pid) for pid in (self._group / "cgroup.procs").read_text().split()]:
            self._move(pids, self._root / ours)
        self._group.rmdir()

    def _move(self, pids: Iterable[int], group: Path) -> None:
        for pid in pids:
            # The process may have ended.
            with suppress(ProcessLookupError):
                (group / "cgroup.procs").write_text(str(pid))


class _Oomd:
    """For users who may not make control groups."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._killed: set[int] = set()

    def admit(self, pids: Iterable[int]) -> None:
        held = {pid: resident_bytes(pid) for pid in pids}
        if sum(held.values()) > self._limit:
            largest = max(held, key=lambda pid: held[pid])
            with suppress(ProcessLookupError):
                os.kill(largest, signal.SIGKILL)
                self._killed.add(largest)

    def kills(self) -> int:
        return len(self._killed)

    def close(self) -> None:
        pass


def resident_bytes(pid: int) -> int:
    """Return a process's resident memory; 0 if the process has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return 1024 * next(
        (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")), 0
    )
