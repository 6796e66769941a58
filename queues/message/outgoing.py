"""A message that is to be published."""

from __future__ import annotations

from dataclasses import dataclass, field

from pika import BasicProperties

from tiercel.queues.message.writing import write_properties


@dataclass(frozen=True, kw_only=True, slots=True)
class OutgoingMessage:
    """One message, for a queue or for an exchange.

    * ``body``: its bytes.
    * ``routing_key``: the name of the queue, if ``exchange`` is empty.
    * ``exchange``: empty for the default exchange, which leads to the queue of that name.
    * ``properties``: pika's ``BasicProperties``. The publisher adds a message id if there is none.
    * ``mandatory``: False: if no queue takes the message, the broker drops it in silence, and it
      counts as published.
    """

    body: bytes
    routing_key: str
    exchange: str = ""
    properties: BasicProperties = field(default_factory=lambda: write_properties({}))
    mandatory: bool = True
