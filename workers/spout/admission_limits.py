"""Seconds by which the bound on what is in flight is judged."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

# Of the time in ``cheaper_s``, the part of each bolt in a row.
_CHEAPER_PER_BOLT_S = 0.05
# Looking through so many costs a broker next to nothing.
_FEW = 256


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds by which a bound is judged."""

    # Trees that complete sooner: more may be in flight, where few are.
    few_quick_s: float = 2.0
    # The same where many are. A broker looks for each message that is acked out of order among
    # all that are not.
    many_quick_s: float = 0.25
    # Below it larger steps pay, also where the latency shows nothing of it: each step, each call of
    # a server has a fixed price, and each bolt in a row its own steps.
    cheaper_s: float = 2 * _CHEAPER_PER_BOLT_S
    # Up to here a larger bound is tried out, and kept if it makes them hardly slower.
    probed_s: float = float("inf")
    # A tree that takes longer, or is older, is a sign of too many in flight.
    slow_s: float = float("inf")
    # So long nothing completes before the bolts may be waiting for more tuples.
    silent_s: float = 21.0
    # Work in flight after a sign.
    reserve_s: float = 5.0
    # Work in flight at most, where tasks are busy and one of them is stuck in a long tuple.
    busy_s: float = 1.0
    # The same where they are not. What waits so long is finished in as long again,
    # which is in time.
    calm_s: float = 10.0

    def step(self, bound: int, latency_s: float) -> float:
        """The factor by which the bound may grow where trees are quick, if they take
        longer in proportion.
        """
        per_second = bound / max(latency_s, 0.001)
        few = min(_FEW, self.few_quick_s * per_second)
        many = max((_FEW * self.few_quick_s * per_second) ** 0.5, self.many_quick_s * per_second)
        return (many if few == _FEW else few) / bound

    def quick_s(self, bound: int) -> float:
        """Trees that complete sooner: more than ``bound`` may be in flight.

        >>> limits = Limits()
        >>> [limits.quick_s(bound) for bound in (2, 256, 512, 2_048, 100_000)]
        [2.0, 2.0, 1.0, 0.25, 0.25]
        """
        return max(self.many_quick_s, self.few_quick_s * min(1.0, _FEW / bound))

    @classmethod
    def within(cls, message_timeout: timedelta | None, depth: int = 1) -> Limits:
        """The limits under a message timeout, with so many bolts in a row.

        Without a timeout no tree is slow.
        """
        cheaper_s = _CHEAPER_PER_BOLT_S * max(2, depth)
        if message_timeout is None:
            return cls(cheaper_s=cheaper_s)
        timeout = message_timeout.total_seconds()
        return cls(
            cheaper_s=min(cheaper_s, timeout / 12),
            few_quick_s=min(2.0, timeout / 6),
            many_quick_s=min(0.25, timeout / 6),
            probed_s=0.5 * timeout,
            slow_s=0.7 * timeout,
            silent_s=0.7 * timeout,
            reserve_s=timeout / 6,
            busy_s=timeout / 30,
            calm_s=timeout / 3,
        )
