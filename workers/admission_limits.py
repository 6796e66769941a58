"""Seconds by which the bound on what is in flight is judged."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds by which a bound is judged."""

    quick_s: float = 2.0
    """Trees that complete sooner: more may be in flight."""
    probed_s: float = float("inf")
    """Up to here a larger bound is tried out, and kept if it makes them hardly slower."""
    slow_s: float = float("inf")
    """A tree that takes longer, or is older, is a sign of too many in flight."""
    silent_s: float = 21.0
    """So long nothing completes before the bolts may be waiting for more tuples."""
    reserve_s: float = 5.0
    """Work in flight after a sign."""

    @classmethod
    def within(cls, message_timeout: timedelta | None) -> Limits:
        """The limits under a message timeout; without one no tree is slow."""
        if message_timeout is None:
            return cls()
        timeout = message_timeout.total_seconds()
        return cls(
            quick_s=min(0.25, timeout / 6),
            probed_s=0.5 * timeout,
            slow_s=0.7 * timeout,
            silent_s=0.7 * timeout,
            reserve_s=timeout / 6,
        )
