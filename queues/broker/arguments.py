"""The arguments of a queue that is there.

AMQP has no call that tells them. A declaration with other arguments is refused, though, and the
refusal names one that differs and its value: so they are learnt one by one, by declaring again with
each that was named. What a policy adds is told by none of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pika.exceptions import ChannelClosedByBroker

PRECONDITION_FAILED = 406

TYPE = "x-queue-type"
LIMIT = "x-delivery-limit"

# No queue has this delivery limit, so that a declaration with it is always refused: it neither
# makes nor changes a queue.
_NO_LIMIT = 1_999_999_999
_ROUNDS = 40
_REFUSAL = re.compile(
    r"inequivalent arg '(?P<name>[^']+)' for queue .* but current is"
    r" (?:none|(?:the value )?'(?P<value>.*?)'(?: of type '(?P<type>\w+)')?)$"
)
_OLD_PROPERTIES = ("durable", "auto_delete", "exclusive")


def read_arguments(connection: Any, name: str) -> Mapping[str, Any] | None:
    """Return what the queue, which must be there, was declared with; None where that is not told.

    RabbitMQ does not tell it to a user without the permission to configure, nor where the queue's
    name is too long for the refusal's 255 bytes. Of queues other than quorum queues only the type
    is read. ``connection`` is a ``BlockingConnection``.
    """
    known: dict[str, Any] = {TYPE: "quorum", LIMIT: _NO_LIMIT}
    for _ in range(_ROUNDS):
        refusal = _refusal(connection, name, known)
        if refusal is None:
            return _checked(connection, name, known)
        said = _REFUSAL.search(refusal)
        if said is None:
            return None
        argument = said["name"]
        value = _value(said["value"], said["type"])
        if argument == TYPE or argument in _OLD_PROPERTIES:
            # Quorum queues are durable, and neither exclusive nor deleted by themselves.
            return MappingProxyType({TYPE: value if argument == TYPE and value else "classic"})
        if argument == LIMIT and known[LIMIT] == _NO_LIMIT:
            known |= {LIMIT: None if value is None else int(value)}
        elif argument in known or value is None:
            return None
        else:
            known[argument] = value
    return None


def _refusal(connection: Any, name: str, known: Mapping[str, Any]) -> str | None:
    """Declare it; None if these are its arguments, an empty text if refused for other reasons."""
    arguments = {argument: value for argument, value in known.items() if value is not None}
    try:
        connection.channel().queue_declare(name, durable=True, arguments=arguments)
    except ChannelClosedByBroker as error:
        return str(error.reply_text) if error.reply_code == PRECONDITION_FAILED else ""
    return None


def _checked(connection: Any, name: str, known: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if known[LIMIT] == _NO_LIMIT:
        # The queue was deleted a moment ago, and this declaration has made one that is not wanted.
        connection.channel().queue_delete(name, if_unused=True, if_empty=True)
        return None
    return MappingProxyType(
        {argument: value for argument, value in known.items() if value is not None}
    )


def _value(text: str | None, kind: str | None) -> Any:
    if text is None or kind in (None, "longstr"):
        return text
    return text == "true" if kind == "bool" else int(text) if text.lstrip("-").isdecimal() else text
