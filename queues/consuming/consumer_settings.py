"""Settings of a consumer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tiercel.queues.broker.declare import WorkQueue
from tiercel.queues.limits import BYTES_HELD, PREFETCH


@dataclass(frozen=True, kw_only=True)
class ConsumerSettings:
    """Settings of a consumer: its queue, and how its reader is woken."""

    queue: WorkQueue
    # Called on the I/O thread when there is something to ``get``, or an error.
    wake: Callable[[], None]
    # Adds to a named counter; called on the I/O thread.
    count: Callable[[str, int], None]
    # Shown in RabbitMQ's lists of connections and consumers.
    name: str = "tiercel"
    # So many consumers share the queue, each in a process of its own.
    tasks: int = 1
    prefetch: int = PREFETCH
    bytes_held: int = BYTES_HELD
    clock: Callable[[], float] = time.monotonic
    # RabbitMQ's HTTP API, if there is one: it tells of policies.
    management_url: str | None = None
