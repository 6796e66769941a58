"""Settings that all channels of a consumer share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tiercel.queues.broker.link import Link
from tiercel.queues.broker.management import Policies
from tiercel.queues.consuming.copies import Copies
from tiercel.queues.consuming.failures import FailureBook
from tiercel.queues.consuming.intake import Intake
from tiercel.queues.retry import BrokerLimit, RetryPolicy


@dataclass(frozen=True, kw_only=True)
class EpochSettings:
    """Settings that all channels of a consumer share."""

    queue: str
    # The consumer tag's beginning.
    tag: str
    link: Link
    # Counts what is open, on whichever of the channels.
    intake: Intake
    # Back-off for which a failed message is held before it is rejected.
    retry: RetryPolicy
    # A message that failed so often before and fails again is dead-lettered.
    delivery_limit: int
    broker_limit: BrokerLimit
    failures: FailureBook
    # Called when there begins to be something to ``take``.
    wake: Callable[[], None]
    # Copies messages to other queues; ``copied`` is called for each, some time later.
    copies: Copies
    clock: Callable[[], float]
    # Those that may spoil a delay queue.
    policies: Policies
    # Those of the broker's consumer.
    consumer_arguments: Mapping[str, Any] = field(default_factory=dict)
