"""Identity of a message over all of its deliveries: its id, a header, or its body.

RabbitMQ gives messages no identity. A delivery tag belongs to the channel, and a message that is
published twice is two messages to the broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

from tiercel.queues.broker.frames import Headers
from tiercel.queues.message.properties import SINCE_HEADER, checked_sender, header_texts

# The parts of a message that may identify it.
WANTED = '"message_id", "header:NAME" or "body", or ["user_id", one of these]'
# The counter of messages without an identity, in a spout that has ``identity`` set.
NO_IDENTITY = "no_identity"
_HEADER = "header:"
_MARK = SINCE_HEADER.encode()
_SECONDS_DIGITS = 12


class Identity(NamedTuple):
    """Identity of a message, as given by its spout.

    * ``id``: the same at each delivery, and no other message's.
    * ``content``: 128 bits of a digest of the body, which tell two messages with one id apart; 0:
      nothing does.
    * ``since``: seconds since the epoch, from which on it may have been processed; 0: from its
      delivery on.
    * ``short``: 32 bits of another digest of the body, for messages that a version without
      ``content`` remembered.
    """

    id: bytes
    content: int = 0
    since: int = 0
    short: int = 0


# Text or bytes are an id without the other parts.
Identified = Identity | str | bytes


class Identifiable(Protocol):
    """The parts of a delivery that are needed here."""

    body: bytes
    # As pika's ``BasicProperties``.
    properties: Any


def as_identity(given: Identified) -> Identity:
    """Return the identity given by a spout, with its id as bytes."""
    if isinstance(given, Identity):
        return given
    if isinstance(given, str):
        return Identity(given.encode("utf-8", "surrogatepass"))
    if isinstance(given, bytes):
        return Identity(given)
    raise ValueError(
        f"a message is identified by text or bytes, not by {given!r:.50}; None: by nothing"
    )


def identity_reader(
    wanted: str | Sequence[str], user: str | None = None
) -> Callable[[Any], Identity | None]:
    """Return a function from a delivery to its identity, or None if it has none.

    ``wanted`` is "message_id", "header:NAME" or "body"; or ["user_id", one of these], which
    includes the publisher's user, as checked by RabbitMQ. ``user`` is our own. Raises ValueError
    for anything else.
    """
    if isinstance(wanted, (list, tuple)):
        if len(wanted) != 2 or wanted[0] != "user_id" or not isinstance(wanted[1], str):
            raise ValueError(f"identity must be {WANTED}, not {wanted!r:.60}")
        read = identity_reader(wanted[1])
        return lambda found: _of_sender(checked_sender(found.properties, user), read(found))
    if wanted == "body":
        return _by_body
    if wanted == "message_id":
        return lambda found: _by_id(found, found.properties.message_id)
    if isinstance(wanted, str) and wanted.startswith(_HEADER) and wanted != _HEADER:
        name = wanted.removeprefix(_HEADER)
        return lambda found: _by_id(found, _header(found.properties, name))
    raise ValueError(f"identity must be {WANTED}, not {wanted!r:.60}")


def _of_sender(sender: str | None, identity: Identity | None) -> Identity | None:
    """Return the identity extended by this user; None if there is no user."""
    if sender is None or identity is None:
        return None
    # With the length first, no two pairs of user and id look the same.
    name = sender.encode("utf-8", "surrogatepass")
    return identity._replace(id=b"%d %b %b" % (len(name), name, identity.id))


def _by_body(found: Identifiable) -> Identity:
    """Identify a message by its body; ``content`` is not needed to tell messages apart."""
    return Identity(blake2b(found.body, digest_size=32).digest(), 0, _since(found.properties))


def _by_id(found: Identifiable, named: str | bytes | None) -> Identity | None:
    if not named:
        return None
    body = found.body
    content = int.from_bytes(blake2b(body, digest_size=16).digest())
    short = int.from_bytes(blake2b(body, digest_size=4).digest()) or 1
    return Identity(as_identity(named).id, content, _since(found.properties), short)


def _header(properties: Any, name: str) -> str | bytes | None:
    value = (properties.headers or {}).get(name)
    if value is None or isinstance(value, (str, bytes)):
        return value
    return header_texts({name: value}).get(name)


def _since(properties: Any) -> int:
    """Return the time from which a message may have been processed: when it was published or, for a
    dead letter that was put back, when it died. 0 if neither is known: from its delivery on.
    """
    published, died = properties.timestamp, None
    headers = properties.headers
    # Searching the bytes is cheaper than reading the headers.
    if headers is not None and not (isinstance(headers, Headers) and _MARK not in headers.wire):
        died = _seconds(headers.get(SINCE_HEADER))
    if published is None and died is None:
        return 0
    now = time.time()
    since = published if isinstance(published, int) and 0 < published < now else 0
    return min(since or died, died) if died is not None and 0 < died < now else since


def _seconds(mark: Any) -> int | None:
    """Read the seconds that tiercel wrote; None for anything else, which a sender set."""
    # Python refuses to read a number of more than 4,300 digits.
    if isinstance(mark, str) and len(mark) <= _SECONDS_DIGITS and mark.isdecimal():
        return int(mark)
    return None
