"""How much memory the processes of a stack take, over time."""

from __future__ import annotations

import time
from pathlib import Path

from tests.children import python_workers
from tests.faults.stack import Stack

_WARM_S = 60.0


class Memory:
    """Resident memory by role; a process that was started again counts from its own first minute on."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._samples: dict[tuple[str, int], list[tuple[float, int]]] = {}

    def look(self) -> None:
        now = time.monotonic()
        stack = self._stack
        found = {("RabbitMQ", stack.rabbitmq.pid), ("Redis", stack.redis.pid)}
        found |= {(role, stack.child(name).pid) for role, name in (("driver", "driver"), ("spout 0", "0"), ("spout 1", "1"))}
        driver = stack.child("driver").pid
        found |= {("Python worker", pid) for pid in (python_workers(driver) if driver else [])}
        for role, pid in found:
            if pid is not None and (kib := _resident_kib(pid)):
                self._samples.setdefault((role, pid), []).append((now, kib))

    def growth(self) -> float:
        """The largest growth of a process, from its first minute to its last look; 1.0 if none lived that long."""
        return max((last / first for _, first, last in self._grown()), default=1.0)

    def lines(self) -> list[str]:
        return [
            f"  {role}: {first / 1024:.0f} MiB after a minute, {last / 1024:.0f} MiB at the end"
            for role, first, last in self._grown()
        ]

    def _grown(self) -> list[tuple[str, int, int]]:
        grown = []
        for (role, _), samples in self._samples.items():
            warm = [kib for at, kib in samples if at >= samples[0][0] + _WARM_S]
            if len(warm) > 1:
                grown.append((role, warm[0], warm[-1]))
        return grown


def _resident_kib(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")), 0)
