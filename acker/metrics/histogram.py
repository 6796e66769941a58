"""A latency histogram made of exact counters, so that tasks and processes add up. Pure.

Bucket i counts the latencies from 1.1**i to 1.1**(i + 1) ms under the counter name
"complete_ms_bucket:i"; below 1 ms, i is negative.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

PREFIX = "complete_ms_bucket:"
_GROWTH = math.log(1.1)
_SHORTEST_MS = 1e-3
_LONGEST_MS = 1e9


def bucket_of(latency_ms: float) -> str:
    """The counter that counts a latency; below 1 µs counts as 1 µs."""
    return (
        f"{PREFIX}{math.floor(math.log(min(max(latency_ms, _SHORTEST_MS), _LONGEST_MS)) / _GROWTH)}"
    )


def cumulative(counts: Mapping[str, int], every: int = 8) -> list[tuple[float, int]]:
    """Return pairs (bound in ms, number of latencies below it), exact.

    The bounds go from 1 ms to 100 s, each 1.1**``every`` times the one before; the last one is
    infinite: all of them.
    """
    buckets = {
        int(name.removeprefix(PREFIX)): count
        for name, count in counts.items()
        if name.startswith(PREFIX)
    }
    bounds = range(0, math.ceil(math.log(1e5) / _GROWTH) + every, every)
    found = [
        (math.exp(bound * _GROWTH), sum(n for at, n in buckets.items() if at < bound))
        for bound in bounds
    ]
    return [*found, (math.inf, sum(buckets.values()))]


def percentile(counts: Mapping[str, int], q: float) -> float | None:
    """Latency in ms that the fraction ``q`` (0 to 1) of all counted ones does not exceed.

    Within 5 %; None if none were counted.

    Counters with other names are ignored.
    """
    buckets = sorted(
        (int(name.removeprefix(PREFIX)), count)
        for name, count in counts.items()
        if name.startswith(PREFIX)
    )
    rank = q * sum(count for _, count in buckets)
    seen = 0
    for bucket, count in buckets:
        seen += count
        if count and seen >= rank:
            # The geometric middle of the bucket: 4.9 % from either end.
            return math.exp((bucket + 0.5) * _GROWTH)
    return None
