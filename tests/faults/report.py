"""Results of each fault, as the tables in docs/guarantees.md."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One fault, survived."""

    fault: str
    published: int
    repeated: int
    # The most that could be in flight, and so be repeated.
    in_flight: int
    dead_lettered: int
    recovery_s: float
    # Of a burst afterwards, as a share of the pace before.
    pace: float


_TARGETS_S = {
    "driver": 20.0,
    "Spark: executor": 10.0,
    "broker: SIGKILL": 5.0,
    "broker: away": 5.0,
    "Redis: SIGKILL": 5.0,
    "Redis: restart": 5.0,
}


def target_s(fault: str) -> float | None:
    """Return the time within which the topology must be back, the later of two faults; None: there
    is no target. On a machine that is free.
    """
    found = [
        seconds
        for one in fault.split("; and ")
        for name, seconds in _TARGETS_S.items()
        if one.startswith(name)
    ]
    return max(found, default=None)


class Report:
    """The rows of a session."""

    def __init__(self) -> None:
        self.rows: list[Shown] = []
        # Of the load, in messages per second.
        self.rate = 0
        # The soak's table of its processes.
        self.memory: list[str] = []

    def add(self, shown: Shown) -> None:
        self.rows.append(shown)

    def lines(self) -> list[str]:
        """In Markdown."""
        head = [
            "| fault | messages | repeated | dead-lettered | recovery | target | pace after |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        return head + [_line(row) for row in self.rows]

    def section(self, servers: str) -> str:
        """The table with its heading, which says what it was measured on."""
        load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
        where = f"{os.cpu_count()} cores, load at the end {load}"
        in_flight = min((row.in_flight for row in self.rows), default=0)
        where += f"; {self.rate} messages per second, at most {in_flight:,} in flight."
        return "\n".join([f"### {servers}", "", where, "", *self.lines(), "", *self.memory, ""])


def _line(row: Shown) -> str:
    target = target_s(row.fault)
    shown = "" if target is None else f"{target:.0f} s"
    return (
        f"| {row.fault} | {row.published:,} | {row.repeated:,} | {row.dead_lettered:,} | "
        f"{row.recovery_s:.1f} s | {shown} | {row.pace:.2f} |"
    )


# Of this session; ``conftest`` prints it.
REPORT = Report()
