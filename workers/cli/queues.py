"""The commands about queues: ``publish``, ``dead-letters``.

Without an address they talk to the private servers of a ``tiercel run`` on this machine, if there
is one: of several, to those of ``--run``, or of the topology that has the queue.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tiercel.queues.nouns import counted
from tiercel.queues.publishing import dead_letters as letters
from tiercel.workers.cli.options import Amqp, Run, found_settings
from tiercel.workers.cli.publishing import Envelopes, headers_of, publish_files
from tiercel.workers.control.audit import log_action, this_user
from tiercel.workers.errors import UsageError
from tiercel.workers.monitoring.screen import letter_table
from tiercel.workers.monitoring.wording import body_text
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
    count = publish_files(settings.amqp or "", envelopes, files, whole=whole)
    say(f"published {counted(count, 'message')} to {exchange if queue is None else queue}")


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
    Console().print(letter_table(found))


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
