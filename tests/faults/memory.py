"""Memory of the processes of a stack, over time."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from statistics import median

from tests.faults.stack import Stack
from tests.support.children import family, python_workers, spark_jvms
from tests.support.entered import Looking
from tests.support.jvm_memory import needed_bytes
from tests.support.memory_bound import resident_bytes

_SERVERS = ("RabbitMQ", "Redis")
_JVM = "Spark's JVM, after a collection"
_WORKER = "Spark: Python worker"
# The processes of a topology.
ROLES = frozenset({*_SERVERS, "driver", _JVM, _WORKER, "spout worker 0", "spout worker 1"})
_LOOK_S = 2.0
# The JVM is asked less often, because it collects its garbage each time.
_COLLECT_S = 10.0
_MINUTE_S = 60.0
# Memory that an allocator may keep or return. It is more than 10 % of a Redis of 12 MiB.
_NOISE_BYTES = 8 * 2**20


@dataclass(frozen=True, kw_only=True)
class Grown:
    """One process that lived long enough: the median of its second minute, and of its last."""

    role: str
    lived_s: float
    first: int
    last: int

    def within(self, share: float) -> bool:
        """Return True if it takes at most ``share`` more than at first."""
        return self.last <= self.first * (1 + share) + _NOISE_BYTES

    def __str__(self) -> str:
        first = self.first / 2**20
        last = self.last / 2**20
        return (
            f"| {self.role} | {self.lived_s / 60:.1f} min | {first:.0f} MiB | {last:.0f} "
            f"MiB | {last / first - 1:+.0%} |"
        )


class Memory(Looking):
    """Samples memory while entered; a restarted process counts as another one."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(_LOOK_S)
        self._stack = stack
        self._samples: defaultdict[tuple[str, int], list[tuple[float, int]]] = defaultdict(list)
        self._collect_at = 0.0

    def not_shown(self) -> frozenset[str]:
        """Return the roles in which no process lived long enough."""
        return ROLES.difference(grown.role for grown in self.grown())

    def grown(self) -> list[Grown]:
        """Return for each role the process that lived longest, if it had a first, a second and a
        last minute.
        """
        longest: dict[str, Grown] = {}
        for (role, _), samples in self._samples.items():
            began = samples[0][0]
            ended = samples[-1][0]
            if ended - began < 3 * _MINUTE_S:
                continue
            grown = Grown(
                role=role,
                lived_s=ended - began,
                first=_median(samples, began + _MINUTE_S, began + 2 * _MINUTE_S),
                last=_median(samples, ended - _MINUTE_S, ended),
            )
            if role not in longest or longest[role].lived_s < grown.lived_s:
                longest[role] = grown
        return sorted(longest.values(), key=lambda grown: grown.role)

    def lines(self) -> list[str]:
        """Return the Markdown lines; none if no process lived long enough."""
        grown = [str(each) for each in self.grown()]
        head = [
            "| process | seen for | in its second minute | in its last | growth |",
            "| --- | ---: | ---: | ---: | ---: |",
        ]
        return head + grown if grown else []

    def _look(self) -> None:
        now = time.monotonic()
        driver = self._stack.child("driver").pid
        for role, pid in self._processes(driver):
            # A server may be a shell with the server below it.
            self._note(
                role, pid, sum(map(resident_bytes, family(pid) if role in _SERVERS else [pid]))
            )
        if driver is not None and now >= self._collect_at:
            self._collect_at = now + _COLLECT_S
            for pid in spark_jvms(driver):
                self._note(_JVM, pid, needed_bytes(pid))

    def _note(self, role: str, pid: int, size: int) -> None:
        if size:
            self._samples[role, pid].append((time.monotonic(), size))

    def _processes(self, driver: int | None) -> list[tuple[str, int]]:
        stack = self._stack
        found = [
            *zip(_SERVERS, (stack.rabbitmq.pid, stack.redis.pid), strict=True),
            ("driver", driver),
        ]
        found += [(f"spout worker {name}", stack.child(name).pid) for name in ("0", "1")]
        if driver is not None:
            found += [(_WORKER, pid) for pid in python_workers(driver)]
        return [(role, pid) for role, pid in found if pid]


def _median(samples: list[tuple[float, int]], since: float, until: float) -> int:
    return int(median(size for at, size in samples if since <= at <= until))
