"""The commands about queues: ``peek``, ``dead-letters``.

Without an address they use the private servers of a ``tiercel run`` on this machine, if there is
one. If there are several, ``--run`` chooses, or the run whose topology has the queue.
"""

from __future__ import annotations

import base64
import codecs
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from tiercel.queues.nouns import counted
from tiercel.queues.peek import Peeked, QueuedMessage, near_headers
from tiercel.queues.peek import peek as read_first
from tiercel.queues.publishing import dead_letters as letters
from tiercel.queues.publishing.copies import REASON_HEADER
from tiercel.queues.publishing.dead_letters import DeadLetter
from tiercel.queues.retry import work_queue
from tiercel.spark_jobs.logs.formatters import redact
from tiercel.workers.cli.options import Amqp, Run, Yes, broker_of, json_per
from tiercel.workers.control.steering import log_action, this_user
from tiercel.workers.errors import UsageError
from tiercel.workers.monitoring.screen import table_of
from tiercel.workers.monitoring.tables import (
    DEAD,
    MESSAGES,
    body_text,
    count,
    reason_of,
    requeue_question,
)
from tiercel.workers.terminal import ask, say

QueueName = Annotated[
    str, typer.Argument(help="the queue that the messages came from, without .dead")
]

Chosen = Annotated[
    list[str] | None,
    typer.Option(
        "--id", metavar="ID", help="only this one, by the id that show prints; repeat it for more"
    ),
]
Reason = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT", help="only letters whose reason contains this text, in upper or lower case"
    ),
]
Limit = Annotated[int | None, typer.Option(min=1, help="at most this many, the oldest")]
Everything = Annotated[bool, typer.Option("--all", help="all dead letters of the queue")]

_MOST_PEEKED = 1_000
# Words that people try for a command that has another name.
_MEANT = {"list": "show", "ls": "show", "get": "read", "retry": "requeue", "remove": "delete"}


class _LetterCommands(TyperGroup):
    """Names the command that was meant by a word that is none."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and (meant := _MEANT.get(args[0])):
            raise UsageError(
                f"there is no command {args[0]!r}: did you mean tiercel dead-letters {meant}?"
            )
        return super().resolve_command(ctx, args)


commands = typer.Typer()
dead_letters = typer.Typer(
    cls=_LetterCommands,
    help="Look at what could not be processed, put it back, or throw it away.",
    no_args_is_help=True,
)
commands.add_typer(dead_letters, name="dead-letters")


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
    as_json: Annotated[bool, json_per("message")] = False,
    amqp: Amqp = None,
    run: Run = None,
) -> None:
    """Look at the first messages of a queue; they stay in it, in their order.

    Meanwhile no consumer gets them: stderr says for how long.
    """
    url = broker_of(work_queue(queue), amqp=amqp, run=run)
    found = read_first(url, queue, limit, anyway=anyway)
    if as_json:
        for message in found.messages:
            say(json.dumps(_as_json(message)))
    elif found.messages:
        Console().print(table_of(MESSAGES, found.messages))
    say(_cost(queue, found), err=True)


def _as_json(message: QueuedMessage) -> dict[str, Any]:
    return {
        "position": message.position,
        "came_back": message.came_back,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "properties": dict(message.properties),
        "headers": _redacted(message.headers),
        **_body_as_json(message.body, message.size),
    }


def _letter_as_json(letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "queue": letter.queue,
        "died": None if letter.died is None else letter.died.isoformat(),
        "reason": reason_of(letter),
        "headers": _redacted(near_headers(letter.headers)),
        **_body_as_json(letter.body, letter.size),
    }


def _redacted(headers: Mapping[str, str | None]) -> dict[str, str | None]:
    return {
        name: redact(value) if name == REASON_HEADER and value else value
        for name, value in headers.items()
    }


def _body_as_json(body: bytes, size: int) -> dict[str, Any]:
    try:
        # The body may be cut in the middle of a character.
        text = codecs.getincrementaldecoder("utf-8")().decode(body, final=len(body) == size)
    except UnicodeDecodeError:
        return {"bytes": size, "body_base64": base64.b64encode(body).decode()}
    return {"bytes": size, "body": text}


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
def show(  # noqa: PLR0913 - one parameter an option
    queue: QueueName,
    limit: Annotated[int, typer.Option(min=1, help="show at most this many, the oldest")] = 20,
    *,
    reason: Reason = None,
    as_json: Annotated[bool, json_per("letter")] = False,
    amqp: Amqp = None,
    run: Run = None,
) -> None:
    """Show the oldest dead letters of a queue and why they are dead; they stay where they are."""
    _check_reason(reason)
    url = broker_of(queue, amqp=amqp, run=run)
    found = letters.show(url, queue, limit, reason=reason or "")
    if as_json:
        for letter in found:
            say(json.dumps(_letter_as_json(letter)))
    elif found:
        Console().print(table_of(DEAD, found))
    elif reason is None:
        say(f"{queue} has no dead letters")
    else:
        say(_no_such_reason(queue, reason))


@dead_letters.command()
def read(
    queue: QueueName,
    letter: Annotated[str, typer.Argument(metavar="ID", help="its id, as show prints it")],
    amqp: Amqp = None,
    run: Run = None,
) -> None:
    """Show the body of one dead letter, at most 64 KiB of it; in hexadecimal if it is no text."""
    found = letters.look_for(broker_of(queue, amqp=amqp, run=run), queue, letter)
    if found is None:
        raise UsageError(_not_among(letter, queue))
    say(body_text(found.body, found.size)[1])


@dataclass(frozen=True, kw_only=True)
class _LetterChoice:
    """The dead letters that an operator chose by options."""

    ids: Sequence[str]
    reason: str | None
    limit: int | None
    everything: bool

    def _check(self, queue: str) -> None:
        """Raise UsageError if the options contradict each other, or choose nothing."""
        _check_reason(self.reason)
        some = self.reason is not None or self.limit is not None
        if self.ids and (some or self.everything):
            raise UsageError("--id names the letters: leave out --reason, --limit and --all")
        if self.everything and some:
            raise UsageError("--all means every dead letter: leave out --reason and --limit")
        if not (self.ids or some or self.everything):
            raise UsageError(
                f"which dead letters of {queue}? Name them with --id, choose with --reason or "
                "--limit, or say --all"
            )

    def resolve(
        self, queue: str, *, amqp: str | None, run: str | None
    ) -> tuple[str, list[str] | None]:
        """Return RabbitMQ's address and the ids of the chosen letters; None means all.

        Ends the command if there is no such letter. Raises UsageError if the options contradict
        each other, or choose nothing.
        """
        self._check(queue)
        url = broker_of(queue, amqp=amqp, run=run)
        if self.everything:
            return url, None
        if self.ids:
            return url, list(self.ids)
        found = letters.ids_of(url, queue, self.limit, reason=self.reason or "")
        if not found:
            none = f"{queue} has no dead letters"
            say(_no_such_reason(queue, self.reason) if self.reason else none)
            raise typer.Exit
        return url, found


def _check_reason(reason: str | None) -> None:
    if reason == "":
        raise UsageError("--reason needs a text, which the reasons of the chosen letters contain")


def _no_such_reason(queue: str, reason: str) -> str:
    return (
        f"no dead letter of {queue} has {reason!r} in its reason, among the first "
        f"{letters.SEARCHED:,}"
    )


@dead_letters.command()
def requeue(  # noqa: PLR0913 - one parameter an option
    queue: QueueName,
    chosen: Chosen = None,
    *,
    reason: Reason = None,
    limit: Limit = None,
    everything: Everything = False,
    yes: Yes = False,
    amqp: Amqp = None,
    run: Run = None,
) -> None:
    """Put dead letters back into their queue as if they were new.

    Asks first, unless the letters are named by --id.
    """
    choice = _LetterChoice(ids=chosen or (), reason=reason, limit=limit, everything=everything)
    url, ids = choice.resolve(queue, amqp=amqp, run=run)
    if not (yes or choice.ids):
        ask(requeue_question(queue, None if ids is None else len(ids)))
    moved = None if ids is None else letters.requeue_chosen(url, queue, ids)
    number = letters.requeue(url, queue) if moved is None else len(moved)
    put = f"put {counted(number, 'message')} back"
    log_action("requeue", queue, put, this_user())
    _report(f"{put} into {queue}", number, ids, moved, queue)


@dead_letters.command()
def delete(  # noqa: PLR0913 - one parameter an option
    queue: QueueName,
    chosen: Chosen = None,
    *,
    reason: Reason = None,
    limit: Limit = None,
    everything: Everything = False,
    yes: Yes = False,
    amqp: Amqp = None,
    run: Run = None,
) -> None:
    """Delete chosen dead letters of a queue for good. Asks first."""
    choice = _LetterChoice(ids=chosen or (), reason=reason, limit=limit, everything=everything)
    url, ids = choice.resolve(queue, amqp=amqp, run=run)
    if not yes:
        many = "all dead letters" if ids is None else counted(len(ids), "dead letter")
        ask(f"Delete {many} of {queue} for good?")
    gone = None if ids is None else letters.delete_chosen(url, queue, ids)
    number = letters.purge(url, queue) if gone is None else len(gone)
    done = f"deleted {counted(number, 'dead letter')}"
    log_action("delete", queue, done, this_user())
    _report(f"{done} of {queue}", number, ids, gone, queue)


def _report(
    done: str, number: int, ids: list[str] | None, found: list[str] | None, queue: str
) -> None:
    """Report an action. Raises UsageError for chosen letters that were not found."""
    missing = list((Counter(ids or ()) - Counter(found or ())).elements())
    if number or not missing:
        say(done)
    if missing:
        raise UsageError(_not_among(", ".join(missing), queue))


@dead_letters.command()
def purge(
    queue: QueueName,
    *,
    yes: Yes = False,
    amqp: Amqp = None,
    run: Run = None,
) -> None:
    """Delete all dead letters of a queue for good: the same as delete --all."""
    url = broker_of(queue, amqp=amqp, run=run)
    if not yes:
        ask(f"Delete all dead letters of {queue} for good?")
    deleted = letters.purge(url, queue)
    done = f"deleted {counted(deleted, 'dead letter')}"
    log_action("purge", queue, done, this_user())
    say(f"{done} of {queue}")


def _not_among(ids: str, queue: str) -> str:
    return (
        f"{ids} is not among the oldest {letters.SEARCHED:,} dead letters of {queue}; "
        f"tiercel dead-letters show {queue}"
    )
