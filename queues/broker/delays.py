"""Delay queues: a message lies there for a time, and RabbitMQ moves it back into its work queue.

One queue per length of time, because RabbitMQ looks at the head of a queue only: in a queue of
mixed times a short one would wait behind a long one. See docs/decisions/retry-later-by-queues.md.
"""

from __future__ import annotations

import math
from hashlib import blake2b
from typing import Any

from tiercel.queues.broker.arguments import TYPE
from tiercel.queues.broker.management import Policies, Rule

_SHORTEST_MS = 100
_NAME_BYTES = 255


def delay_ms(seconds: float) -> int:
    """Round up to two digits, at least 100 ms: 90 lengths for each power of ten, and so few queues.

    Up to ten seconds that is to 100 ms, up to a hundred to one second; never more than a tenth.
    """
    wanted = max(_SHORTEST_MS, math.ceil(round(seconds * 1000, 3)))
    unit: int = max(_SHORTEST_MS, 10 ** (len(str(wanted)) - 2))
    return -(-wanted // unit) * unit


def delay_queue(queue: str, milliseconds: int) -> str:
    """Return the name of the queue in which messages of ``queue`` lie for this long."""
    end = f".delay.{milliseconds}"
    room = _NAME_BYTES - len(end)
    name = queue.encode()
    if len(name) > room:
        digest = blake2b(name, digest_size=8).hexdigest()
        queue = f"{name[: room - 17].decode('utf-8', 'ignore')}~{digest}"
    return queue + end


def delay_arguments(queue: str, milliseconds: int) -> dict[str, Any]:
    """Return the arguments of that queue.

    A message stays in it until the work queue has confirmed it (at-least-once). It has no
    ``x-expires``: for a quorum queue that counts from its declaration, also if messages were
    published since, and deletes the messages in it.
    """
    return {
        TYPE: "quorum",
        "x-message-ttl": milliseconds,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": queue,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }


def ends_too_early(policies: Policies, queue: str, milliseconds: int) -> Rule | None:
    """Return the policy by which that queue loses a message, or gives it back too early.

    It has no consumer, so any ``expires`` deletes it in the end, with its messages: for
    a quorum queue that counts from its declaration. Its ``x-expires`` would not help, as RabbitMQ
    takes the smaller of the two.
    """
    name = delay_queue(queue, milliseconds)
    if (expires := policies.rule(name, "expires")) is not None:
        return expires
    ttl = policies.rule(name, "message-ttl")
    return ttl if ttl is not None and ttl.value < milliseconds else None
