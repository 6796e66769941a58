"""CPU time of this process and all its descendants by kind of process, read from /proc."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

BENCHMARK = "the benchmark"
_TICKS = os.sysconf("SC_CLK_TCK")
# Part of the command line, and the role of the process; the first match counts.
_ROLES = (
    ("beam.smp", "RabbitMQ"),
    ("erl_child_setup", "RabbitMQ"),
    ("redis-server", "Redis"),
    ("valkey-server", "Redis"),
    ("pyspark.daemon", "Spark's Python"),
    ("pyspark.worker", "Spark's Python"),
    ("tiercel\0driver", "driver"),
    ("tiercel\0spout", "spout workers"),
    ("tiercel\0run", "tiercel run"),
    ("org.apache.spark", "Spark's JVM"),
    ("bench.storm.Main", "Storm's JVM"),
    ("bench/storm/", "Storm's Python"),
    ("bench.peers", "peer"),
    ("celery", "peer"),
    ("dramatiq", "peer"),
)


def cpu_seconds() -> dict[str, float]:
    """Return the seconds of CPU that each role has used so far.

    Ended processes do not count: take the difference of two readings while they all run.
    """
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, ValueError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                used[int(entry.name)] = (int(fields[11]) + int(fields[12])) / _TICKS
    found: dict[str, float] = {}
    for pid in _family(parents, os.getpid()):
        role = _role(pid)
        found[role] = found.get(role, 0.0) + used[pid]
    return found


def spent(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds by role between two readings, the largest first."""
    more = {role: round(seconds - before.get(role, 0.0), 2) for role, seconds in after.items()}
    return dict(
        sorted(
            ((role, seconds) for role, seconds in more.items() if seconds > 0),
            key=lambda each: -each[1],
        )
    )


def _family(parents: dict[int, int], ancestor: int) -> set[int]:
    family = {ancestor}
    grown = True
    while grown:
        children = {pid for pid, parent in parents.items() if parent in family} - family
        family |= children
        grown = bool(children)
    return family


def _role(pid: int) -> str:
    if pid == os.getpid():
        return BENCHMARK
    command = ""
    with suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return next((role for part, role in _ROLES if part in command), "other")
