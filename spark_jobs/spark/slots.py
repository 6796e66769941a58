"""Counts the Spark tasks that can run at once. No pyspark here."""

from __future__ import annotations

import time
from collections.abc import Callable

_LOOK_S = 0.1
# Executors register one after the other when an application begins, and again after some were lost.
_STEADY_S = 1.0
_LONGEST_S = 10.0


def steady_slots(
    count: Callable[[], int],
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> int:
    """Return the slots of executors once they have not changed for a second.

    Waits at most ten.

    At least 1: a run whose tasks find no slot is noticed and begun anew. Ask before a run begins,
    for its tasks take the slots that there are then.
    """
    end = clock() + _LONGEST_S
    slots = count()
    steady_at = clock() + _STEADY_S
    while clock() < end and (not slots or clock() < steady_at):
        wait(_LOOK_S)
        found = count()
        if found != slots:
            slots = found
            steady_at = clock() + _STEADY_S
    return max(1, slots)
