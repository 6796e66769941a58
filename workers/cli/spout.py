"""The command ``spout``."""

from __future__ import annotations

from typing import Annotated

import typer

from tiercel.workers.cli.options import Amqp, Level, Log, Redis, TopologyName, load_settings
from tiercel.workers.errors import UsageError
from tiercel.workers.loading import load_topology
from tiercel.workers.spout.worker import run_spouts

commands = typer.Typer()


@commands.command()
def spout(  # noqa: PLR0913 - one parameter an option
    topology: TopologyName,
    component: Annotated[
        str | None, typer.Argument(help="the spout's id; without it: one task of each spout")
    ] = None,
    *,
    task_index: Annotated[
        int | None, typer.Option(help="the index of the task, from 0; by default a free one")
    ] = None,
    amqp: Amqp = None,
    redis: Redis = None,
    log: Log = None,
    log_level: Level = None,
) -> None:
    """Run one task of one spout, or of each; where all tasks have a worker, wait in reserve."""
    if task_index is not None and component is None:
        raise UsageError("--task-index is of one spout: name the spout too")
    label = (
        "spout"
        if component is None
        else component
        if task_index is None
        else f"{component}-{task_index}"
    )
    settings = load_settings(label, amqp=amqp, redis=redis, log=log, log_level=log_level).required()

    run_spouts(
        topology, load_topology(topology, settings.spout_tasks), settings, component, task_index
    )
