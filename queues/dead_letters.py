"""Looking at the dead letters of a queue, putting them back, throwing them away."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pika.exceptions import ChannelClosedByBroker, NackError, UnroutableError

from queues.address import Address
from queues.burial import QUEUE_HEADER, REASON_HEADER, clean_headers, copy_properties
from queues.connection import connected, translate
from queues.declare import dead_letter_queue
from queues.errors import PublishRefusedError, QueueMissingError
from queues.headers import Headers

log = logging.getLogger(__name__)

BODY_BYTES = 64 * 1024
"""Of a body that is looked at, at most."""
SEARCHED = 10_000
"""How many of the oldest letters are gone through for chosen ones."""
_PREVIEW_BYTES = 200
_TEXT_CHARACTERS = 2_000
_ID_DIGITS = 16
_RETURNED_S = 2.0
_PATIENCE_S = 15.0
_AGAIN_S = 0.25
"""A queue that does not take a message is asked again, so often and for so long."""
_DEATH_HEADERS = ("x-death", "x-first-death-", "x-last-death-", REASON_HEADER, QUEUE_HEADER)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetter:
    """One message in a dead-letter queue."""

    id: str
    """Of what it says: body, properties and headers. Letters that are equal in all of it have one id."""
    queue: str
    """The queue that it comes from."""
    reason: str
    """Why it is dead, in tiercel's words or the broker's."""
    size: int
    """Bytes of its body."""
    preview: str
    """The beginning of its body, printable."""
    body: bytes
    """The first BODY_BYTES of it."""
    headers: Mapping[str, Any]


def show(amqp_url: str, queue: str, limit: int = 20) -> list[DeadLetter]:
    """The oldest dead letters of ``queue``; they stay where they are, and the next look shows the same.

    While they are looked at, nobody else sees them. Raises QueueMissingError, AddressError, BrokerUnavailableError,
    BrokerRefusedError; so do the others here.
    """
    with _dead_letters(amqp_url, queue) as box:
        letters = [_letter(queue, properties, body) for _, properties, body in box.oldest(limit)]
        if letters:
            box.give_back(0)
    return letters


def look_for(amqp_url: str, queue: str, letter_id: str) -> DeadLetter | None:
    """The dead letter with this id, if it is among the oldest SEARCHED; it stays where it is. Others see none meanwhile."""
    with _dead_letters(amqp_url, queue) as box:
        found = None
        for _, properties, body in box.oldest(SEARCHED):
            if _id(properties, body) == letter_id:
                found = _letter(queue, properties, body)
                break
        if box.count:
            box.give_back(0)
    return found


def requeue(amqp_url: str, queue: str, limit: int | None = None, on_moved: Callable[[int], None] = lambda _count: None) -> int:
    """Put the oldest dead letters back into ``queue`` as if they were new; returns how many.

    Each is published with a confirm before it is taken out: one that is interrupted may be in both queues, never in none.
    ``on_moved`` is called with 1 for each. Letters that die again meanwhile are left for the next time. A queue that is full or
    has no leader just now is waited for; raises PublishRefusedError if that takes longer than 15 s.
    """
    moved = 0
    with _dead_letters(amqp_url, queue) as box:
        for tag, properties, body in box.oldest(limit):
            box.put(queue, properties, body, moved)
            box.channel.basic_ack(tag)
            moved += 1
            on_moved(1)
    return moved


def requeue_chosen(
    amqp_url: str, queue: str, chosen: Collection[str], on_moved: Callable[[int], None] = lambda _count: None
) -> int:
    """As ``requeue``, but only letters with these ids, one for each, if they are among the oldest SEARCHED; returns how many.

    The letters between them are held meanwhile, so that nobody else sees them; RabbitMQ has them behind those that were
    looked at before and in front of the rest afterwards. One that is not found (somebody took it, or looks at it now) is
    passed over.
    """
    wanted, moved, held = Counter(chosen), 0, 0
    with _dead_letters(amqp_url, queue) as box:
        for tag, properties, body in box.oldest(SEARCHED if chosen else 0):
            letter = _id(properties, body)
            if not wanted[letter]:
                held += 1
                continue
            box.put(queue, properties, body, moved)
            box.channel.basic_ack(tag)
            wanted[letter] -= 1
            moved += 1
            on_moved(1)
            if moved == len(chosen):
                break
        if held:
            box.give_back(moved)
    return moved


def purge(amqp_url: str, queue: str) -> int:
    """Delete all dead letters of ``queue`` for good; returns how many."""
    with _dead_letters(amqp_url, queue) as box:
        return int(box.channel.queue_purge(box.name).method.message_count)


class _Box:
    """A dead-letter queue that is there."""

    def __init__(self, connection: Any, channel: Any, name: str) -> None:
        self.channel = channel
        self.name = name
        self.count = 0
        """Of the messages that waited in it when the first of them was got."""
        self._connection = connection
        self._outlet: Any = None
        """A channel to publish over."""

    def oldest(self, most: int | None) -> Iterator[tuple[int, Any, bytes]]:
        """Get them one by one, as (delivery tag, properties, body), of those that waited at the first.

        The first of them says how many wait, not a passive declare: to that RabbitMQ answers 0 for a quorum queue whose leader
        is silent for 250 ms.
        """
        got = 0
        while most is None or got < most:
            method, properties, body = self.channel.basic_get(self.name)
            if method is None:
                return
            if got == 0:
                self.count = method.message_count + 1
                most = self.count if most is None else min(most, self.count)
            got += 1
            yield method.delivery_tag, properties, body

    def put(self, queue: str, properties: Any, body: bytes, before: int) -> None:
        """Returns when the broker has confirmed that it is in ``queue``; ``before`` of its kind are there already."""
        until = time.monotonic() + _PATIENCE_S
        while (refusal := self._offer(queue, properties, body)) is not None:
            if time.monotonic() > until:
                raise PublishRefusedError(
                    f"queue {queue!r} did not take message {before + 1} for {_PATIENCE_S:.0f} s; it is full or unavailable",
                    before,
                ) from refusal
            # Over a new channel, for one that met a queue between two leaders may go on asking the dead one.
            self._outlet.close()
            self._outlet = None
            self._connection.sleep(_AGAIN_S)

    def _offer(self, queue: str, properties: Any, body: bytes) -> NackError | None:
        if self._outlet is None:
            self._outlet = self._connection.channel()
            self._outlet.confirm_delivery()
        try:
            self._outlet.basic_publish("", queue, body, _as_new(properties), mandatory=True)
        except UnroutableError as error:
            raise QueueMissingError(f"there is no queue {queue!r} to put the messages back into; declare it first") from error
        except NackError as error:
            return error
        return None

    def give_back(self, moved: int) -> None:
        """Let go of what was got and not acked, by the end of the channel.

        A quorum queue then has them in front of those that nobody got. With ``basic.nack``, which is made for it, RabbitMQ
        before 4.3 puts them behind: the next look would show other letters. They are there a moment after the channel is
        closed, so this waits for them; not for long, for somebody may take them at once.
        """
        self.channel.close()
        channel, until = self._connection.channel(), time.monotonic() + _RETURNED_S
        while time.monotonic() < until:
            if channel.queue_declare(self.name, passive=True).method.message_count >= self.count - moved:
                return
            self._connection.sleep(0.02)


@contextmanager
def _dead_letters(amqp_url: str, queue: str) -> Iterator[_Box]:
    address = Address.parse(amqp_url)
    name = dead_letter_queue(queue)
    with connected(address, "tiercel dead-letters") as connection:
        channel = connection.channel()
        try:
            channel.queue_declare(name, passive=True)
        except ChannelClosedByBroker as error:
            refusal = translate(error, address)
            if isinstance(refusal, QueueMissingError):
                raise QueueMissingError(
                    f"queue {queue!r} has no dead letters on {address}: there is no queue {name!r}; check the name"
                ) from error
            raise refusal from error
        yield _Box(connection, channel, name)


def _as_new(properties: Any) -> Any:
    """The properties without a trace of its death; says so if headers must be left out."""
    headers = Headers.of(properties.headers)
    if headers.unreadable:
        log.warning(
            "a message goes back without the headers that cannot be read: %s",
            headers.unreadable,
            extra={"event": "headers_left_out"},
        )
    return copy_properties(properties, clean_headers(headers).without(lambda name: name.startswith(_DEATH_HEADERS)))


def _id(properties: Any, body: bytes) -> str:
    """A digest of what the letter says; what RabbitMQ counts with each delivery is not in it.

    Of the values, not of their bytes: RabbitMQ writes the headers anew when it counts a delivery, some in another type.
    """
    said = vars(properties) | {"headers": sorted(clean_headers(properties.headers).items())}
    digest = hashlib.blake2b(body, digest_size=_ID_DIGITS // 2)
    digest.update(repr((len(body), sorted(said.items()))).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _letter(queue: str, properties: Any, body: bytes) -> DeadLetter:
    headers = Headers.of(properties.headers)
    return DeadLetter(
        id=_id(properties, body),
        queue=_text(headers.get(QUEUE_HEADER) or headers.get("x-first-death-queue") or queue),
        reason=_reason(headers),
        size=len(body),
        preview=_printable(body),
        body=body[:BODY_BYTES],
        headers=dict(headers),
    )


def _reason(headers: Headers) -> str:
    if headers.unreadable:
        return f"unknown; its headers cannot be read: {headers.unreadable}"
    if headers.get(REASON_HEADER):
        return _text(headers[REASON_HEADER])
    deaths = headers.get("x-death")
    if isinstance(deaths, list) and deaths and isinstance(deaths[0], dict):
        why = _text(deaths[0].get("reason", "unknown"))
    else:
        why = _text(headers.get("x-last-death-reason") or headers.get("x-first-death-reason") or "")
    return _BROKER_REASONS.get(why, why or "unknown")


_BROKER_REASONS = {
    "delivery_limit": "delivery_limit: delivered too often",
    "rejected": "rejected by a consumer",
    "expired": "expired: its time to live was over",
    "maxlen": "maxlen: the queue was full",
}


def _text(value: Any) -> str:
    """A header's value as text, of a length that a line can show: a publisher may have written anything there."""
    if isinstance(value, bytes):
        value = value[:_TEXT_CHARACTERS].decode("utf-8", "backslashreplace")
    return (value if isinstance(value, str) else str(value))[:_TEXT_CHARACTERS]


def _printable(body: bytes) -> str:
    text = body[:_PREVIEW_BYTES].decode("utf-8", "replace")
    return "".join(character if character.isprintable() else " " for character in text)
