"""Simulated time: it stands still until it is moved, and nothing sleeps."""

from __future__ import annotations

from datetime import UTC, datetime

_NS = 1_000_000_000


def to_ns(seconds: float) -> int:
    """Whole nanoseconds, so that 300 times 0.1 s are exactly 30 s."""
    return round(seconds * _NS)


class SimulatedClock:
    """Starts at 0. One thread only."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> float:
        """Seconds since the start, as the ledger asks for them."""
        return self.now_ns / _NS


def simulated_datetime(now_ns: int) -> datetime:
    """A simulated time as a date, for reports: the clock starts at the epoch."""
    return datetime.fromtimestamp(now_ns / _NS, UTC)
