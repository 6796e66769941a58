"""What each fault showed, as the table that docs/guarantees.md has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One fault, survived."""

    fault: str
    published: int
    repeated: int
    dead_lettered: int
    recovery_s: float


class Report:
    """The rows of a session."""

    def __init__(self) -> None:
        self.rows: list[Shown] = []

    def add(self, shown: Shown) -> None:
        self.rows.append(shown)

    def lines(self) -> list[str]:
        """In Markdown."""
        head = ["| fault | messages | repeated | dead-lettered | recovery |", "| --- | ---: | ---: | ---: | ---: |"]
        return head + [
            f"| {row.fault} | {row.published:,} | {row.repeated:,} | {row.dead_lettered:,} | {row.recovery_s:.1f} s |"
            for row in self.rows
        ]


REPORT = Report()
"""Of this session; ``conftest`` prints it."""
