"""What to do with a message that failed, as a function of how often it was delivered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

DELIVERY_LIMIT = 20
"""Redeliveries before a message goes to the dead-letter queue; RabbitMQ's own default from 4.0 on."""


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How long a failed message waits before it is delivered again: ``first``, then twice as long each time up to ``longest``.

    With the defaults and 20 redeliveries a message is tried for two and a half minutes. Keep ``longest`` well under the
    broker's consumer timeout (30 minutes by default): a message that waits is unacknowledged. Brokers that delay retries
    themselves (RabbitMQ 4.3) get ``first`` and ``longest``; their waits grow by ``first`` each time.
    """

    first: timedelta = timedelta(milliseconds=200)
    longest: timedelta = timedelta(seconds=10)


DEFAULT_RETRY = RetryPolicy()

NO_WAIT = RetryPolicy(first=timedelta(0), longest=timedelta(0))
"""Back to the queue at once."""


@dataclass(frozen=True, slots=True)
class Requeue:
    """Reject it with requeue after this many seconds."""

    after_s: float


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """No further delivery."""


def delivered_before(headers: Mapping[str, Any] | None, *, redelivered: bool) -> int | None:
    """How many deliveries of a message failed before this one, as far as the broker counts; None where it does not know.

    A sender may have written the same headers: a copy made elsewhere often brings those of its former queue along. RabbitMQ
    4 overwrites them only where it has something to say, which is never so at the first delivery. From 4.3 on it counts
    apart how often a message was handed out, and by that one it can be seen that the other is the sender's.
    """
    if not redelivered:
        return 0
    count, handed_out = ((headers or {}).get(name) for name in ("x-delivery-count", "x-acquired-count"))
    if isinstance(handed_out, int):
        return min(count, handed_out) if isinstance(count, int) else 0
    return count if isinstance(count, int) else None  # a classic queue passes on whatever the sender wrote


def next_action(delivery_count: int | None, policy: RetryPolicy, delivery_limit: int) -> Requeue | DeadLetter:
    """What to do with a message that failed.

    ``delivery_count`` is the broker's: 0 at the first delivery, None where it does not count (a redelivered message of a
    classic queue). A quorum queue dead-letters a message that is rejected with a count of ``delivery_limit``; so does
    this, to keep the reason with the message.
    """
    if delivery_count is None:
        return Requeue(policy.longest.total_seconds())
    if delivery_count >= delivery_limit:
        return DeadLetter()
    # 2.0 ** 64 times any wait is above any bound, and larger exponents would overflow.
    wait = policy.first.total_seconds() * 2.0 ** min(delivery_count, 64)
    return Requeue(min(wait, policy.longest.total_seconds()))
