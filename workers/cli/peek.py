"""The command ``peek``: the first messages of a queue, which stay there.

Without an address it talks to the private servers of a ``tiercel run`` on this machine,
if there is one.
"""

from __future__ import annotations

import base64
import codecs
import json
from typing import Annotated, Any

import typer
from rich.console import Console

from tiercel.queues import peek as looking
from tiercel.queues.broker.declare import work_queue
from tiercel.queues.peek import Peeked, QueuedMessage
from tiercel.queues.publishing.dead_letter_copy import REASON_HEADER
from tiercel.spark_jobs.logs.redaction import redact
from tiercel.workers.cli.options import Amqp, Run, found_settings
from tiercel.workers.monitoring.screen import message_table
from tiercel.workers.monitoring.wording import count
from tiercel.workers.terminal import say

commands = typer.Typer()
_MOST = 1_000


@commands.command()
def peek(  # noqa: PLR0913 - one parameter an option
    queue: Annotated[str, typer.Argument(help="any queue; dead letters are in QUEUE.dead")],
    *,
    limit: Annotated[
        int, typer.Option(min=1, max=_MOST, help="show at most this many, the first")
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

    found = looking.peek(settings.amqp or "", queue, limit, anyway=anyway)
    if as_json:
        for message in found.messages:
            say(json.dumps(_as_json(message)))
    elif found.messages:
        Console().print(message_table(found.messages))
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
        # The cut may have gone through a character.
        whole = len(message.body) == message.size
        text = codecs.getincrementaldecoder("utf-8")().decode(message.body, final=whole)
    except UnicodeDecodeError:
        return {**said, "body_base64": base64.b64encode(message.body).decode()}
    return {**said, "body": text}


def _cost(queue: str, found: Peeked) -> str:
    """Return what a look has cost, and what it could not show."""
    shared = f"; what its {count(found.consumers)} consumers hold is not shown"
    if not found.messages:
        return f"no message waits in {queue}{shared if found.consumers else ''}"
    counted = "; RabbitMQ counts it as a delivery of each" if found.counted else ""
    return (
        f"{count(len(found.messages))} of {count(found.waiting)} messages that waited in {queue}; "
        f"no consumer had them for {found.away_s:.2f} s{counted}{shared if found.consumers else ''}"
    )
