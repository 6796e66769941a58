"""Joining what several reads, or several servers, brought. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from acker.ledger import Outcomes


def joined(parts: Sequence[Outcomes]) -> Outcomes:
    """One ``Outcomes`` of all parts, in their order."""
    if len(parts) == 1:
        return parts[0]
    return Outcomes(
        acked=[root for part in parts for root in part.acked],
        failed=[failure for part in parts for failure in part.failed],
        released=[root for part in parts for root in part.released],
        reset=[root for part in parts for root in part.reset],
        ledger_lost=any(part.ledger_lost for part in parts),
    )
