"""Decisions about messages that failed, as functions of their number of deliveries; and the names
of queues and of their dead-letter queues.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from tiercel.queues.nouns import refuse_typos

# Number of earlier failures, on a message out of a delay queue: to RabbitMQ it is a new message.
FAILURES_HEADER = "x-tiercel-failures"

_DEAD = ".dead"
# Longest name of a queue that has a dead-letter queue: RabbitMQ takes 255 bytes.
QUEUE_BYTES = 255 - len(_DEAD)

# Number of failures after which the next one sends a message to the dead-letter queue.
DELIVERY_LIMIT = 20


def dead_letter_queue(name: str) -> str:
    """Return the name of the queue for messages that cannot be processed."""
    return f"{name}{_DEAD}"


def work_queue(name: str) -> str:
    """Return the queue whose dead letters are in the queue ``name``, or that queue itself."""
    return name.removesuffix(_DEAD)


def is_queue_name(name: object) -> bool:
    """Return True for a name that a queue and its dead-letter queue can have."""
    return is_broker_name(name, 1, QUEUE_BYTES)


def check_queue_name(name: object) -> None:
    """Raise ValueError for a name that a queue or its dead-letter queue cannot have."""
    if not is_queue_name(name):
        raise ValueError(
            f"a queue needs a name, a text of 1 to {QUEUE_BYTES} bytes without line breaks, not "
            f"{name!r:.50}"
        )


def is_broker_name(name: object, least: int, most: int) -> bool:
    """Return True for a text of this many bytes that RabbitMQ takes as a name, unchanged.

    It removes line breaks from the name in a declaration and not from a routing key: the queue
    would have another name, and pika would wait forever for the answer about this one.
    """
    if not isinstance(name, str) or "\n" in name or "\r" in name:
        return False
    try:
        return least <= len(name.encode()) <= most
    except UnicodeEncodeError:
        return False


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Back-off of a failed message before it is delivered again: ``first``, then doubling up to
    ``longest``.

    With the defaults and 20 redeliveries a message is tried for two and a half minutes. Keep
    ``longest`` well under the broker's consumer timeout (30 minutes by default): a waiting message
    is unacked. Brokers that delay retries themselves (RabbitMQ 4.3) get ``first`` and ``longest``,
    and their waits grow by ``first`` each time.
    """

    first: timedelta = timedelta(milliseconds=200)
    longest: timedelta = timedelta(seconds=10)

    def __post_init__(self) -> None:
        """Raises ValueError for a wait that is no timedelta, or negative."""
        for name, wait in (("first", self.first), ("longest", self.longest)):
            if not isinstance(wait, timedelta) or wait < timedelta(0):
                raise ValueError(
                    f"RetryPolicy needs a timedelta of at least 0 as {name}, such as "
                    f"timedelta(seconds=1), not {wait!r:.50}"
                )


RetryPolicy.__init__ = refuse_typos(RetryPolicy.__init__)  # type: ignore[method-assign]
DEFAULT_RETRY = RetryPolicy()

# Requeue at once.
NO_WAIT = RetryPolicy(first=timedelta(0), longest=timedelta(0))


# A broker's limit that no message reaches.
_FREE = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerLimit:
    """RabbitMQ's own count of how often a message is returned to a queue, for any reason, and its
    limit.
    """

    # False for a classic queue: it does not count, and passes on any count that the sender set.
    counts: bool = True

    # A message that is returned more often is dead-lettered; None: there is no limit.
    returns: int | None = None
    # Such a message is deleted instead: the queue has no dead-letter exchange.
    deletes: bool = False
    # A rejected message goes to the dead-letter queue that tiercel declares.
    moves: bool = field(default=False, compare=False)

    @property
    def returns_are_free(self) -> bool:
        """True if returning a message never brings it near the limit."""
        return self.returns is None or self.returns >= _FREE

    def is_last_failure(self, delivery_count: int | None) -> bool:
        """True if RabbitMQ would end the message at this rejection, without keeping the reason.

        Also true if the next lost connection would be its end.
        """
        if self.returns is None or delivery_count is None:
            return False
        return delivery_count >= self.returns - self.deletes

    def is_last_delivery(self, delivery_count: int | None) -> bool:
        """True if RabbitMQ deletes the message when it is returned."""
        return (
            self.deletes
            and self.returns is not None
            and delivery_count is not None
            and delivery_count >= self.returns
        )


@dataclass(frozen=True, slots=True)
class RequeueAfter:
    """Reject the message with requeue after this many seconds."""

    after_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Dead-letter the message."""


def delivered_before(
    headers: Mapping[str, Any] | None, *, redelivered: bool, counts: bool
) -> int | None:
    """Return how often a message was returned before this delivery, by the broker's count; None if
    the broker does not count: ``counts`` tells whether this queue does (``BrokerLimit.counts``).

    The sender may have set the same headers: a copy made elsewhere often carries those of its
    former queue. RabbitMQ 4 overwrites them only if it has a count, which it never has at the first
    delivery. From 4.3 on it also counts how often it delivered a message, which bounds the sender's
    count.
    """
    if not redelivered:
        return 0
    if not counts:
        return None
    count, handed_out = (
        (headers or {}).get(name) for name in ("x-delivery-count", "x-acquired-count")
    )
    if isinstance(handed_out, int):
        return min(count, handed_out) if isinstance(count, int) else 0
    # a classic queue whose arguments could not be read has no count
    return count if isinstance(count, int) else None


def failed_before(headers: Mapping[str, Any] | None) -> int:
    """Return how often a message had failed when it was copied to a delay queue.

    A sender that sets this header harms only its own message.
    """
    count = (headers or {}).get(FAILURES_HEADER)
    return max(0, count) if isinstance(count, int) else 0


def next_action(failures: int, policy: RetryPolicy, delivery_limit: int) -> RequeueAfter | GiveUp:
    """Decide about a failed message that had failed ``failures`` times before."""
    if failures >= delivery_limit:
        return GiveUp()
    # 2.0 ** 64 times any wait is above any bound, and larger exponents would overflow.
    wait = policy.first.total_seconds() * 2.0 ** min(failures, 64)
    return RequeueAfter(min(wait, policy.longest.total_seconds()))
