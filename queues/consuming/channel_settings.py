"""Settings that all channels of a consumer share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tiercel.queues.broker.link import Link
from tiercel.queues.consuming.failures import FailureBook
from tiercel.queues.consuming.hand_out import Delivery
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
    # Moves a copy to the dead-letter queue; ``dead_lettered`` or ``not_dead_lettered`` is called
    # some time later.
    dead_letter: Callable[[Delivery, str], None]
    clock: Callable[[], float]
