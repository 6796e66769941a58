"""The headers of a message as text, for a column ``map<string,string>``.

Numbers are written as they are, true and false as in JSON, moments in ISO 8601, byte arrays in
base64, tables and arrays as JSON. Text that is not UTF-8 is a byte array.
"""

from __future__ import annotations

import base64
import json
import struct
import time
from collections.abc import Mapping
from datetime import date
from typing import Any

from tiercel.queues.broker.headers import Headers
from tiercel.queues.errors import BadPropertyError
from tiercel.queues.retry import FAILURES_HEADER

# RabbitMQ's own: its counts, and the queues that it sends copies to.
BROKER_HEADERS = frozenset(("x-delivery-count", "x-acquired-count", "CC", "BCC"))
# Of a message that was dead-lettered or delayed, and came by the default exchange since: exchange
# and routing key that it was published with.
EXCHANGE_HEADER = "x-tiercel-exchange"
ROUTING_KEY_HEADER = "x-tiercel-routing-key"
# Beginnings of the headers in which RabbitMQ says why it moved a message to another queue.
DEATH_HEADERS = ("x-death", "x-first-death-", "x-last-death-")
# When it died first or was wanted later first, in seconds since the epoch: when it comes again it
# may be older than the memory of its like.
SINCE_HEADER = "x-tiercel-since"
# Of a copy that tiercel made: the user that RabbitMQ checked when the original was published.
SENDER_HEADER = "x-tiercel-user"
_NOT_ITS_OWN = BROKER_HEADERS | {
    EXCHANGE_HEADER,
    ROUTING_KEY_HEADER,
    FAILURES_HEADER,
    SINCE_HEADER,
    SENDER_HEADER,
}
_SENDER_NAME = SENDER_HEADER.encode()
_EXCHANGE_NAME = EXCHANGE_HEADER.encode()
_TEXT = ord("S")
_NUMBERS = {
    ord(kind): struct.Struct(form) for kind, form in (("t", ">?"), ("I", ">i"), ("l", ">q"))
}


def header_texts(headers: Mapping[str, Any] | None) -> dict[str, str | None]:
    """Return the message's own headers; raises BadPropertyError if they cannot be read.

    Headers that RabbitMQ keeps for itself are left out. A header without a value is None.
    """
    if headers is None:
        return {}  # most messages have none, and to ask for its type takes longer
    if not isinstance(headers, Headers):
        return _texts(headers)
    try:
        return _plain_texts(headers.wire) if headers.wire else _any_texts(headers)
    except (LookupError, ValueError, struct.error):
        # There is another type among them, or no type at all.
        return _any_texts(headers)


def since_header(headers: Mapping[str, Any]) -> dict[str, str]:
    """Return the header that says since when a message may have had effects; none if there is one
    already: the first time counts.
    """
    return {} if SINCE_HEADER in headers else {SINCE_HEADER: str(int(time.time()))}


def published_with(headers: Mapping[str, Any] | None) -> tuple[str, str] | None:
    """Read the values that ``published_headers`` wrote; None where there are none."""
    if headers is None or (isinstance(headers, Headers) and _EXCHANGE_NAME not in headers.wire):
        return None  # to look is cheaper than to read them, or to ask if there are any
    exchange = headers.get(EXCHANGE_HEADER)
    routing_key = headers.get(ROUTING_KEY_HEADER)
    if not isinstance(exchange, str):
        return None
    return exchange, routing_key if isinstance(routing_key, str) else ""


def checked_sender(properties: Any, user: str | None) -> str | None:
    """Return the user that RabbitMQ checked when the message was published; None if it had none.

    A copy has the user of the connection that made it. Where that is ``user``, our own, the
    original's user is in a header; from any other user such a header counts for nothing.
    """
    sender = properties.user_id
    if not sender:
        return None
    headers = properties.headers
    if sender != user or headers is None:
        return near_text(sender)
    if isinstance(headers, Headers) and _SENDER_NAME not in headers.wire:
        return near_text(sender)  # to look is cheaper than to read them
    told = headers.get(SENDER_HEADER)
    return told if isinstance(told, str) and told else near_text(sender)


def published_headers(exchange: str | bytes, routing_key: str | bytes) -> dict[str, str]:
    """Return the headers that tell where the original of a copy was published; none if it came by
    the default exchange.
    """
    if not exchange:
        return {}
    return {EXCHANGE_HEADER: near_text(exchange), ROUTING_KEY_HEADER: near_text(routing_key)}


def near_text(value: str | bytes) -> str:
    r"""Return text that is not UTF-8, which pika leaves as bytes, with ``\xff`` in it."""
    return value if isinstance(value, str) else value.decode("utf-8", "backslashreplace")


def _plain_texts(wire: bytes) -> dict[str, str | None]:
    """Return the headers of a table of texts, integers and booleans, as most are: in a fifth of the
    time that reading any takes.

    Raises LookupError, ValueError or struct.error for any other table.
    """
    found: dict[str, str | None] = {}
    at = 0
    end = len(wire)
    while at < end:
        kind = at + 1 + wire[at]
        name = wire[at + 1 : kind].decode()
        if wire[kind] == _TEXT:
            at = kind + 5 + int.from_bytes(wire[kind + 1 : kind + 5])
            text = wire[kind + 5 : at].decode()
        else:
            number = _NUMBERS[wire[kind]]
            at = kind + 1 + number.size
            (value,) = number.unpack_from(wire, kind + 1)
            text = _text(value) or ""
        if name not in _NOT_ITS_OWN:
            # Of a name that stands twice, the first.
            found.setdefault(name, text)
    if at > end:
        raise ValueError("it is cut off")
    return found


def _any_texts(headers: Headers) -> dict[str, str | None]:
    if headers.unreadable:
        raise BadPropertyError(f"its headers cannot be read: {headers.unreadable}")
    return _texts(headers)


def _texts(headers: Mapping[str, Any]) -> dict[str, str | None]:
    # After a delay it has the exchange and key of the delay queue.
    not_its_own = DEATH_HEADERS if FAILURES_HEADER in headers else ()
    return {
        name: _text(value)
        for name, value in headers.items()
        if name not in _NOT_ITS_OWN and not name.startswith(not_its_own)
    }


def _text(value: Any) -> str | None:
    if value is None or type(value) is str:
        return value
    if isinstance(value, (dict, list)):
        return _JSON.encode(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return _plain(value)


def _plain(value: Any) -> str:
    """Return a value that is neither text nor nested as text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date) else str(value)  # datetime is a date too


_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_plain)
