"""Progress lines of ``tiercel run``, whenever something has changed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from tiercel.acker.errors import AckerError
from tiercel.acker.metrics.contract import Metrics
from tiercel.acker.metrics.windows import total_of

_NAMES = ("emitted", "acked", "failed", "timeout", "released", "rejected", "no_identity")

log = logging.getLogger(__name__)


class Progress:
    """Looks at the spouts' counters. Best effort: while Redis is away it says nothing."""

    def __init__(self, metrics: Metrics, spouts: Iterable[str], now: float) -> None:
        """``now`` in monotonic seconds, as in ``look``."""
        self._metrics, self._spouts = metrics, tuple(spouts)
        self._before: Counter[str] = Counter()
        self._looked_at = now

    def look(self, now: float) -> None:
        """Log what was done since the last look, if anything was."""
        try:
            totals = self._metrics.totals()
        except AckerError:
            return
        counts: Counter[str] = Counter()
        for spout in self._spouts:
            counts.update(total_of(totals, spout))
        line = describe(self._before, counts, now - self._looked_at)
        self._before = counts
        self._looked_at = now
        if line is not None:
            log.info("%s", line, extra={"event": "progress"})


def describe(before: Counter[str], now: Counter[str], seconds: float) -> str | None:
    """``1,234 acked (123 per second), 5 failed, 7 released, 100 in flight``.

    None if nothing was done.

    In flight is what was emitted and has no outcome; tuples of a worker that was killed stay in it.
    """
    done = now["acked"] - before["acked"]
    if all(now[name] == before[name] for name in _NAMES):
        return None
    in_flight = now["emitted"] - now["acked"] - now["failed"] - now["released"]
    parts = [
        f"{now['acked']:,} acked ({done / max(seconds, 0.001):,.0f} per second)",
        f"{now['failed']:,} failed",
    ]
    shown = {"timeout": "timeout", "released": "released", "rejected": "rejected"}
    shown["no_identity"] = "without an identity"
    parts += [f"{now[name]:,} {words}" for name, words in shown.items() if now[name]]
    return ", ".join([*parts, f"{max(in_flight, 0):,} in flight"])
