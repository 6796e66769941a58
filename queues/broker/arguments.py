"""A look for a queue, and the arguments of an existing one.

AMQP has no call that returns these. But a declaration with other arguments is refused, and the
refusal names one argument that differs and its value. So they are learnt one by one, by declaring
again with each named argument. Settings of policies are not included.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from pika.exceptions import ChannelClosedByBroker

ACCESS_REFUSED = 403
RESOURCE_LOCKED = 405
PRECONDITION_FAILED = 406

TYPE = "x-queue-type"
LIMIT = "x-delivery-limit"
# Properties of a queue that are not arguments, by their names in a refusal.
DURABLE = "durable"
AUTO_DELETE = "auto_delete"

# No queue has this delivery limit or this priority, so a declaration with it is refused if the
# queue exists.
_PROBES: Mapping[str, tuple[str, int]] = {
    "quorum": (LIMIT, 1_999_999_999),
    "classic": ("x-max-priority", -1),
}
_ROUNDS = 40
_REFUSAL = re.compile(
    r"inequivalent arg '(?P<name>[^']+)' for queue .* but current is"
    r" (?:none|(?:the value )?'(?P<value>.*?)'(?: of type '(?P<type>\w+)')?)$"
)


def dead_lettering_to(queue: str) -> dict[str, Any]:
    """Return the arguments of a quorum queue whose messages end in ``queue``."""
    return {
        TYPE: "quorum",
        # The default exchange routes to the queue of that name, with nothing in between that could
        # be missing or misbound.
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": queue,
        # A message stays until ``queue`` has confirmed it; this needs reject-publish, even without
        # a limit.
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }


def look(connection: Any, name: str) -> ChannelClosedByBroker | None:
    """Look for a queue; return None if it is there, or else RabbitMQ's refusal, whose code is
    ``RESOURCE_LOCKED`` for a queue that only another connection may read.
    """
    try:
        with _silent():
            connection.channel().queue_declare(name, passive=True)
    except ChannelClosedByBroker as error:
        return error
    return None


@contextmanager
def _silent() -> Iterator[None]:
    """Keep pika from warning of a refusal in this thread: it is an answer here."""
    mine = threading.get_ident()

    def of_others(record: logging.LogRecord) -> bool:
        return record.thread != mine

    pikas = logging.getLogger("pika.channel")
    pikas.addFilter(of_others)
    try:
        yield
    finally:
        pikas.removeFilter(of_others)


def read_arguments(connection: Any, name: str) -> Mapping[str, Any] | None:
    """Return the arguments of an existing queue; None if RabbitMQ does not reveal them.

    ``durable`` and ``auto_delete`` are among them. RabbitMQ does not reveal them to a user without
    the configure permission, or if the queue's name is too long for the refusal's 255 bytes. Some
    arguments of a stream are not read. ``connection`` is a ``BlockingConnection``.
    """
    properties = {DURABLE: True, AUTO_DELETE: False}
    probe, impossible = _PROBES["quorum"]
    known: dict[str, Any] = {TYPE: "quorum", probe: impossible}
    for _ in range(_ROUNDS):
        refusal = _refusal(connection, name, properties, known)
        if refusal is None and known.get(probe) != impossible:
            break
        if refusal is None:
            # The queue was deleted a moment ago, and this declaration has created one.
            connection.channel().queue_delete(name)
            return None
        if (said := _REFUSAL.search(refusal)) is None:
            return None
        argument, value = said["name"], _value(said["value"], said["type"])
        if argument in properties:
            properties[argument] = value in (True, "true")
        elif argument == TYPE:
            known[TYPE] = value or "classic"
            known.pop(probe)
            if known[TYPE] not in _PROBES:
                break
            probe, impossible = _PROBES[known[TYPE]]
            known.setdefault(probe, impossible)
        elif argument == probe and known[probe] == impossible:
            known[probe] = None if value is None else int(value)
        elif argument in known or value is None:
            return None
        else:
            known[argument] = value
    else:
        return None
    return MappingProxyType({**properties, **_given(known)})


def _refusal(
    connection: Any, name: str, properties: Mapping[str, bool], known: Mapping[str, Any]
) -> str | None:
    """Declare the queue and return the refusal: None if the arguments match, empty if it has other
    reasons.
    """
    try:
        connection.channel().queue_declare(name, arguments=_given(known), **properties)
    except ChannelClosedByBroker as error:
        return str(error.reply_text) if error.reply_code == PRECONDITION_FAILED else ""
    return None


def _given(known: Mapping[str, Any]) -> dict[str, Any]:
    return {argument: value for argument, value in known.items() if value is not None}


def _value(text: str | None, kind: str | None) -> Any:
    if text is None or kind in (None, "longstr"):
        return text
    return text == "true" if kind == "bool" else int(text) if text.lstrip("-").isdecimal() else text
