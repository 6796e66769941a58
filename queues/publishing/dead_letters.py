"""Looking at the dead letters of a queue, putting them back or deleting them, over a dedicated
connection.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import nsmallest
from typing import Any

from pika.exceptions import NackError, UnroutableError

from tiercel.queues.broker.address import Address
from tiercel.queues.broker.connection import connected, translated
from tiercel.queues.broker.declare import check_server
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
from tiercel.queues.retry import FAILURES_HEADER, dead_letter_queue

RETURNS = 3
_PATIENCE_S = 15.0
# Letters fetched at once. Few, since the death of this process counts as a return for each of them,
# until letters that were returned often are replaced.
_AT_ONCE = 64
# Interval and limit of attempts to publish to a queue that does not accept a message.
_AGAIN_S = 0.25


@contextmanager
def dead_letters_of(amqp_url: str, queue: str) -> Iterator[LetterBox]:
    """Open the dead-letter queue of ``queue``; raises the errors of ``show``."""
    address = Address.parse(amqp_url)
    name = dead_letter_queue(queue)
    with connected(address, "tiercel dead-letters") as connection:
        try:
            with translated(address):
                connection.channel().queue_declare(name, passive=True)
        except QueueMissingError as error:
            raise QueueMissingError(
                f"queue {queue!r} has no dead letters on {address}: there is no queue {name!r}; "
                "check the name"
            ) from error
        yield LetterBox(
            connection,
            name,
            address.user,
            nack_counts=check_server(connection, address) < FREE_NACK_SINCE,
        )


class LetterBox(OpenQueue):
    """An existing dead-letter queue."""

    def __init__(self, connection: Any, name: str, user: str, *, nack_counts: bool) -> None:
        super().__init__(connection, name, nack_counts=nack_counts)
        # The user of the connection.
        self.user = user
        # A channel to publish over.
        self._outlet: Any = None
        # Fetched letters that the caller has not seen yet.
        self._unseen: deque[tuple[Any, Any, bytes]] = deque()

    def oldest(self, most: int) -> Iterator[tuple[Any, Any, bytes]]:
        """As ``stretches``, but one letter at a time.

        The caller leaves or acks each letter. It may stop early: ``give_back`` leaves the rest in
        the queue.
        """
        number = 0
        for came in self.stretches(most, longest=_AT_ONCE):
            number += len(came)
            self._unseen.extend(came)
            while self._unseen:
                yield self._unseen.popleft()
        # Other readers have the rest, or the queue's leader was silent: a get waits for the leader.
        yield from self.got(min(most, self.count) - number)

    def put(self, queue: str, properties: Any, body: bytes, before: int) -> None:
        """Publish a letter to ``queue``, and return when the broker has confirmed it.

        ``before`` is the number of equal letters already there.
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
            # Over a new channel: one that met a queue between two leaders may keep asking the dead
            # one.
            self._outlet.close()
            self._outlet = None
            self._connection.sleep(_AGAIN_S)

    def leave(self, method: Any, properties: Any, body: bytes) -> None:
        """Leave a letter in the queue.

        It is given back at the end, or replaced now if it was returned often.
        """
        if _returns(properties) < RETURNS:
            self.hold()
            return
        copy = copy_properties(properties, clean_headers(properties.headers), self.user)
        self.put(self.name, copy, body, 0)
        self.channel.basic_ack(method.delivery_tag)

    def give_back(self, gone: int) -> None:
        """Give back the held letters, and letters that the caller has not seen."""
        while self._unseen:
            self.leave(*self._unseen.popleft())
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
    # A number that the sender set, where RabbitMQ has not counted yet, is gone from the copy.
    count = Headers.of(properties.headers).get("x-delivery-count")
    return count if isinstance(count, int) else 0


log = logging.getLogger(__name__)

# Number of the first letters in the queue that are searched for given ids or reasons.
SEARCHED = 10_000
# Number of the first letters in the queue from which ``show`` returns the oldest: a letter's place
# does not follow its time of death, because a look or an interrupted requeue may put letters behind
# others. Fewer if they exceed the number of bytes.
SORTED = 1_000
_SORTED_BYTES = 64 << 20
_TEXT_CHARACTERS = 2_000
_ID_DIGITS = 16
_DEATH_HEADERS = (
    *DEATH_HEADERS,
    REASON_HEADER,
    QUEUE_HEADER,
    DIED_HEADER,
    FAILURES_HEADER,
)
# Years that the clock of every platform can show.
_YEARS = range(1970, 9999)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetter:
    """One message in a dead-letter queue.

    * ``id``: a digest of body, properties and headers; equal letters have the same id.
    * ``queue``: the queue in which it died.
    * ``reason``: the reason of its death, in tiercel's words or the broker's.
    * ``died``: the time of its death, to the second or better; None: unknown.
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


def show(amqp_url: str, queue: str, limit: int = 20, *, reason: str = "") -> list[DeadLetter]:
    """Return the oldest dead letters of ``queue``, sorted by the time of their death, unknown times
    last; they stay there, and the next look shows the same letters, except for replaced ones.

    ``reason``: only letters whose reason contains this text, in upper or lower case. Finds the
    oldest of the first ``SORTED`` letters in the queue, or ``SEARCHED`` with a reason.

    Meanwhile no other reader sees them. Raises QueueMissingError, AddressError,
    BrokerUnavailableError, BrokerRefusedError; so do the other functions here.
    """
    with dead_letters_of(amqp_url, queue) as box:
        letters = nsmallest(limit, _read(box, queue, limit, reason), _age)
        box.give_back(0)
    return letters


def ids_of(amqp_url: str, queue: str, limit: int | None = None, *, reason: str = "") -> list[str]:
    """Return the ids of the letters that ``show`` would return; without a limit, of all that it
    would search for the reason.
    """
    most = SEARCHED if limit is None else limit
    with dead_letters_of(amqp_url, queue) as box:
        letters = _read(box, queue, most, reason, most_bytes=math.inf)
        # Without the bodies, which may be large.
        found = nsmallest(most, [(_age(one), at, one.id) for at, one in enumerate(letters)])
        box.give_back(0)
    return [letter_id for _, _, letter_id in found]


def _read(
    box: LetterBox, queue: str, limit: int, reason: str, *, most_bytes: float = _SORTED_BYTES
) -> Iterator[DeadLetter]:
    """Yield the letters from which to choose the oldest ``limit``, and leave them in the queue."""
    wanted = reason.casefold()
    size = 0
    for number, (method, properties, body) in enumerate(
        box.oldest(SEARCHED if reason else max(limit, SORTED)), 1
    ):
        box.leave(method, properties, body)
        letter = _letter(queue, properties, body)
        size += len(body)
        if wanted in letter.reason.casefold():
            yield letter
        if not reason and number >= limit and size > most_bytes:
            return


def _age(letter: DeadLetter) -> float:
    """Return the sort key of the oldest letter first, and of unknown ages last."""
    return math.inf if letter.died is None else letter.died.timestamp()


def look_for(amqp_url: str, queue: str, letter_id: str) -> DeadLetter | None:
    """Return the dead letter with this id, if it is among the oldest SEARCHED; it stays there.

    Meanwhile no other reader sees these letters.
    """
    with dead_letters_of(amqp_url, queue) as box:
        found = None
        for method, properties, body in box.oldest(SEARCHED):
            box.leave(method, properties, body)
            if _id(properties, body) == letter_id:
                found = _letter(queue, properties, body)
                break
        box.give_back(0)
    return found


def requeue(amqp_url: str, queue: str, limit: int | None = None) -> int:
    """Put the oldest dead letters back into ``queue`` as if they were new; return their number.

    Each is published with a confirm before it is taken out: after an interruption a letter may be
    in both queues, never in neither. Letters that die again meanwhile stay for the next call. If
    the queue is full or has no leader, publishing is retried; raises PublishRefusedError after
    15 s.
    """
    moved = 0
    with dead_letters_of(amqp_url, queue) as box:
        for letter in box.got(limit):
            _move(box, queue, letter, moved)
            moved += 1
    return moved


def requeue_chosen(amqp_url: str, queue: str, chosen: Collection[str]) -> list[str]:
    """As ``requeue``, but only letters with these ids, one per id, if they are among the oldest
    SEARCHED; return the ids of the letters that were put back.

    The letters between them are held meanwhile, so that no other reader sees them. Afterwards
    RabbitMQ puts them behind letters of earlier looks and in front of the rest. A letter that is
    not found (another reader took it, or is looking at it) is skipped. An empty choice means none.
    """
    return _each_chosen(amqp_url, queue, chosen, _move)


def delete_chosen(amqp_url: str, queue: str, chosen: Collection[str]) -> list[str]:
    """As ``requeue_chosen``, but delete the chosen letters for good."""

    def delete(box: LetterBox, _queue: str, letter: tuple[Any, Any, bytes], _gone: int) -> None:
        box.channel.basic_ack(letter[0].delivery_tag)

    return _each_chosen(amqp_url, queue, chosen, delete)


def _each_chosen(
    amqp_url: str,
    queue: str,
    chosen: Collection[str],
    settle: Callable[[LetterBox, str, tuple[Any, Any, bytes], int], None],
) -> list[str]:
    """Settle the letters with these ids and leave the others; return the ids of the settled."""
    wanted = Counter(chosen)
    settled: list[str] = []
    with dead_letters_of(amqp_url, queue) as box:
        for letter in box.oldest(SEARCHED if chosen else 0):
            letter_id = _id(*letter[1:])
            if not wanted[letter_id]:
                box.leave(*letter)
                continue
            settle(box, queue, letter, len(settled))
            wanted[letter_id] -= 1
            settled.append(letter_id)
            if len(settled) == len(chosen):
                break
        box.give_back(len(settled))
    return settled


def purge(amqp_url: str, queue: str) -> int:
    """Delete all dead letters of ``queue`` for good; return their number."""
    with dead_letters_of(amqp_url, queue) as box:
        return int(box.channel.queue_purge(box.name).method.message_count)


def _move(box: LetterBox, queue: str, letter: tuple[Any, Any, bytes], moved: int) -> None:
    method, properties, body = letter
    try:
        box.put(queue, _as_new(properties, box.user), body, moved)
    except QueuesError:
        # Repeated refusals must not use up a delivery limit either.
        box.leave(*letter)
        box.give_back(moved)
        raise
    box.channel.basic_ack(method.delivery_tag)


def _as_new(properties: Any, user: str) -> Any:
    """Return the properties without a trace of the death, except the time from which the message
    may have had effects; log if headers must be left out.
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
    """Note the time of RabbitMQ's own dead-lettering: from then on there may have been effects."""
    died = None if SINCE_HEADER in headers else _died(headers)
    return Headers() if died is None else Headers.of({SINCE_HEADER: str(int(died.timestamp()))})


def _published(headers: Headers) -> Headers:
    """Return the place of publication of a message that RabbitMQ dead-lettered itself."""
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

    The digest is of the values, not of their bytes: RabbitMQ rewrites the headers when it counts a
    delivery, some with another type.
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
    """Return the time of death from our copy's header, else from the broker's; a publisher may have
    set either.
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
    """Return RabbitMQ's entry for the last dead-lettering of the message."""
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
    """Return a header's value as one line of text: a publisher may have set anything."""
    if isinstance(value, bytes):
        value = value[:_TEXT_CHARACTERS].decode("utf-8", "backslashreplace")
    return (value if isinstance(value, str) else str(value))[:_TEXT_CHARACTERS]
