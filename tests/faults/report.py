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
    # The most messages in flight, and so the most repeats.
    in_flight: int
    dead_lettered: int
    recovery_s: float
    # Pace of a burst after the fault, relative to the pace before.
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
    """Return the time to recover on an idle machine, the longer of two faults' times; None if there
    is no target.
    """
    found = [
        seconds
        for one in fault.split("; and ")
        for name, seconds in _TARGETS_S.items()
        if one.startswith(name)
    ]
    return max(found, default=None)


class Report:
    """The rows of one session."""

    def __init__(self) -> None:
        self.rows: list[Shown] = []
        # Messages per second of the load.
        self.rate = 0
        # The soak's table of processes.
        self.memory: list[str] = []

    def add(self, shown: Shown) -> None:
        self.rows.append(shown)

    def lines(self) -> list[str]:
        """Return the Markdown lines."""
        head = [
            "| fault | messages | repeated | dead-lettered | recovery | target | pace after |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        return head + [_line(row) for row in self.rows]

    def section(self, servers: str) -> str:
        """Return the table with its heading, which names the machine."""
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


# This session's report, printed by ``conftest``.
REPORT = Report()
