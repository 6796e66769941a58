"""The command ``publish``.

Without an address it uses the private servers of a ``tiercel run`` on this machine, if there is
one. If there are several, ``--run`` chooses, or the run whose topology has the queue.
"""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from tiercel.queues.broker.declare import WorkQueue, declare_queue, find_exchange
from tiercel.queues.broker.frames import Headers
from tiercel.queues.errors import BadBodyError, BadPropertyError
from tiercel.queues.message.writing import OutgoingMessage, write_headers, write_properties
from tiercel.queues.nouns import counted
from tiercel.queues.publishing.publisher import Publisher
from tiercel.queues.retry import QUEUE_BYTES, is_queue_name
from tiercel.queues.values.json_values import read_json
from tiercel.workers.cli.options import Amqp, Run, broker_of
from tiercel.workers.errors import UsageError
from tiercel.workers.terminal import say

Places = Annotated[
    list[str],
    typer.Argument(
        metavar="[QUEUE] FILES...",
        help="the queue, which is declared if it is missing, and text files with one message per "
        "line; - is standard input. With --exchange: files only",
    ),
]
Exchange = Annotated[str | None, typer.Option(help="publish to this exchange, which must exist")]
RoutingKey = Annotated[
    str, typer.Option(metavar="KEY", help="with --exchange: the routing key of all messages")
]
Header = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="a header of all messages; repeat it for more"),
]
Priority = Annotated[int | None, typer.Option(min=0, max=255, help="the priority of all messages")]
MessageIdFrom = Annotated[
    str | None,
    typer.Option(
        metavar="FIELD", help="take the message id from this member of each body, a JSON object"
    ),
]
MessageId = Annotated[
    str | None, typer.Option(metavar="ID", help="the message id of the only message")
]

commands = typer.Typer()


@commands.command()
def publish(  # noqa: PLR0913 - a command has its options
    places: Places,
    *,
    whole: Annotated[
        bool, typer.Option("--whole", help="one message per file, and not one per line")
    ] = False,
    exchange: Exchange = None,
    routing_key: RoutingKey = "",
    header: Header = None,
    priority: Priority = None,
    message_id_from: MessageIdFrom = None,
    message_id: MessageId = None,
    amqp: Amqp = None,
    run: Run = None,
) -> None:
    """Publish files into a queue or an exchange; the broker confirms each message."""
    queue, files = _place_and_files(places, exchange, routing_key)
    if message_id is not None and message_id_from is not None:
        raise UsageError("--message-id is one id, --message-id-from one of each: choose one")
    url = broker_of(queue, amqp=amqp, run=run)
    envelopes = Envelopes(
        exchange=exchange or "",
        routing_key=queue or routing_key,
        headers=headers_of(header or ()),
        priority=priority,
        message_id_from=message_id_from,
        message_id=message_id,
    )
    published = publish_files(url, envelopes, files, whole=whole)
    say(f"published {counted(published, 'message')} to {exchange if queue is None else queue}")


def _place_and_files(
    places: list[str], exchange: str | None, routing_key: str
) -> tuple[str | None, list[Path]]:
    """Return the queue, which is None with an exchange, and the files."""
    queue, files = (places[0], places[1:]) if exchange is None else (None, places)
    if exchange is None and routing_key:
        raise UsageError(
            "--routing-key is for --exchange: a message reaches a queue by the queue's name"
        )
    if exchange is not None and not exchange:
        raise UsageError("--exchange needs a name; without it the first argument is a queue")
    if queue is not None and not is_queue_name(queue):
        raise UsageError(
            f"a queue has a name of 1 to {QUEUE_BYTES} bytes, without line breaks, not "
            f"{queue!r:.50}"
        )
    if not files:
        raise UsageError(f"nothing to publish to {queue}: name a file, or - for standard input")
    return queue, [Path(file) for file in files]


@dataclass(frozen=True, kw_only=True)
class Envelopes:
    """The properties and the address of messages, without their bodies."""

    # Empty for the default exchange.
    exchange: str
    # The name of the queue if there is no exchange.
    routing_key: str
    headers: Headers | None
    priority: int | None
    # The member of each body that becomes its message id.
    message_id_from: str | None
    # The message id of the only message.
    message_id: str | None = None

    def around(self, body: bytes, where: str) -> OutgoingMessage:
        """Return a message with this body. Raises UsageError, which names ``where`` the body is."""
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
            return self.message_id
        value = read_json(body)
        if not isinstance(value, dict):
            raise BadBodyError("the body is not a JSON object, so it has no message id")
        found = value.get(self.message_id_from)
        if isinstance(found, str) and found:
            return found
        if isinstance(found, int) and not isinstance(found, bool):
            return str(found)
        raise BadBodyError(
            f"the member {self.message_id_from!r} of the body is not a text or a whole number, as "
            "a message id must be"
        )


def headers_of(texts: Sequence[str]) -> Headers | None:
    """Parse headers given as NAME=VALUE; return None if there are none. Raises UsageError."""
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
    """Publish the messages in the files; return their number.

    All files are checked before the first message is sent; only standard input and other streams
    are read once. Raises UsageError for an unreadable file, and for a body without the requested
    message id; messages before it in a stream stay published. Raises QueuesError.
    """
    total = sum(_size(file) for file in files)
    source = _source(envelopes, files, whole=whole)
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
            for before, (body, where) in enumerate(source):
                progress.advance(bar, len(body) + 1)
                try:
                    message = envelopes.around(body, where)
                except UsageError as error:
                    raise UsageError(f"{error}; {_published(before)}") from error
                yield message

        return publisher.publish_all(messages())


def _source(
    envelopes: Envelopes, files: Sequence[Path], *, whole: bool
) -> Iterable[tuple[bytes, str]]:
    """Return the bodies with their places, after a check of all that can be read twice."""
    found = (
        (body, f"{file}, message {number}")
        for file in files
        for number, body in _bodies(file, whole=whole)
    )
    if envelopes.message_id is not None:
        some = list(islice(found, 2))
        if len(some) != 1:
            there = "no message" if not some else "more than one message"
            raise UsageError(f"--message-id is the id of one message, and there is {there}")
        return some
    if envelopes.message_id_from is not None:
        for file in filter(Path.is_file, files):
            _check(envelopes, file, whole=whole)
    return found


def _check(envelopes: Envelopes, file: Path, *, whole: bool) -> None:
    """Raise UsageError, which names the first bad message of a file and counts the others."""
    first: UsageError | None = None
    others = 0
    for number, body in _bodies(file, whole=whole):
        try:
            envelopes.around(body, f"{file}, message {number}")
        except UsageError as error:
            others += first is not None
            first = first or error
    if first is not None:
        more = f"; {counted(others, 'other message')} of the file cannot be sent either"
        raise UsageError(f"{first}{more if others else ''}; nothing was published")


def _published(number: int) -> str:
    if not number:
        return "nothing was published"
    return (
        f"{counted(number, 'message')} before it went out: correct it, and publish the rest alone, "
        "or those are published twice"
    )


def _size(file: Path) -> int:
    if str(file) == "-":
        return 0
    try:
        return file.stat().st_size
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error


def _bodies(file: Path, *, whole: bool) -> Iterator[tuple[int, bytes]]:
    """Yield the numbered messages of a file: its non-empty lines, or with ``whole`` all of it.

    A byte order mark before the first line, as Windows' editors write, is no part of its message.
    """
    try:
        with sys.stdin.buffer if str(file) == "-" else file.open("rb") as lines:
            if whole:
                yield 1, lines.read()
            else:
                first = lines.readline().removeprefix(codecs.BOM_UTF8)
                texts = (line.rstrip(b"\r\n") for line in chain([first], lines))
                yield from enumerate(filter(None, texts), 1)
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
