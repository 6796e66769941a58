"""Rights of a RabbitMQ user, found out without changing anything.

AMQP has no call that returns rights. But RabbitMQ checks them before the arguments of a call, so a
call that is allowed and has an impossible argument is refused for that argument.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import pika
from pika.exceptions import ChannelClosedByBroker

from tiercel.queues.broker.address import Address
from tiercel.queues.broker.connection import translate, translated
from tiercel.queues.errors import ExchangeMissingError

_ACCESS_REFUSED = 403


def refused_to_declare(connection: Any, address: Address, queue: str) -> str:
    """Return why the user may not declare this work queue or delay queue; empty: it may.

    If the queue is missing, this includes reading it, and publishing to the default exchange.
    """
    arguments = {"x-message-ttl": -1, "x-dead-letter-exchange": ""}
    return _refused(
        connection,
        address,
        lambda channel: channel.queue_declare(queue, durable=True, arguments=arguments),
    )


def refused_to_dead_letter(connection: Any, address: Address, dead: str) -> str:
    """Return why this dead-letter queue is missing and the user may not declare it; empty: a copy
    can get into it.
    """
    if refused := refused_to_declare(connection, address, dead):
        channel = connection.channel()
        with translated(address):
            try:
                channel.queue_declare(dead, passive=True)
            except ChannelClosedByBroker:
                return refused
            channel.close()
    return ""


def refused_to_read(connection: Any, address: Address, queue: str) -> str:
    """Return why the user may not consume from this queue, which exists; empty: it may."""
    return _refused(
        connection,
        address,
        lambda channel: channel.basic_consume(
            queue, lambda *_: None, arguments={"x-priority": "none"}
        ),
    )


def refused_to_publish(connection: Any, address: Address, exchange: str = "") -> str:
    """Return why the user may not publish to this exchange; empty: it may.

    Raises ExchangeMissingError.
    """

    def publish(channel: Any) -> None:
        channel.confirm_delivery()
        # RabbitMQ refuses a message with such an expiration before it routes it.
        properties = pika.BasicProperties(expiration="none")
        key = f"tiercel-check-{secrets.token_hex(8)}"
        channel.basic_publish(exchange, key, b"", properties, mandatory=True)

    return _refused(connection, address, publish)


def refused_to_bind(connection: Any, address: Address, queue: str, exchange: str) -> str:
    """Return why the user may not bind the queue to the exchange; both exist; empty: it may."""
    key = f"tiercel-check-{secrets.token_hex(8)}"
    # Removing a binding needs the rights that adding it does, and this one does not exist.
    return _refused(connection, address, lambda channel: channel.queue_unbind(queue, exchange, key))


def _refused(connection: Any, address: Address, call: Callable[[Any], object]) -> str:
    channel = connection.channel()
    with translated(address):
        try:
            call(channel)
        except ChannelClosedByBroker as error:
            meant = translate(error, address)
            if isinstance(meant, ExchangeMissingError):
                raise meant from error
            return str(meant) if error.reply_code == _ACCESS_REFUSED else ""
        channel.close()
    return ""
