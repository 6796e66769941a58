"""Amounts of slow work, and how long a run of it may take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# One message in this many raises the first time.
RAISING = 20
# Factor by which a run may be slower than tasks / time before it is given up, and the least
# that it is given.
_SLOWEST = 6.0
_LEAST_S = 60.0
# Time that the messages before a measurement, or beside it, are given to be acked.
PATIENCE_S = 90.0


@dataclass(frozen=True, kw_only=True)
class Slow:
    """Amount of slow work. Milliseconds are per tuple."""

    # Of the bolt in ``drain``, ``raising`` and ``beside``.
    tasks: int = 4
    work_ms: float = 1_000
    messages: int = 600
    # The one long tuple of ``beside``.
    long_ms: float = 10_000
    # Fast messages per second beside it.
    rate: int = 20
    # Descending: a bound that fast work has let grow is too large for the slow work after it.
    curve_ms: Sequence[float] = (1_000, 100, 10, 1)
    curve_tasks: Sequence[int] = (1, 2, 4, 8, 16)
    # Time that a point of the curve takes where nothing but the work takes time.
    curve_s: float = 10.0
    # How long uneven work arrives.
    uneven_s: float = 75.0
    # Of a tuple, where one task is half as fast as the others.
    half_ms: float = 100
    # Of a tuple, where the wall time is measured beside uneven work.
    wall_ms: float = 250


def within_s(best_s: float) -> float:
    """Seconds that a run is given which takes ``best_s`` where nothing but the work takes time."""
    return _LEAST_S + _SLOWEST * best_s
