"""How many messages wait, are being worked on, and are dead."""

from __future__ import annotations

import base64
import json
import logging
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from pika.exceptions import ChannelClosedByBroker

from queues.address import Address
from queues.connection import connected, translate
from queues.declare import dead_letter_queue
from queues.errors import AddressError, QueueMissingError

log = logging.getLogger(__name__)

_TIMEOUT_S = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueDepth:
    """One queue at one moment."""

    name: str
    ready: int
    """Messages that wait."""
    unacked: int | None
    """Messages that are delivered and not settled; None without the management interface, AMQP does not tell."""
    delayed: int | None
    """Failed messages that RabbitMQ (4.3 or newer) delivers again after their back-off: neither ready nor unacked. None
    without the management interface."""
    consumers: int
    dead_lettered: int | None
    """Messages in its dead-letter queue; None if it has none."""


def depths(amqp_url: str, names: Sequence[str], management_url: str | None = None) -> list[QueueDepth]:
    """The depths of these queues, in this order.

    ``management_url`` is like ``http://host:15672``; user and password are those of the AMQP URL unless it has its own. Its
    numbers are some seconds old, so it is only asked for what AMQP does not tell. Raises QueueMissingError,
    AddressError, BrokerUnavailableError, BrokerRefusedError.
    """
    address = Address.parse(amqp_url)
    with connected(address, "tiercel depths") as connection:
        found = []
        for name in names:
            work, dead = _look(connection, address, name), _look(connection, address, dead_letter_queue(name))
            if work is None:
                raise QueueMissingError(f"there is no queue {name!r} on {address}; publish to it or start its topology first")
            found.append((name, work, dead))
    result = []
    for name, work, dead in found:
        more = None if management_url is None else _managed(management_url, address, name)
        result.append(
            QueueDepth(
                name=name,
                ready=work[0],
                unacked=None if more is None else _count(more.get("messages_unacknowledged")),
                delayed=None if more is None else _count(more.get("messages_delayed", 0)),
                consumers=work[1],
                dead_lettered=None if dead is None else dead[0],
            )
        )
    return result


def _look(connection: Any, address: Address, name: str) -> tuple[int, int] | None:
    """How many messages are ready, how many consumers there are; None if there is no such queue."""
    channel = connection.channel()
    try:
        method = channel.queue_declare(name, passive=True).method
    except ChannelClosedByBroker as error:
        refusal = translate(error, address)
        if isinstance(refusal, QueueMissingError):
            return None
        raise refusal from error
    channel.close()
    return method.message_count, method.consumer_count


def _managed(management_url: str, address: Address, name: str) -> dict[str, Any] | None:
    """What the management interface says; None if it does not answer."""
    request = _request(management_url, address, name)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310 - only http and https get here
            found = json.load(response)
    except (OSError, ValueError) as error:
        log.debug("no answer from the management interface: %s", error, extra={"event": "management_unavailable"})
        return None
    return found if isinstance(found, dict) else None


def _count(found: object) -> int | None:
    return found if isinstance(found, int) else None


def _request(management_url: str, address: Address, name: str) -> urllib.request.Request:
    parts = urlsplit(management_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise AddressError("the management URL must look like http://host:15672")
    host = parts.netloc.rpartition("@")[2]
    user = unquote(parts.username) if parts.username else address.user
    password = unquote(parts.password or "") if parts.username else address.password
    path = f"{parts.path.rstrip('/')}/api/queues/{quote(address.vhost, safe='')}/{quote(name, safe='')}"
    login = base64.b64encode(f"{user}:{password}".encode()).decode()
    return urllib.request.Request(  # noqa: S310 - checked above
        f"{parts.scheme}://{host}{path}", headers={"Authorization": f"Basic {login}"}
    )
