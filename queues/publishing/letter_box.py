"""A dead-letter queue that is open: getting its letters, leaving them, replacing them.

Looking is a delivery, and a quorum queue with a delivery limit deletes messages that were delivered
too often: a queue declared before RabbitMQ 4 and upgraded (the limit is 20 from then on), or one
that a policy covers, even where its argument says -1. AMQP does not tell the limit, so this stays
far from any. From 4.3 on letters are given back in a way that does not count. Where it counts, and
where a process died in the middle of a look, a letter that was given back ``RETURNS`` times is
replaced by a copy behind the others, which begins at 0. No limit of ``RETURNS`` or more ever
deletes a letter that is looked at.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pika.exceptions import ChannelClosedByBroker, NackError, UnroutableError

from tiercel.queues.broker.address import Address
from tiercel.queues.broker.connection import connected, translate
from tiercel.queues.broker.declare import check_server, dead_letter_queue
from tiercel.queues.broker.headers import Headers
from tiercel.queues.broker.open_queue import FREE_NACK_SINCE, OpenQueue
from tiercel.queues.errors import PublishRefusedError, QueueMissingError
from tiercel.queues.publishing.dead_letter_copy import clean_headers, copy_properties

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
