"""Rates as users write them: ``"100/s"``, ``"5/min"``, ``"1/h"``, or a number per second. Pure."""

from __future__ import annotations

import math
import re

from tiercel.acker.limits import Rate
from tiercel.spark_jobs.errors import ConfigValueError

_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_WRITTEN = re.compile(rf"\s*([0-9]+(?:\.[0-9]+)?)\s*/\s*({'|'.join(_SECONDS)})\s*")
# A faster one limits nothing, and the server's clock counts microseconds.
_FASTEST_PER_S = 1_000_000
_SLOWEST_S = 30 * 86_400


def parse_rate(written: object) -> Rate:
    """The rate that a user wrote; raises ConfigValueError if it is not one."""
    match written:
        case bool():
            found = None
        case int() | float():
            found = Rate(permits=written)
        case str() if parts := _WRITTEN.fullmatch(written):
            found = Rate(permits=float(parts[1]), seconds=_SECONDS[parts[2]])
        case _:
            found = None
    if found is None or (isinstance(found.permits, float) and not math.isfinite(found.permits)):
        raise ConfigValueError(
            f'write a rate as "100/s", "5/min" or "1/h", or as a number per second, '
            f"not {written!r:.60}"
        )
    if found.permits <= 0:
        raise ConfigValueError(
            f"a rate must be more than 0, not {written!r:.60}: nothing would ever be executed"
        )
    if found.permits > _FASTEST_PER_S * found.seconds:
        raise ConfigValueError(
            f"{written!r:.60} is more than {_FASTEST_PER_S} per second: leave the limit out"
        )
    if found.seconds > _SLOWEST_S * found.permits:
        raise ConfigValueError(f"{written!r:.60} is less than one in 30 days: limits are faster")
    return found
