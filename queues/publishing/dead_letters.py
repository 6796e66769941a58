"""Looking at the dead letters of a queue, putting them back, throwing them away; over one
connection that is open for this alone.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pika.exceptions import ChannelClosedByBroker, NackError, UnroutableError

from tiercel.queues.broker.address import Address
from tiercel.queues.broker.connection import connected, translate
from tiercel.queues.broker.declare import check_server, dead_letter_queue
from tiercel.queues.broker.frames import Headers
from tiercel.queues.errors import PublishRefusedError, QueueMissingError, QueuesError
from tiercel.queues.message.properties import (
    DEATH_HEADERS,
    EXCHANGE_HEADER,
    SINCE_HEADER,
    published_headers,
)
from tiercel.queues.peek import BODY_BYTES, FREE_NACK_SINCE, OpenQueue, preview_of
from tiercel.queues.publishing.copies import (
    DIED_HEADER,
    QUEUE_HEADER,
    REASON_HEADER,
    clean_headers,
    copy_properties,
)
from tiercel.queues.retry import FAILURES_HEADER

RETURNS = 3
_PATIENCE_S = 15.0
# Letters that come at once. Few: until one that came back often is replaced, the death of this
# process counts for it.
_AT_ONCE = 64
# A queue that does not take a message is asked again this often and for this long.
_AGAIN_S = 0.25


@contextmanager
def dead_letters_of(amqp_url: str, queue: str) -> Iterator[LetterBox]:
    """Open the dead-letter queue of ``queue``; raises the errors of ``show``."""
    address = Address.parse(amqp_url)
    name = dead_letter_queue(queue)
    with connected(address, "tiercel dead-letters") as connection:
        try:
            connection.channel().queue_declare(name, passive=True)
        except ChannelClosedByBroker as error:
            refusal = translate(error, address)
            if isinstance(refusal, QueueMissingError):
                raise QueueMissingError(
                    f"queue {queue!r} has no dead letters on {address}: there is no queue "
                    f"{name!r}; check the name"
                ) from error
            raise refusal from error
        yield LetterBox(
            connection,
            name,
            address.user,
            nack_counts=check_server(connection, address) < FREE_NACK_SINCE,
        )


class LetterBox(OpenQueue):
    """A dead-letter queue that is there."""

    def __init__(self, connection: Any, name: str, user: str, *, nack_counts: bool) -> None:
        super().__init__(connection, name, nack_counts=nack_counts)
        # The user of the connection.
        self.user = user
        # A channel to publish over.
        self._outlet: Any = None
        # Letters that came, and that the caller has not seen yet.
        self._unseen: deque[tuple[Any, Any, bytes]] = deque()

    def oldest(self, most: int) -> Iterator[tuple[int, Any, bytes]]:
        """As ``stretches``, one by one, as (delivery tag, properties, body).

        The caller leaves each or acks it; and may stop before the last, for ``give_back`` leaves
        the letters that came beyond it.
        """
        number = 0
        for came in self.stretches(most, longest=_AT_ONCE):
            number += len(came)
            self._unseen.extend(came)
            while self._unseen:
                method, properties, body = self._unseen.popleft()
                yield method.delivery_tag, properties, body
        # Other readers have the rest, or the queue's leader was silent: a get waits for its answer.
        for method, properties, body in self.got(min(most, self.count) - number):
            yield method.delivery_tag, properties, body

    def one_by_one(self, most: int | None) -> Iterator[tuple[int, Any, bytes]]:
        """As ``got``, as (delivery tag, properties, body): for letters that do not stay."""
        for method, properties, body in self.got(most):
            yield method.delivery_tag, properties, body

    def put(self, queue: str, properties: Any, body: bytes, before: int) -> None:
        """Returns when the broker has confirmed that it is in ``queue``.

        ``before`` of its kind are there already.
        """
        until = time.monotonic() + _PATIENCE_S
        while (refusal := self._offer(queue, properties, body)) is not None:
            if time.monotonic() > until:
                raise PublishRefusedError(
                    (
                        f"queue {queue!r} did not take message {before + 1} for {_PATIENCE_S:.0f} "
                        "s; it is full or unavailable"
                    ),
                    before,
                ) from refusal
            # Over a new channel, for one that met a queue between two leaders may go on
            # asking the dead one.
            self._outlet.close()
            self._outlet = None
            self._connection.sleep(_AGAIN_S)

    def leave(self, tag: int, properties: Any, body: bytes) -> None:
        """Leave it in the queue.

        It is given back at the end, or replaced now if it was given back often.
        """
        if _returns(properties) < RETURNS:
            self.hold()
            return
        copy = copy_properties(properties, clean_headers(properties.headers), self.user)
        self.put(self.name, copy, body, 0)
        self.channel.basic_ack(tag)

    def give_back(self, gone: int) -> None:
        """Give back the letters that are held, and letters that the caller has not seen."""
        while self._unseen:
            method, properties, body = self._unseen.popleft()
            self.leave(method.delivery_tag, properties, body)
        super().give_back(gone)

    def _offer(self, queue: str, properties: Any, body: bytes) -> NackError | None:
        if self._outlet is None:
            self._outlet = self._connection.channel()
            self._outlet.confirm_delivery()
        try:
            self._outlet.basic_publish("", queue, body, properties, mandatory=True)
        except UnroutableError as error:
            raise QueueMissingError(
                f"there is no queue {queue!r} to put the messages back into; declare it first"
            ) from error
        except NackError as error:
            return error
        return None


def _returns(properties: Any) -> int:
    # A number that the sender wrote, where RabbitMQ has not counted yet, is gone with the copy.
    count = Headers.of(properties.headers).get("x-delivery-count")
    return count if isinstance(count, int) else 0


log = logging.getLogger(__name__)

# Number of the oldest letters that are searched for chosen ones.
SEARCHED = 10_000
_TEXT_CHARACTERS = 2_000
_ID_DIGITS = 16
_DEATH_HEADERS = (
    *DEATH_HEADERS,
    REASON_HEADER,
    QUEUE_HEADER,
    DIED_HEADER,
    FAILURES_HEADER,
)
# Years of a death that every platform's clock can show.
_YEARS = range(1970, 9999)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetter:
    """One message in a dead-letter queue.

    * ``id``: a digest of body, properties and headers; letters that are equal in all of these have
      the same id.
    * ``queue``: the queue that it comes from.
    * ``reason``: the reason of its death, in tiercel's words or the broker's.
    * ``died``: the time of its death, to the second or better; None: not known.
    * ``size``: bytes of its body.
    * ``preview``: the beginning of its body, printable.
    * ``body``: the first 64 KiB of its body.
    * ``headers``: its headers.
    """

    id: str
    queue: str
    reason: str
    died: datetime | None
    size: int
    preview: str
    body: bytes
    headers: Mapping[str, Any]


def show(amqp_url: str, queue: str, limit: int = 20) -> list[DeadLetter]:
    """Return the oldest dead letters of ``queue``; they stay there, and the next look shows the
    same, except for replaced ones.

    While they are looked at, no other reader sees them. Raises QueueMissingError, AddressError,
    BrokerUnavailableError, BrokerRefusedError; so do the others here.
    """
    with dead_letters_of(amqp_url, queue) as box:
        letters = []
        for tag, properties, body in box.oldest(limit):
            letters.append(_letter(queue, properties, body))
            box.leave(tag, properties, body)
        box.give_back(0)
    return letters


def look_for(amqp_url: str, queue: str, letter_id: str) -> DeadLetter | None:
    """The dead letter with this id, if it is among the oldest SEARCHED; it stays where it is.

    Others see none meanwhile.
    """
    with dead_letters_of(amqp_url, queue) as box:
        found = None
        for tag, properties, body in box.oldest(SEARCHED):
            box.leave(tag, properties, body)
            if _id(properties, body) == letter_id:
                found = _letter(queue, properties, body)
                break
        box.give_back(0)
    return found


def requeue(
    amqp_url: str,
    queue: str,
    limit: int | None = None,
    on_moved: Callable[[int], None] = lambda _count: None,
) -> int:
    """Put the oldest dead letters back into ``queue`` as if they were new; returns their number.

    Each is published with a confirm before it is taken out: an interrupted letter may be in both
    queues, never in none. ``on_moved`` is called with 1 for each. Letters that die again meanwhile
    are left for the next time. A queue that is full or has no leader just now is waited for; raises
    PublishRefusedError if that takes longer than 15 s.
    """
    moved = 0
    with dead_letters_of(amqp_url, queue) as box:
        for tag, properties, body in box.one_by_one(limit):
            _move(box, queue, (tag, properties, body), moved)
            moved += 1
            on_moved(1)
    return moved


def requeue_chosen(
    amqp_url: str,
    queue: str,
    chosen: Collection[str],
    on_moved: Callable[[int], None] = lambda _count: None,
) -> list[str]:
    """As ``requeue``, but only letters with these ids, one for each, if they are among the oldest
    SEARCHED; returns the ids of the letters that went.

    The letters between them are held meanwhile, so that no other reader sees them; RabbitMQ has
    them behind letters that were looked at before and in front of the rest afterwards. A letter
    that is not found (another reader took it, or is looking at it) is passed over.
    """
    wanted = Counter(chosen)
    moved: list[str] = []
    with dead_letters_of(amqp_url, queue) as box:
        for tag, properties, body in box.oldest(SEARCHED if chosen else 0):
            letter = _id(properties, body)
            if not wanted[letter]:
                box.leave(tag, properties, body)
                continue
            _move(box, queue, (tag, properties, body), len(moved))
            wanted[letter] -= 1
            moved.append(letter)
            on_moved(1)
            if len(moved) == len(chosen):
                break
        box.give_back(len(moved))
    return moved


def purge(amqp_url: str, queue: str) -> int:
    """Delete all dead letters of ``queue`` for good; returns their number."""
    with dead_letters_of(amqp_url, queue) as box:
        return int(box.channel.queue_purge(box.name).method.message_count)


def _move(box: LetterBox, queue: str, letter: tuple[int, Any, bytes], moved: int) -> None:
    tag, properties, body = letter
    try:
        box.put(queue, _as_new(properties, box.user), body, moved)
    except QueuesError:
        # To be refused again and again must not use up a delivery limit either.
        box.leave(tag, properties, body)
        box.give_back(moved)
        raise
    box.channel.basic_ack(tag)


def _as_new(properties: Any, user: str) -> Any:
    """The properties without a trace of its death, but for since when it may have had effects; says
    so if headers must be left out.
    """
    headers = Headers.of(properties.headers)
    if headers.unreadable:
        log.warning(
            "a message goes back without the headers that cannot be read: %s",
            headers.unreadable,
            extra={"event": "headers_left_out"},
        )
    kept = clean_headers(headers).without(lambda name: name.startswith(_DEATH_HEADERS))
    return copy_properties(properties, _since(headers).plus(_published(headers)).plus(kept), user)


def _since(headers: Headers) -> Headers:
    """Return since when it may have had effects, where only its death is told: of RabbitMQ."""
    died = None if SINCE_HEADER in headers else _died(headers)
    return Headers() if died is None else Headers.of({SINCE_HEADER: str(int(died.timestamp()))})


def _published(headers: Headers) -> Headers:
    """Return where a message was published that RabbitMQ dead-lettered itself."""
    death = _last_death(headers)
    if death is None or EXCHANGE_HEADER in headers:
        return Headers()
    exchange = death.get("exchange")
    keys = death.get("routing-keys")
    key = keys[0] if isinstance(keys, list) and keys else ""
    if not isinstance(exchange, str) or not isinstance(key, str):
        return Headers()
    return Headers.of(published_headers(exchange, key))


def _id(properties: Any, body: bytes) -> str:
    """Return a digest of the letter, without the headers in which RabbitMQ counts deliveries.

    Of the values, not of their bytes: RabbitMQ writes the headers anew when it counts a delivery,
    some in another type.
    """
    headers = clean_headers(properties.headers)
    said = vars(copy_properties(properties, headers)) | {"headers": sorted(headers.items())}
    digest = hashlib.blake2b(body, digest_size=_ID_DIGITS // 2)
    digest.update(repr((len(body), sorted(said.items()))).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _letter(queue: str, properties: Any, body: bytes) -> DeadLetter:
    headers = Headers.of(properties.headers)
    return DeadLetter(
        id=_id(properties, body),
        queue=_text(headers.get(QUEUE_HEADER) or headers.get("x-first-death-queue") or queue),
        reason=_reason(headers),
        died=_died(headers),
        size=len(body),
        preview=preview_of(body),
        body=body[:BODY_BYTES],
        headers=dict(headers),
    )


def _reason(headers: Headers) -> str:
    if headers.unreadable:
        return f"unknown; its headers cannot be read: {headers.unreadable}"
    if headers.get(REASON_HEADER):
        return _text(headers[REASON_HEADER])
    death = _last_death(headers)
    if death is not None:
        why = _text(death.get("reason", "unknown"))
    else:
        why = _text(headers.get("x-last-death-reason") or headers.get("x-first-death-reason") or "")
    return _BROKER_REASONS.get(why, why or "unknown")


def _died(headers: Headers) -> datetime | None:
    """Return the moment that our copy tells, else the broker's; a publisher may have written
    either.
    """
    told = headers.get(DIED_HEADER) or (_last_death(headers) or {}).get("time")
    if isinstance(told, str):
        try:
            told = datetime.fromisoformat(told)
        except ValueError:
            return None
    if not isinstance(told, datetime) or told.year not in _YEARS:
        return None
    return told if told.tzinfo else told.replace(tzinfo=UTC)


def _last_death(headers: Headers) -> dict[str, Any] | None:
    """Return RabbitMQ's entry for the last time that it dead-lettered the message."""
    deaths = headers.get("x-death")
    death = deaths[0] if isinstance(deaths, list) and deaths else None
    return death if isinstance(death, dict) else None


_BROKER_REASONS = {
    "delivery_limit": "delivery_limit: delivered too often",
    "rejected": "rejected by a consumer",
    "expired": "expired: its time to live was over",
    "maxlen": "maxlen: the queue was full",
}


def _text(value: Any) -> str:
    """A header's value as text of one line: a publisher may have written anything."""
    if isinstance(value, bytes):
        value = value[:_TEXT_CHARACTERS].decode("utf-8", "backslashreplace")
    return (value if isinstance(value, str) else str(value))[:_TEXT_CHARACTERS]
