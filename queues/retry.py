"""Decisions about messages that failed, as functions of their number of deliveries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

# On a message that comes out of a delay queue: how often it had failed before it went there. To
# RabbitMQ it is a new one.
FAILURES_HEADER = "x-tiercel-failures"

# Failures after which one more takes a message to the dead-letter queue.
DELIVERY_LIMIT = 20


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Back-off of a failed message before it is delivered again: ``first``, then twice as long each
    time up to ``longest``.

    With the defaults and 20 redeliveries a message is tried for two and a half minutes. Keep
    ``longest`` well under the broker's consumer timeout (30 minutes by default): a message that
    waits is unacknowledged. Brokers that delay retries themselves (RabbitMQ 4.3) get ``first`` and
    ``longest``; their waits grow by ``first`` each time.
    """

    first: timedelta = timedelta(milliseconds=200)
    longest: timedelta = timedelta(seconds=10)


DEFAULT_RETRY = RetryPolicy()

# Back to the queue at once.
NO_WAIT = RetryPolicy(first=timedelta(0), longest=timedelta(0))


# A broker's limit that no message comes near.
_FREE = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerLimit:
    """RabbitMQ's own limit on the times that a message comes back to a queue, for any reason."""

    # A message that comes back more often is dead-lettered; None: there is no limit.
    returns: int | None = None
    # A message that comes back more often is deleted: the queue has no dead-letter exchange.
    deletes: bool = False

    @property
    def returns_are_free(self) -> bool:
        """Giving a message back does it no harm."""
        return self.returns is None or self.returns >= _FREE

    def is_last_failure(self, delivery_count: int | None) -> bool:
        """Rejecting a message would be its end, without the reason.

        Or leave it one lost connection away from being lost.
        """
        if self.returns is None or delivery_count is None:
            return False
        return delivery_count >= self.returns - self.deletes

    def is_last_delivery(self, delivery_count: int | None) -> bool:
        """RabbitMQ deletes the message when it comes back."""
        return (
            self.deletes
            and self.returns is not None
            and delivery_count is not None
            and delivery_count >= self.returns
        )


@dataclass(frozen=True, slots=True)
class RequeueAfter:
    """Reject it with requeue after this many seconds."""

    after_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No further delivery."""


def delivered_before(headers: Mapping[str, Any] | None, *, redelivered: bool) -> int | None:
    """Return the number of times that a message came back before this delivery, as the broker
    counts; None if it does not.

    A sender may have written the same headers: a copy made elsewhere often brings those of its
    former queue along. RabbitMQ 4 overwrites them only where it has a count, which is never so at
    the first delivery. From 4.3 on it also counts the times that it handed a message out, which
    bounds a count of the sender's.
    """
    if not redelivered:
        return 0
    count, handed_out = (
        (headers or {}).get(name) for name in ("x-delivery-count", "x-acquired-count")
    )
    if isinstance(handed_out, int):
        return min(count, handed_out) if isinstance(count, int) else 0
    # a classic queue passes on any value of the sender
    return count if isinstance(count, int) else None


def failed_before(headers: Mapping[str, Any] | None) -> int:
    """Return the number of failures of a message when it was copied to a delay queue.

    A sender may have written this header too, and harms nothing but the message.
    """
    count = (headers or {}).get(FAILURES_HEADER)
    return max(0, count) if isinstance(count, int) else 0


def next_action(failures: int, policy: RetryPolicy, delivery_limit: int) -> RequeueAfter | GiveUp:
    """Decide about a message that failed, and had failed ``failures`` times before."""
    if failures >= delivery_limit:
        return GiveUp()
    # 2.0 ** 64 times any wait is above any bound, and larger exponents would overflow.
    wait = policy.first.total_seconds() * 2.0 ** min(failures, 64)
    return RequeueAfter(min(wait, policy.longest.total_seconds()))
