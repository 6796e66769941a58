"""The command ``run``."""

from __future__ import annotations

import sys
import threading

import typer

from tiercel.workers.cli.options import (
    Amqp,
    Level,
    Log,
    Master,
    Redis,
    TopologyName,
    load_settings,
)
from tiercel.workers.loading import load_for_spark
from tiercel.workers.local.run import LocalRun, servers
from tiercel.workers.signals import on_signals

commands = typer.Typer()


@commands.command()
def run(  # noqa: PLR0913 - one parameter an option
    topology: TopologyName,
    *,
    amqp: Amqp = None,
    redis: Redis = None,
    master: Master = None,
    log: Log = None,
    log_level: Level = None,
) -> None:
    """Run a whole topology on this machine, with private servers where none are named."""
    settings = load_settings(
        "tiercel", amqp=amqp, redis=redis, master=master, log=log, log_level=log_level
    )

    loaded = load_for_spark(topology, settings.spout_tasks)
    stopped = threading.Event()
    on_signals(stopped.set)
    with servers(settings) as found, LocalRun(topology, loaded, found) as running:
        running.wait(stopped)
        if running.refused:
            sys.exit(2)
