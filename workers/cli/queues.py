"""The commands about queues: ``publish``, ``peek``, ``dead-letters``.

Without an address they use the private servers of a ``tiercel run`` on this machine, if there is
one. If there are several, ``--run`` chooses, or the run whose topology has the queue.
"""

from __future__ import annotations

import base64
import codecs
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from tiercel.queues.broker.declare import WorkQueue, declare_queue, find_exchange, work_queue
from tiercel.queues.broker.frames import Headers
from tiercel.queues.errors import BadBodyError, BadPropertyError
from tiercel.queues.message.writing import OutgoingMessage, write_headers, write_properties
from tiercel.queues.nouns import counted
from tiercel.queues.peek import Peeked, QueuedMessage
from tiercel.queues.peek import peek as read_first
from tiercel.queues.publishing import dead_letters as letters
from tiercel.queues.publishing.copies import REASON_HEADER
from tiercel.queues.publishing.publisher import Publisher
from tiercel.queues.values.json_values import read_json
from tiercel.spark_jobs.logs.formatters import redact
from tiercel.workers.cli.options import Amqp, Run, found_settings
from tiercel.workers.control.steering import log_action, this_user
from tiercel.workers.errors import UsageError
from tiercel.workers.monitoring.screen import table_of
from tiercel.workers.monitoring.tables import DEAD, MESSAGES, body_text, count
from tiercel.workers.terminal import say

QueueName = Annotated[
    str, typer.Argument(help="the queue that the messages came from, without .dead")
]

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

_MOST_PEEKED = 1_000

commands = typer.Typer()
dead_letters = typer.Typer(
    help="Look at what could not be processed, put it back, or throw it away.", no_args_is_help=True
)
commands.add_typer(dead_letters, name="dead-letters")


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
    amqp: Amqp = None,
    run: Run = None,
) -> None:
    """Publish files into a queue or an exchange; the broker confirms each message."""
    queue, files = _place_and_files(places, exchange, routing_key)
    settings = found_settings(run=run, queues=[] if queue is None else [queue], amqp=amqp).required(
        "amqp"
    )

    envelopes = Envelopes(
        exchange=exchange or "",
        routing_key=queue or routing_key,
        headers=headers_of(header or ()),
        priority=priority,
        message_id_from=message_id_from,
    )
    published = publish_files(settings.amqp or "", envelopes, files, whole=whole)
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
            return None
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

    Raises UsageError for an unreadable file, and for a body without the requested message id;
    earlier messages stay published. Raises QueuesError.
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
    """Yield the numbered messages of a file: its non-empty lines, or with ``whole`` all of it."""
    try:
        with sys.stdin.buffer if str(file) == "-" else file.open("rb") as lines:
            if whole:
                yield 1, lines.read()
            else:
                texts = (line.rstrip(b"\r\n") for line in lines)
                yield from enumerate(filter(None, texts), 1)
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error


@commands.command()
def peek(  # noqa: PLR0913 - one parameter an option
    queue: Annotated[str, typer.Argument(help="any queue; dead letters are in QUEUE.dead")],
    *,
    limit: Annotated[
        int, typer.Option(min=1, max=_MOST_PEEKED, help="show at most this many, the first")
    ] = 10,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway", help="look even if that counts against the queue's own delivery limit"
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="one JSON object per message, each on its own line")
    ] = False,
    amqp: Amqp = None,
    run: Run = None,
) -> None:
    """Look at the first messages of a queue; they stay in it, in their order.

    Meanwhile no consumer gets them: stderr says for how long.
    """
    settings = found_settings(run=run, queues=[work_queue(queue)], amqp=amqp).required("amqp")

    found = read_first(settings.amqp or "", queue, limit, anyway=anyway)
    if as_json:
        for message in found.messages:
            say(json.dumps(_as_json(message)))
    elif found.messages:
        Console().print(table_of(MESSAGES, found.messages))
    say(_cost(queue, found), err=True)


def _as_json(message: QueuedMessage) -> dict[str, Any]:
    said = {
        "position": message.position,
        "came_back": message.came_back,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "properties": dict(message.properties),
        "headers": {
            name: redact(value) if name == REASON_HEADER and value else value
            for name, value in message.headers.items()
        },
        "bytes": message.size,
    }
    try:
        # The body may be cut in the middle of a character.
        whole = len(message.body) == message.size
        text = codecs.getincrementaldecoder("utf-8")().decode(message.body, final=whole)
    except UnicodeDecodeError:
        return {**said, "body_base64": base64.b64encode(message.body).decode()}
    return {**said, "body": text}


def _cost(queue: str, found: Peeked) -> str:
    """Describe the cost of a peek, and the messages that it could not show."""
    shared = f"; messages held by its {counted(found.consumers, 'consumer')} are not shown"
    if not found.messages:
        return f"no message waits in {queue}{shared if found.consumers else ''}"
    effect = "; RabbitMQ counts it as a delivery of each" if found.counted else ""
    return (
        f"{count(len(found.messages))} of {count(found.waiting)} messages that waited in {queue}; "
        f"no consumer had them for {found.away_s:.2f} s{effect}{shared if found.consumers else ''}"
    )


@dead_letters.command()
def show(
    queue: QueueName,
    limit: Annotated[int, typer.Option(min=1, help="show at most this many, the oldest")] = 20,
    amqp: Amqp = None,
    run: Run = None,
) -> None:
    """Show the oldest dead letters of a queue and why they are dead; they stay where they are."""
    settings = found_settings(run=run, queues=[queue], amqp=amqp).required("amqp")

    found = letters.show(settings.amqp or "", queue, limit)
    if not found:
        say(f"{queue} has no dead letters")
        return
    Console().print(table_of(DEAD, found))


@dead_letters.command()
def read(
    queue: QueueName,
    letter: Annotated[str, typer.Argument(metavar="ID", help="its id, as show prints it")],
    amqp: Amqp = None,
    run: Run = None,
) -> None:
    """Show the body of one dead letter, at most 64 KiB of it; what is not text in hexadecimal."""
    settings = found_settings(run=run, queues=[queue], amqp=amqp).required("amqp")

    found = letters.look_for(settings.amqp or "", queue, letter)
    if found is None:
        raise UsageError(_not_among(letter, queue))
    say(body_text(found.body, found.size)[1])


@dead_letters.command()
def requeue(
    queue: QueueName,
    chosen: Annotated[
        list[str] | None,
        typer.Option(
            "--id",
            metavar="ID",
            help="only this one, by the id that show prints; repeat it for more",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="without --id: at most this many, the oldest; by default all"),
    ] = None,
    amqp: Amqp = None,
    run: Run = None,
) -> None:
    """Put dead letters back into their queue as if they were new."""
    settings = found_settings(run=run, queues=[queue], amqp=amqp).required("amqp")

    url = settings.amqp or ""
    if chosen:
        ids = letters.requeue_chosen(url, queue, chosen)
        moved = len(ids)
        missing = list((Counter(chosen) - Counter(ids)).elements())
    else:
        moved = letters.requeue(url, queue, limit)
        missing = []
    put = f"put {counted(moved, 'message')} back"
    log_action("requeue", queue, put, this_user())
    if moved or not missing:
        say(f"{put} into {queue}")
    if missing:
        raise UsageError(_not_among(", ".join(missing), queue))


@dead_letters.command()
def purge(
    queue: QueueName,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="delete without asking first")] = False,
    amqp: Amqp = None,
    run: Run = None,
) -> None:
    """Delete the dead letters of a queue for good."""
    settings = found_settings(run=run, queues=[queue], amqp=amqp).required("amqp")

    if not yes:
        typer.confirm(f"Delete all dead letters of {queue} for good?", abort=True)
    deleted = letters.purge(settings.amqp or "", queue)
    done = f"deleted {counted(deleted, 'dead letter')}"
    log_action("purge", queue, done, this_user())
    say(f"{done} of {queue}")


def _not_among(ids: str, queue: str) -> str:
    return (
        f"{ids} is not among the oldest {letters.SEARCHED:,} dead letters of {queue}; "
        f"tiercel dead-letters show {queue}"
    )
