"""Publishing files: their messages, and their way to the broker."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from tiercel.queues.broker.bindings import find_exchange
from tiercel.queues.broker.declare import WorkQueue, declare_queue
from tiercel.queues.broker.headers import Headers
from tiercel.queues.errors import BadBodyError, BadPropertyError
from tiercel.queues.message.outgoing import OutgoingMessage
from tiercel.queues.message.writing import write_headers, write_properties
from tiercel.queues.publishing.publisher import Publisher
from tiercel.queues.values.json_text import read_json
from tiercel.workers.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Envelopes:
    """Everything about the messages but their bodies."""

    # Empty: the default exchange.
    exchange: str
    # The name of the queue, if there is no exchange.
    routing_key: str
    headers: Headers | None
    priority: int | None
    # The member of each body that is its message id.
    message_id_from: str | None

    def around(self, body: bytes, where: str) -> OutgoingMessage:
        """Return a message; raises UsageError, which says ``where`` the body is from."""
        try:
            properties = write_properties(
                {
                    "priority": self.priority,
                    "message_id": self._message_id(body),
                }
            )
        except (BadBodyError, BadPropertyError) as error:
            raise UsageError(f"{where}: {error}") from error
        properties.headers = self.headers
        return OutgoingMessage(
            body=body, exchange=self.exchange, routing_key=self.routing_key, properties=properties
        )

    def _message_id(self, body: bytes) -> str | None:
        if self.message_id_from is None:
            return None
        value = read_json(body)
        if not isinstance(value, dict):
            raise BadBodyError("the body is no JSON object, so that it has no message id")
        found = value.get(self.message_id_from)
        if isinstance(found, str) and found:
            return found
        if isinstance(found, int) and not isinstance(found, bool):
            return str(found)
        raise BadBodyError(
            f"the member {self.message_id_from!r} of the body is no text and no whole number, "
            "which a message id is"
        )


def headers_of(texts: Sequence[str]) -> Headers | None:
    """Return the headers that are given as NAME=VALUE each, if any are; raises UsageError."""
    headers = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            raise UsageError(f"--header {text!r:.60} is not NAME=VALUE")
        headers[name] = value
    try:
        return write_headers(headers) if headers else None
    except BadPropertyError as error:
        raise UsageError(f"--header: {error}") from error


def publish_files(url: str, envelopes: Envelopes, files: Sequence[Path], *, whole: bool) -> int:
    """Publish the messages of the files; returns how many there were.

    Raises UsageError for a file that cannot be read and for a message that has no such envelope,
    when those before it are in their queues; QueuesError.
    """
    total = sum(_size(file) for file in files)
    if envelopes.exchange:
        find_exchange(url, envelopes.exchange)
    else:
        declare_queue(url, WorkQueue(name=envelopes.routing_key))
    with (
        Progress(console=Console(stderr=True), transient=True) as progress,
        Publisher(url) as publisher,
    ):
        to = envelopes.exchange or envelopes.routing_key
        bar = progress.add_task(f"publishing to {to}", total=total or None)

        def messages() -> Iterator[OutgoingMessage]:
            for file in files:
                for number, body in _bodies(file, whole=whole):
                    progress.advance(bar, len(body) + 1)
                    yield envelopes.around(body, f"{file}, message {number}")

        return publisher.publish_all(messages())


def _size(file: Path) -> int:
    if str(file) == "-":
        return 0
    try:
        return file.stat().st_size
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error


def _bodies(file: Path, *, whole: bool) -> Iterator[tuple[int, bytes]]:
    """The messages of a file, numbered: its lines without the line ends, blank ones left out, or
    all of it.
    """
    try:
        with sys.stdin.buffer if str(file) == "-" else file.open("rb") as lines:
            if whole:
                yield 1, lines.read()
            else:
                texts = (line.rstrip(b"\r\n") for line in lines)
                yield from enumerate(filter(None, texts), 1)
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
