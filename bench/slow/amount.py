"""Amounts of slow work, and the time that a run may take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# One message in twenty raises the first time.
RAISING = 20
# A run is given up if it takes longer than this factor times the ideal time plus the least time.
_SLOWEST = 6.0
_LEAST_S = 60.0
# Time limit for acking the messages sent before a measurement, or during it.
PATIENCE_S = 90.0


@dataclass(frozen=True, kw_only=True)
class Slow:
    """Amount of slow work. Milliseconds are per tuple."""

    # The bolt in ``drain``, ``raising`` and ``beside``: its tasks, time per tuple and messages.
    tasks: int = 4
    work_ms: float = 1_000
    messages: int = 600
    # Duration of the one long tuple of ``beside``.
    long_ms: float = 10_000
    # Fast messages per second during that tuple.
    rate: int = 20
    # Descending: fast work raises the limit on tuples in flight, too far for slow work after it.
    curve_ms: Sequence[float] = (1_000, 100, 10, 1)
    curve_tasks: Sequence[int] = (1, 2, 4, 8, 16)
    # Ideal duration of one point of the curve, in which only the work takes time.
    curve_s: float = 10.0
    # Time for which uneven work arrives.
    uneven_s: float = 75.0
    # Time per tuple if one task is half as fast as the others.
    half_ms: float = 100
    # Time per tuple if the wall time is measured during uneven work.
    wall_ms: float = 250


def within_s(best_s: float) -> float:
    """Return the time limit of a run whose ideal time is ``best_s``."""
    return _LEAST_S + _SLOWEST * best_s
