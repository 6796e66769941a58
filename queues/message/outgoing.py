"""A message that is to be published."""

from __future__ import annotations

from dataclasses import dataclass, field

from pika import BasicProperties

from tiercel.queues.message.writing import write_properties


@dataclass(frozen=True, kw_only=True, slots=True)
class OutgoingMessage:
    """One message, for a queue or for an exchange."""

    body: bytes
    # The name of the queue, where no exchange is named.
    routing_key: str
    # Empty: the default exchange, by which each queue gets what has its name as the routing key.
    exchange: str = ""
    # This message's own, as ``write_properties`` makes them: the publisher adds a message id where
    # they have none.
    properties: BasicProperties = field(default_factory=lambda: write_properties({}))
    # False: what no queue is bound for is dropped in silence by the broker, and counts as taken.
    mandatory: bool = True
