"""One message on its way to the broker, until it is confirmed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pika import BasicProperties

from tiercel.queues.errors import QueuesError

# RabbitMQ's names for the channels of clients that wait for direct replies.
_DIRECT_REPLY = "amq.rabbitmq.reply-to."

Done = Callable[[QueuesError | None], None]


@dataclass(slots=True, eq=False)
class Publication:
    """One message, which its exchange takes to queues by the routing key."""

    exchange: str
    # The name of the queue, if the exchange is the default one.
    routing_key: str
    body: bytes
    properties: BasicProperties
    # Called once, on the I/O thread: None when the broker has it, else why not.
    done: Done
    returned: bool = False
    # The queue of that name is declared with these first, once per channel; None: it is there.
    arguments: Mapping[str, Any] | None = None
    # RabbitMQ may drop it in silence if no queue takes it.
    may_be_dropped: bool = False

    @property
    def place(self) -> str:
        """The queue or the exchange that it goes to, in words."""
        return f"exchange {self.exchange!r}" if self.exchange else f"queue {self.routing_key!r}"

    @property
    def mandatory(self) -> bool:
        """RabbitMQ is to return it if no queue takes it.

        A direct reply goes straight to its client, through no queue: RabbitMQ delivers it, and
        would return it all the same.
        """
        is_direct_reply = not self.exchange and self.routing_key.startswith(_DIRECT_REPLY)
        return not self.may_be_dropped and not is_direct_reply

    def unroutable(self, where: object) -> str:
        """Return the reason for which it came back from the broker ``where``, and advice."""
        if not self.exchange:
            return f"there is no {self.place} on {where}; declare it first or correct the name"
        return (
            f"{self.place} on {where} leads to no queue for the routing key {self.routing_key!r}; "
            "bind one, or correct the key or the headers"
        )


def returned(
    waiting: Iterable[Publication], method: Any, properties: BasicProperties, body: bytes
) -> Publication | None:
    """Return the first unconfirmed message that this return may be of.

    Messages with the same route are interchangeable: exchange, routing key
    and headers. Message ids tell most of them apart.
    """
    alike = [
        message
        for message in waiting
        if not message.returned
        and message.routing_key == method.routing_key
        and message.exchange == method.exchange
        and message.properties.message_id == properties.message_id
        and message.body == body
    ]
    headers = dict(properties.headers or {})
    # The broker may have written a header in another way: then the first is as good as any.
    same = (each for each in alike if dict(each.properties.headers or {}) == headers)
    return next(same, alike[0] if alike else None)
