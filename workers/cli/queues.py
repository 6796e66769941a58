"""The commands about queues: ``publish``, ``dead-letters``.

Without an address they talk to the private servers of a ``tiercel run`` on this machine,
if there is one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tiercel.workers.cli.options import Amqp, load_settings
from tiercel.workers.config import Settings
from tiercel.workers.control.audit import log_action, this_user
from tiercel.workers.errors import UsageError
from tiercel.workers.terminal import cell, say

QueueName = Annotated[
    str, typer.Argument(help="the queue whose dead letters they are, without .dead")
]

Places = Annotated[
    list[str],
    typer.Argument(
        metavar="[QUEUE] FILES...",
        help="the queue, declared if there is none; then text files, one message per line, - for "
        "standard input. With --exchange there is no queue",
    ),
]
Exchange = Annotated[str | None, typer.Option(help="publish to this exchange, which must be there")]
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
        metavar="FIELD", help="bodies are JSON objects, of which this member is the message id"
    ),
]

dead_letters = typer.Typer(
    help="Look at what could not be processed, put it back, or throw it away.", no_args_is_help=True
)


def add_to(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.command()(publish)
    app.add_typer(dead_letters, name="dead-letters")


def publish(  # noqa: PLR0913 - a command has its options
    places: Places,
    *,
    whole: Annotated[bool, typer.Option("--whole", help="one message per file")] = False,
    exchange: Exchange = None,
    routing_key: RoutingKey = "",
    header: Header = None,
    priority: Priority = None,
    message_id_from: MessageIdFrom = None,
    amqp: Amqp = None,
) -> None:
    """Publish files into a queue or to an exchange; each message is confirmed by the broker."""
    queue, files = _place_and_files(places, exchange, routing_key)
    settings = _with_broker(amqp)
    from tiercel.workers.cli.publishing import Envelopes, headers_of, publish_files  # noqa: PLC0415 - `--help` should not wait for it

    envelopes = Envelopes(
        exchange=exchange or "",
        routing_key=queue or routing_key,
        headers=headers_of(header or ()),
        priority=priority,
        message_id_from=message_id_from,
    )
    count = publish_files(settings.amqp or "", envelopes, files, whole=whole)
    say(f"published {count} messages to {exchange if queue is None else queue}")


@dead_letters.command()
def show(
    queue: QueueName,
    limit: Annotated[int, typer.Option(min=1, help="at most this many, the oldest")] = 20,
    amqp: Amqp = None,
) -> None:
    """Show the oldest dead letters of a queue and why they are dead; they stay where they are."""
    settings = _with_broker(amqp)
    from rich.console import Console  # noqa: PLC0415 - `--help` should not wait for them
    from rich.table import Table  # noqa: PLC0415

    from tiercel.queues.publishing.dead_letters import show as look  # noqa: PLC0415

    letters = look(settings.amqp or "", queue, limit)
    if not letters:
        say(f"{queue} has no dead letters")
        return
    table = Table("reason", "bytes", "body")
    table.add_column("id", no_wrap=True)
    for letter in letters:
        table.add_row(cell(letter.reason), f"{letter.size:,}", cell(letter.preview), letter.id)
    Console().print(table)


@dead_letters.command()
def read(
    queue: QueueName,
    letter: Annotated[str, typer.Argument(metavar="ID", help="as show says it")],
    amqp: Amqp = None,
) -> None:
    """Show the body of one dead letter, at most 64 KiB of it; what is not text in hexadecimal."""
    settings = _with_broker(amqp)
    from tiercel.queues.publishing.dead_letters import SEARCHED, look_for  # noqa: PLC0415 - `--help` should not wait for it
    from tiercel.workers.monitoring.wording import body_text  # noqa: PLC0415

    found = look_for(settings.amqp or "", queue, letter)
    if found is None:
        raise UsageError(
            f"{letter} is not among the oldest {SEARCHED:,} dead letters of {queue}; tiercel "
            f"dead-letters show {queue}"
        )
    say(body_text(found.body, found.size)[1])


@dead_letters.command()
def requeue(
    queue: QueueName,
    chosen: Annotated[
        list[str] | None,
        typer.Option("--id", metavar="ID", help="only this one, as show says it; may be repeated"),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="without --id: at most this many, the oldest")
    ] = None,
    amqp: Amqp = None,
) -> None:
    """Put dead letters back into their queue as if they were new."""
    settings = _with_broker(amqp)
    from tiercel.queues.publishing import dead_letters as letters  # noqa: PLC0415 - `--help` should not wait for it

    url = settings.amqp or ""
    moved = (
        letters.requeue_chosen(url, queue, chosen) if chosen else letters.requeue(url, queue, limit)
    )
    log_action("requeue", queue, f"put {moved} messages back", this_user())
    say(f"put {moved} messages back into {queue}")


@dead_letters.command()
def purge(
    queue: QueueName,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    amqp: Amqp = None,
) -> None:
    """Delete the dead letters of a queue for good."""
    settings = _with_broker(amqp)
    from tiercel.queues.publishing.dead_letters import purge as delete  # noqa: PLC0415 - `--help` should not wait for it

    if not yes:
        typer.confirm(f"Delete all dead letters of {queue} for good?", abort=True)
    deleted = delete(settings.amqp or "", queue)
    log_action("purge", queue, f"deleted {deleted} dead letters", this_user())
    say(f"deleted {deleted} dead letters of {queue}")


def _with_broker(amqp: str | None, **given: str | None) -> Settings:
    from tiercel.workers.local.addresses import with_announced  # noqa: PLC0415 - next to its only use

    return with_announced(load_settings("tiercel", amqp=amqp, **given)).required("amqp")


def _place_and_files(
    places: list[str], exchange: str | None, routing_key: str
) -> tuple[str | None, list[Path]]:
    """The queue, None with an exchange, and the files."""
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
