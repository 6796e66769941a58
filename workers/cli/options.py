"""Options and settings shared by the commands."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from tiercel.workers.config import LogFormat, LogLevel, Settings, exposed
from tiercel.workers.lifecycle import set_up_logging
from tiercel.workers.local.addresses import with_run
from tiercel.workers.terminal import say

log = logging.getLogger(__name__)

TopologyName = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:TOPOLOGY",
        help="a module, and the function in it that returns the topology: "
        "tiercel.examples.word_count:topology",
    ),
]
Amqp = Annotated[
    str | None, typer.Option(help="RabbitMQ: amqp://user:password@host:5672/vhost  [TIERCEL_AMQP]")
]
Redis = Annotated[
    str | None, typer.Option(help="Redis: redis://:password@host:6379/0  [TIERCEL_REDIS]")
]
Master = Annotated[
    str | None,
    typer.Option(
        help="Spark's master: local[4], spark://host:7077, yarn  "
        "[TIERCEL_MASTER; all cores of this machine]"
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="set an option of Spark; overrides the topology's spark_options; repeat it for more",
    ),
]
Executors = Annotated[
    str | None,
    typer.Option(
        metavar="LEAST..MOST",
        help="ask Spark for the executors that the load needs, in these bounds: 2..20  "
        "[TIERCEL_EXECUTORS; the topology's]",
    ),
]
Management = Annotated[
    str | None, typer.Option(help="RabbitMQ's HTTP API: http://host:15672  [TIERCEL_MANAGEMENT]")
]
Run = Annotated[
    str | None,
    typer.Option(
        "--run",
        metavar="TOPOLOGY",
        help="use the private servers of this topology's tiercel run; needed if there are several",
    ),
]
Log = Annotated[
    LogFormat | None,
    typer.Option(help="form of the log: text, or json, one object per line  [TIERCEL_LOG; text]"),
]
Level = Annotated[
    LogLevel | None,
    typer.Option("--log-level", help="lowest level that is logged  [TIERCEL_LOG_LEVEL; info]"),
]


Name = Annotated[str, typer.Argument(metavar="TOPOLOGY", help="a topology's name")]
AnyName = Annotated[
    str | None, typer.Argument(help="a topology's name; by default all that this Redis knows")
]
Yes = Annotated[bool, typer.Option("--yes", help="do not ask first")]
# Set for the processes of a ``tiercel run``, which has named the servers.
Child = Annotated[bool, typer.Option("--child", hidden=True)]


def json_per(thing: str) -> Any:
    """Return the option for output with one JSON object per thing."""
    return typer.Option("--json", help=f"one JSON object per {thing}, each on its own line")


def load_settings(component: str, **given: Any) -> Settings:
    """Load the settings of a command, set up logging, and warn of passwords that all can read."""
    settings = Settings.load(**given)
    set_up_logging(settings.log, settings.log_level, component)
    for line in exposed(given):
        log.warning("%s", line, extra={"event": "password_readable"})
    return settings


def found_settings(
    *,
    run: str | None = None,
    topology: str | None = None,
    queues: Sequence[str] = (),
    **given: str | None,
) -> Settings:
    """As ``load_settings``; without an address, use the servers of a ``tiercel run`` here.

    ``run`` chooses the run, or ``topology``, or ``queues``, or there is only one; its name is
    printed to stderr. Raises UsageError if several are left.
    """
    settings, found = with_run(
        load_settings("tiercel", **given), run=run, topology=topology, queues=queues
    )
    if found is not None:
        say(f"tiercel: on the private servers of the run of {found}", err=True)
    return settings


def broker_of(queue: str | None, *, amqp: str | None, run: str | None) -> str:
    """Return RabbitMQ's address for a command about a queue, or about an exchange."""
    queues = [] if queue is None else [queue]
    return found_settings(run=run, queues=queues, amqp=amqp).required("amqp").amqp or ""
