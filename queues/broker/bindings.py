"""Binding a queue to exchanges, which are made where they are missing.

An exchange that exists is used as it is. The types are explained here:
https://www.rabbitmq.com/tutorials/amqp-concepts#exchanges
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pika.data import encode_table
from pika.exceptions import ChannelClosedByBroker

from tiercel.queues.broker.address import Address
from tiercel.queues.broker.arguments import PRECONDITION_FAILED
from tiercel.queues.broker.connection import UNENCODABLE, connected, translate
from tiercel.queues.errors import ExchangeMissingError

log = logging.getLogger(__name__)

_NAME_BYTES = 255
_ACCESS_REFUSED = 403
_FORM = (
    'write ("exchange", "routing.key"), ("exchange", {"header": "value"}) or ("exchange",), with '
    "the type of the exchange behind it if that is to be made and is not topic, headers or fanout"
)
_TYPE = re.compile(r"inequivalent arg 'type' for exchange .* but current is '?([\w-]+)'?")


@dataclass(frozen=True, kw_only=True)
class Binding:
    """A queue's wish for the messages of one exchange."""

    exchange: str
    routing_key: str = ""
    # Headers that a message must have, for a headers exchange.
    headers: Mapping[str, Any] = field(default_factory=dict)
    # Of the exchange, if it is made.
    type: str = "topic"

    @classmethod
    def of(cls, given: Sequence[Any]) -> Binding:
        """Take (exchange, routing key or headers, type); raises ValueError.

        The type is headers where headers are given, fanout without a routing key, else topic, which
        is direct too where the key is no pattern.
        """
        if isinstance(given, str) or not isinstance(given, Sequence) or not 1 <= len(given) <= 3:
            raise ValueError(f"{given!r:.80} is no binding: {_FORM}")
        exchange = given[0]
        key = given[1] if len(given) > 1 else ""
        type_ = given[2] if len(given) > 2 else None
        headers = key if isinstance(key, Mapping) else {}
        routing_key = "" if isinstance(key, Mapping) else key
        inferred = "headers" if headers else "topic" if routing_key else "fanout"
        texts = (exchange, routing_key, inferred if type_ is None else type_)
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{given!r:.80} is no binding: {_FORM}")
        if any(len(text.encode()) > _NAME_BYTES for text in texts):
            raise ValueError(f"a binding has names of at most {_NAME_BYTES} bytes: {given!r:.80}")
        if not exchange:
            raise ValueError(
                "a binding names an exchange; by the default exchange each queue gets what is "
                "published under its name"
            )
        _check_headers(headers)
        return cls(exchange=exchange, routing_key=routing_key, headers=dict(headers), type=texts[2])

    def misfit(self, type_: str) -> str:
        """Return how an exchange of this type would misunderstand it; empty if it does not."""
        if type_ == "headers" and not self.headers:
            return "a headers exchange ignores routing keys, and sends all its messages"
        if type_ != "headers" and self.headers:
            return f"a {type_} exchange ignores headers, and looks at routing keys alone"
        if type_ == "direct" and set(self.routing_key) & set("*#"):
            return "a direct exchange knows no patterns, and takes the key as it is"
        return ""


def bind(connection: Any, address: Address, queue: str, bindings: Sequence[Binding]) -> None:
    """Bind a queue that is there; idempotent. ``connection`` is a ``BlockingConnection``.

    Raises ExchangeMissingError for an exchange that is missing and may not be made,
    BrokerRefusedError.
    """
    for binding in bindings:
        found = _declare(connection, address, binding)
        misfit = "" if found is None else binding.misfit(found)
        if misfit:
            log.warning(
                "queue %s is bound to exchange %s, which is there already: %s",
                queue,
                binding.exchange,
                misfit,
                extra={"event": "binding_misfit", "queue": queue},
            )
        try:
            connection.channel().queue_bind(
                queue, binding.exchange, binding.routing_key, arguments=dict(binding.headers)
            )
        except ChannelClosedByBroker as error:
            raise translate(error, address) from error


def _declare(connection: Any, address: Address, binding: Binding) -> str | None:
    """Make sure that the exchange is there; returns its type, None if that is not told."""
    try:
        connection.channel().exchange_declare(binding.exchange, binding.type, durable=True)
    except ChannelClosedByBroker as error:
        if error.reply_code == PRECONDITION_FAILED and (
            said := _TYPE.search(str(error.reply_text))
        ):
            return said[1]
        if error.reply_code not in (PRECONDITION_FAILED, _ACCESS_REFUSED):
            raise translate(error, address) from error
        # It has other properties, or may not be made by this user: then it must be there.
        try:
            _look(connection, address, binding.exchange)
        except ExchangeMissingError:
            if error.reply_code == PRECONDITION_FAILED:
                # There is no such type.
                raise translate(error, address) from error
            raise
        return None
    return binding.type


def find_exchange(amqp_url: str, exchange: str, patience: timedelta = timedelta(0)) -> None:
    """Look for an exchange over a connection of its own.

    Raises ExchangeMissingError, AddressError, BrokerUnavailableError, BrokerRefusedError.
    """
    address = Address.parse(amqp_url)
    with connected(address, "tiercel declare", patience) as connection:
        _look(connection, address, exchange)


def _look(connection: Any, address: Address, exchange: str) -> None:
    """Raise ExchangeMissingError if there is no such exchange."""
    try:
        connection.channel().exchange_declare(exchange, passive=True)
    except ChannelClosedByBroker as error:
        raise translate(error, address) from error


def _check_headers(headers: Mapping[str, Any]) -> None:
    for name, value in headers.items():
        try:
            encode_table([], {name: value})
        except UNENCODABLE:
            raise ValueError(
                f"a binding looks for headers that are texts, whole numbers, true or false: not "
                f"{name!r:.80} = {value!r:.80}"
            ) from None
