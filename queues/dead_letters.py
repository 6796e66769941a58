"""Looking at the dead letters of a queue, putting them back, throwing them away."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pika.exceptions import ChannelClosedByBroker, NackError, UnroutableError

from queues.address import Address
from queues.burial import QUEUE_HEADER, REASON_HEADER, clean_headers, copy_properties
from queues.connection import connected, translate
from queues.declare import dead_letter_queue
from queues.errors import PublishRefusedError, QueueMissingError

_PREVIEW_BYTES = 200
_DEATH_HEADERS = ("x-death", "x-first-death-", "x-last-death-", REASON_HEADER, QUEUE_HEADER)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetter:
    """One message in a dead-letter queue."""

    queue: str
    """The queue that it comes from."""
    reason: str
    """Why it is dead, in tiercel's words or the broker's."""
    size: int
    """Bytes of its body."""
    preview: str
    """The beginning of its body, printable."""
    headers: Mapping[str, Any]


def show(amqp_url: str, queue: str, limit: int = 20) -> list[DeadLetter]:
    """The oldest dead letters of ``queue``; they stay where they are.

    While they are looked at, nobody else sees them. Raises QueueMissingError, AddressError, BrokerUnavailableError,
    BrokerRefusedError; so do the others here.
    """
    letters: list[DeadLetter] = []
    with _dead_letters(amqp_url, queue) as (channel, name, _):
        while len(letters) < limit:
            method, properties, body = channel.basic_get(name)
            if method is None:
                break
            letters.append(_letter(queue, properties.headers or {}, body))
        if letters:
            channel.basic_nack(0, multiple=True, requeue=True)
    return letters


def requeue(amqp_url: str, queue: str, limit: int | None = None, on_moved: Callable[[int], None] = lambda _count: None) -> int:
    """Put the oldest dead letters back into ``queue`` as if they were new; returns how many.

    Each is published with a confirm before it is taken out: one that is interrupted may be in both queues, never in none.
    ``on_moved`` is called with 1 for each. Letters that die again meanwhile are left for the next time. Raises
    PublishRefusedError too.
    """
    moved = 0
    with _dead_letters(amqp_url, queue) as (channel, name, count):
        channel.confirm_delivery()
        while moved < (count if limit is None else min(count, limit)):
            method, properties, body = channel.basic_get(name)
            if method is None:
                break
            headers = {
                key: value for key, value in clean_headers(properties.headers).items() if not key.startswith(_DEATH_HEADERS)
            }
            try:
                channel.basic_publish("", queue, body, copy_properties(properties, headers), mandatory=True)
            except UnroutableError as error:
                raise QueueMissingError(
                    f"there is no queue {queue!r} to put the messages back into; declare it first"
                ) from error
            except NackError as error:
                raise PublishRefusedError(f"queue {queue!r} did not take message {moved + 1}; it is full", moved) from error
            channel.basic_ack(method.delivery_tag)
            moved += 1
            on_moved(1)
    return moved


def purge(amqp_url: str, queue: str) -> int:
    """Delete all dead letters of ``queue`` for good; returns how many."""
    with _dead_letters(amqp_url, queue) as (channel, name, _):
        return int(channel.queue_purge(name).method.message_count)


@contextmanager
def _dead_letters(amqp_url: str, queue: str) -> Iterator[tuple[Any, str, int]]:
    """A channel, the name of the dead-letter queue, and how many messages wait in it."""
    address = Address.parse(amqp_url)
    name = dead_letter_queue(queue)
    with connected(address, "tiercel dead-letters") as connection:
        channel = connection.channel()
        try:
            count = channel.queue_declare(name, passive=True).method.message_count
        except ChannelClosedByBroker as error:
            refusal = translate(error, address)
            if isinstance(refusal, QueueMissingError):
                raise QueueMissingError(
                    f"queue {queue!r} has no dead letters on {address}: there is no queue {name!r}; check the name"
                ) from error
            raise refusal from error
        yield channel, name, count


def _letter(queue: str, headers: Mapping[str, Any], body: bytes) -> DeadLetter:
    return DeadLetter(
        queue=_text(headers.get(QUEUE_HEADER) or headers.get("x-first-death-queue") or queue),
        reason=_reason(headers),
        size=len(body),
        preview=_printable(body),
        headers=dict(headers),
    )


def _reason(headers: Mapping[str, Any]) -> str:
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
    return value if isinstance(value, str) else str(value)


def _printable(body: bytes) -> str:
    text = body[:_PREVIEW_BYTES].decode("utf-8", "replace")
    return "".join(character if character.isprintable() else " " for character in text)
