"""The commands about queues: ``publish``, ``dead-letters``.

Without an address they talk to the private servers of a ``tiercel run`` on this machine,
if there is one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from tiercel.queues.broker.declare import WorkQueue, declare_queue
from tiercel.queues.publishing import dead_letters as letters
from tiercel.queues.publishing.publisher import Publisher
from tiercel.workers.cli.options import Amqp, found_settings
from tiercel.workers.control.audit import log_action, this_user
from tiercel.workers.errors import UsageError
from tiercel.workers.monitoring.screen import letter_table
from tiercel.workers.monitoring.wording import body_text
from tiercel.workers.terminal import say

QueueName = Annotated[
    str, typer.Argument(help="the queue whose dead letters they are, without .dead")
]

commands = typer.Typer()
dead_letters = typer.Typer(
    help="Look at what could not be processed, put it back, or throw it away.", no_args_is_help=True
)
commands.add_typer(dead_letters, name="dead-letters")


@commands.command()
def publish(
    queue: Annotated[str, typer.Argument(help="declared if there is none")],
    files: Annotated[
        list[Path], typer.Argument(help="text files, one message per line; - for standard input")
    ],
    *,
    whole: Annotated[bool, typer.Option("--whole", help="one message per file")] = False,
    amqp: Amqp = None,
) -> None:
    """Publish files into a queue; each message is confirmed by the broker."""
    settings = found_settings(amqp=amqp).required("amqp")

    total = sum(_size(file) for file in files)
    url = settings.amqp or ""
    declare_queue(url, WorkQueue(name=queue))
    with (
        Progress(console=Console(stderr=True), transient=True) as progress,
        Publisher(url) as publisher,
    ):
        bar = progress.add_task(f"publishing to {queue}", total=total or None)

        def bodies() -> Iterator[bytes]:
            for file in files:
                for body in _bodies(file, whole=whole):
                    progress.advance(bar, len(body) + 1)
                    yield body

        count = publisher.publish(queue, bodies())
    say(f"published {count} messages to {queue}")


@dead_letters.command()
def show(
    queue: QueueName,
    limit: Annotated[int, typer.Option(min=1, help="at most this many, the oldest")] = 20,
    amqp: Amqp = None,
) -> None:
    """Show the oldest dead letters of a queue and why they are dead; they stay where they are."""
    settings = found_settings(amqp=amqp).required("amqp")

    found = letters.show(settings.amqp or "", queue, limit)
    if not found:
        say(f"{queue} has no dead letters")
        return
    Console().print(letter_table(found))


@dead_letters.command()
def read(
    queue: QueueName,
    letter: Annotated[str, typer.Argument(metavar="ID", help="as show says it")],
    amqp: Amqp = None,
) -> None:
    """Show the body of one dead letter, at most 64 KiB of it; what is not text in hexadecimal."""
    settings = found_settings(amqp=amqp).required("amqp")

    found = letters.look_for(settings.amqp or "", queue, letter)
    if found is None:
        raise UsageError(
            f"{letter} is not among the oldest {letters.SEARCHED:,} dead letters of {queue}; "
            f"tiercel dead-letters show {queue}"
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
    settings = found_settings(amqp=amqp).required("amqp")

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
    settings = found_settings(amqp=amqp).required("amqp")

    if not yes:
        typer.confirm(f"Delete all dead letters of {queue} for good?", abort=True)
    deleted = letters.purge(settings.amqp or "", queue)
    log_action("purge", queue, f"deleted {deleted} dead letters", this_user())
    say(f"deleted {deleted} dead letters of {queue}")


def _size(file: Path) -> int:
    if str(file) == "-":
        return 0
    try:
        return file.stat().st_size
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error


def _bodies(file: Path, *, whole: bool) -> Iterator[bytes]:
    """The messages of a file: its lines without the line ends, blank ones left
    out, or all of it.
    """
    try:
        with sys.stdin.buffer if str(file) == "-" else file.open("rb") as lines:
            if whole:
                yield lines.read()
            else:
                yield from filter(None, (line.rstrip(b"\r\n") for line in lines))
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
