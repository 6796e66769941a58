"""Declaring the queues: a quorum queue for the work, and its dead-letter queue.

What the arguments are for: https://www.rabbitmq.com/docs/quorum-queues (dead lettering, poison messages, delayed retry).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pika.exceptions import ChannelClosedByBroker

from queues.address import Address
from queues.connection import connected, translate
from queues.errors import ServerTooOldError
from queues.retry import DEFAULT_RETRY, DELIVERY_LIMIT, RetryPolicy

log = logging.getLogger(__name__)

OLDEST_SERVER = (3, 10)
"""The first with at-least-once dead-lettering."""
_UNLIMITED_DELIVERIES_SINCE = (4, 0)
"""From here on a quorum queue has a delivery limit unless it is given -1; before, it has none and -1 is refused."""
_DELAYED_RETRY_SINCE = (4, 3)
_PRECONDITION_FAILED = 406


@dataclass(frozen=True, kw_only=True)
class WorkQueue:
    """A queue that a topology reads, and how its failures are treated."""

    name: str
    delivery_limit: int = DELIVERY_LIMIT
    """Redeliveries before a message is dead-lettered: it is delivered once more than this."""
    retry: RetryPolicy = DEFAULT_RETRY
    declare: bool = True
    """False: it must exist; a missing one is an error."""

    @property
    def dead(self) -> str:
        """The name of its dead-letter queue."""
        return dead_letter_queue(self.name)


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What the broker has now."""

    ours: bool
    """False: the queue was there with other arguments, and is used as it is."""
    delays_retries: bool
    """The broker holds rejected messages back by itself."""


def dead_letter_queue(name: str) -> str:
    """Where the messages go that cannot be processed."""
    return f"{name}.dead"


def declare_queue(amqp_url: str, queue: WorkQueue, patience: timedelta = timedelta(0)) -> Declared:
    """Declare a work queue and its dead-letter queue over a connection of its own; idempotent.

    Raises AddressError, BrokerUnavailableError, BrokerRefusedError and its kinds.
    """
    address = Address.parse(amqp_url)
    with connected(address, "tiercel declare", patience) as connection:
        return declare_work_queue(connection, address, queue)


def declare_work_queue(connection: Any, address: Address, queue: WorkQueue) -> Declared:
    """Make sure that the queue exists; ``connection`` is a ``BlockingConnection``. A queue that exists is never changed.

    Raises ServerTooOldError, QueueMissingError if ``queue.declare`` is off and there is none, BrokerRefusedError.
    """
    version = check_server(connection, address)
    if not queue.declare:
        _declare(connection, address, queue.name, [])
        return Declared(ours=False, delays_retries=False)
    declare_dead_letter_queue(connection, address, queue.dead)
    plain = work_queue_arguments(queue)
    delayed = {**plain, **delayed_retry_arguments(queue.retry)}
    candidates = [delayed, plain] if version >= _DELAYED_RETRY_SINCE and delayed != plain else [plain]
    taken = _declare(connection, address, queue.name, candidates)
    return Declared(ours=taken is not None, delays_retries=taken is delayed)


def declare_dead_letter_queue(connection: Any, address: Address, name: str) -> None:
    """Make sure that a dead-letter queue exists."""
    arguments: dict[str, Any] = {"x-queue-type": "quorum"}
    if check_server(connection, address) >= _UNLIMITED_DELIVERIES_SINCE:
        # Looking at a dead letter is a delivery. With a limit, looking often enough would delete it.
        arguments["x-delivery-limit"] = -1
    _declare(connection, address, name, [arguments])


def check_server(connection: Any, address: Address) -> tuple[int, int]:
    """The version of the server, (major, minor); raises ServerTooOldError."""
    properties = connection._impl.server_properties or {}  # noqa: SLF001 - BlockingConnection has no other way to it
    text = str(properties.get("version", ""))
    numbers = [int(part) for part in text.split(".")[:2] if part.isdecimal()]
    version = (numbers[0], numbers[1]) if len(numbers) == 2 else (0, 0)
    if version < OLDEST_SERVER:
        shown = f"{properties.get('product', 'the server')} {text or 'without a version'}"
        raise ServerTooOldError(
            f"{shown} at {address} is too old; tiercel needs RabbitMQ {'.'.join(map(str, OLDEST_SERVER))} or newer"
        )
    return version


def work_queue_arguments(queue: WorkQueue) -> dict[str, Any]:
    """The arguments of a work queue, on every version."""
    return {
        "x-queue-type": "quorum",
        # The default exchange leads to the queue of that name: nothing in between that could be missing or bound wrongly.
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": queue.dead,
        # A dead letter stays in the work queue until its dead-letter queue has it; needs reject-publish, even without a limit.
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        "x-delivery-limit": queue.delivery_limit,
    }


def delayed_retry_arguments(policy: RetryPolicy) -> dict[str, Any]:
    """What makes RabbitMQ 4.3 wait before it delivers a rejected message again; nothing without a wait.

    ``failed`` means those that count as a failed delivery (``basic.reject``), not those that were given back (``basic.nack``).
    """
    first_ms, longest_ms = (int(wait.total_seconds() * 1000) for wait in (policy.first, policy.longest))
    if first_ms <= 0:
        return {}
    return {
        "x-delayed-retry-type": "failed",
        "x-delayed-retry-min": first_ms,
        "x-delayed-retry-max": max(first_ms, longest_ms),
    }


def _declare(connection: Any, address: Address, name: str, candidates: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """Declare with the first of these arguments that the broker takes, and return them; None if the queue has others."""
    refusal = ""
    for arguments in candidates:
        try:
            connection.channel().queue_declare(name, durable=True, arguments=arguments)
        except ChannelClosedByBroker as error:
            if error.reply_code != _PRECONDITION_FAILED:
                raise translate(error, address) from error
            refusal = error.reply_text
        else:
            return arguments
    try:
        connection.channel().queue_declare(name, passive=True)
    except ChannelClosedByBroker as error:
        raise translate(error, address) from error
    if refusal:
        log.warning("queue %s is used as it is: %s", name, refusal, extra={"event": "queue_used_as_is", "queue": name})
    return None
