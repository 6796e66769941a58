"""Joining what several reads, or several servers, brought. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tiercel.acker.ledger import Applied, Outcomes, Reply

# The first of these that a part of a call got is the verdict on the whole call.
_VERDICTS = (Applied.STALE, Applied.CONFLICTING, Applied.FRESH, Applied.REPEATED)


def joined(parts: Sequence[Outcomes]) -> Outcomes:
    """One ``Outcomes`` of all parts, in their order."""
    if len(parts) == 1:
        return parts[0]
    return Outcomes(
        acked=[root for part in parts for root in part.acked],
        failed=[failure for part in parts for failure in part.failed],
        released=[root for part in parts for root in part.released],
        reset=[root for part in parts for root in part.reset],
        waiting=[root for part in parts for root in part.waiting],
        ledger_lost=any(part.ledger_lost for part in parts),
    )


def total(replies: Sequence[Reply]) -> Reply:
    """The reply to a whole ``apply``, from those of its parts."""
    verdicts = {reply.applied for reply in replies} or {Applied.FRESH}
    return Reply(
        applied=next(verdict for verdict in _VERDICTS if verdict in verdicts),
        completed=sum(reply.completed for reply in replies),
        failed=sum(reply.failed for reply in replies),
        late=sum(reply.late for reply in replies),
    )
