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
    found: dict[str, float] = {}
    for pid, fields in _family().items():
        role = _role(pid)
        found[role] = found.get(role, 0.0) + (int(fields[11]) + int(fields[12])) / _TICKS
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


def largest(role: str) -> int:
    """Return the process of this role that has most memory."""
    pages = {pid: int(fields[21]) for pid, fields in _family().items() if _role(pid) == role}
    return max(pages, key=lambda pid: pages[pid])


def _family() -> dict[int, list[str]]:
    """Return this process and all its descendants, each with its line in ``stat`` from the third
    field on.
    """
    lines: dict[int, list[str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                lines[int(entry.name)] = (entry / "stat").read_text().rpartition(")")[2].split()
    family = {os.getpid()}
    grown = True
    while grown:
        children = {pid for pid, fields in lines.items() if int(fields[1]) in family} - family
        family |= children
        grown = bool(children)
    return {pid: lines[pid] for pid in family}


def _role(pid: int) -> str:
    if pid == os.getpid():
        return BENCHMARK
    command = ""
    with suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return next((role for part, role in _ROLES if part in command), "other")
