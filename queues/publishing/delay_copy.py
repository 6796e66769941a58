"""Moving a message to a delay queue, from where RabbitMQ moves it back when its time has come.

It is copied with a publisher confirm, and acknowledged only then. A crash in between leaves the
copy and the original: the message comes twice, and is never lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from pika import BasicProperties

from tiercel.queues.broker.address import Address
from tiercel.queues.broker.delays import delay_arguments, delay_ms, delay_queue
from tiercel.queues.errors import MessageTooLargeError, PublishRefusedError, QueuesError
from tiercel.queues.message.header_text import published_headers, since_header
from tiercel.queues.message.properties import Arrived
from tiercel.queues.publishing.dead_letter_copy import (
    FRAME_BYTES,
    clean_headers,
    copy_properties,
    size_of,
)
from tiercel.queues.publishing.outlet import Outlet
from tiercel.queues.publishing.publication import Publication
from tiercel.queues.retry import FAILURES_HEADER


class DelayWriter:
    """Copies messages of one queue to its delay queues; connects when the first one comes."""

    def __init__(self, address: Address, queue: str) -> None:
        self._address = address
        self._queue = queue
        self._outlet: Outlet | None = None

    def copy(
        self,
        message: Arrived,
        seconds: float,
        failures: int,
        done: Callable[[QueuesError | None], None],
    ) -> None:
        """Copy it with its ``failures``: to RabbitMQ the copy is a new message.

        ``done`` is called once with None when a delay queue has it, on another thread if it was
        sent.
        """
        published = published_headers(message.exchange, message.routing_key)
        copy = delay_properties(message.properties, failures, published, self._address.user)
        if size_of(copy) > FRAME_BYTES:
            done(MessageTooLargeError("its headers leave no room for the number of its failures"))
            return
        if self._outlet is None or self._outlet.error is not None:
            self._outlet = Outlet(self._address, f"tiercel delays of {self._queue}")
        outlet = self._outlet
        milliseconds = delay_ms(seconds)
        publication = Publication(
            "",
            delay_queue(self._queue, milliseconds),
            message.body,
            copy,
            done,
            arguments=delay_arguments(self._queue, milliseconds),
        )

        def first_try(error: QueuesError | None) -> None:
            if isinstance(error, PublishRefusedError):
                # The queue was deleted: the outlet declares it again. Or our user has another name.
                plain = delay_properties(message.properties, failures, published)
                outlet.submit(replace(publication, properties=plain))
            else:
                done(error)

        outlet.submit(replace(publication, done=first_try))

    def close(self, timeout_s: float) -> None:
        """Wait for copies on their way, at most this long, then end."""
        if self._outlet is not None:
            self._outlet.drain(timeout_s)
            self._outlet.close(1.0)


def delay_properties(
    properties: Any,
    failures: int,
    published: Mapping[str, str] = MappingProxyType({}),
    user: str | None = None,
) -> BasicProperties:
    """Return the properties of the copy: the original's, persistent, with the number of failures so
    far, the place where it was published, and the time since which it may have had effects.

    Without ``x-death``: RabbitMQ 3 takes a message for one that goes round, and drops it, if that
    names the work queue, where it is about to move it. ``copy_properties`` says which properties no
    copy has.
    """
    headers = clean_headers(properties.headers).without(lambda name: name == "x-death")
    told = {**published, **since_header(headers), FAILURES_HEADER: failures}
    return copy_properties(properties, headers.plus(told), user)
