"""The commands ``run``, ``spout`` and ``check``."""

from __future__ import annotations

import json
import logging
import sys
import threading
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from tiercel.compose.errors import ServiceStoppedError
from tiercel.spark_jobs.topology.graph import Topology
from tiercel.workers.check import Severity, exposures, findings
from tiercel.workers.cli.options import (
    Amqp,
    Child,
    Executors,
    Level,
    Log,
    Management,
    Master,
    Redis,
    Run,
    TopologyName,
    json_per,
    load_settings,
)
from tiercel.workers.config import Settings, check_spark_python
from tiercel.workers.errors import UsageError
from tiercel.workers.lifecycle import name_servers, on_signals, set_up_logging
from tiercel.workers.loading import load_for_spark, load_topology
from tiercel.workers.local.addresses import with_run
from tiercel.workers.local.private import servers
from tiercel.workers.local.run import Changes, LocalRun, ReloadingRun, files_of
from tiercel.workers.spout.process import spout_spec
from tiercel.workers.spout.worker import run_spouts
from tiercel.workers.terminal import say

logger = logging.getLogger(__name__)
commands = typer.Typer()

Keep = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="keep the data of the private servers in this folder, and go on with what an earlier"
        " run kept there; without it they end with the run",
    ),
]
Reload = Annotated[
    bool,
    typer.Option("--reload", help="restart its processes whenever a file of its code changes"),
]
# Set for the child processes of a run with --reload, which owns the servers.
Generation = Annotated[bool, typer.Option("--generation", hidden=True)]


@commands.command()
def run(  # noqa: PLR0913 - one parameter an option
    topology: TopologyName,
    *,
    keep: Keep = None,
    reload: Reload = False,
    generation: Generation = False,
    amqp: Amqp = None,
    redis: Redis = None,
    master: Master = None,
    executors: Executors = None,
    log: Log = None,
    log_level: Level = None,
) -> None:
    """Run a whole topology on this machine, with private servers where none are named."""
    stopped = threading.Event()
    on_signals(stopped.set)
    settings = load_settings(
        "tiercel", amqp=amqp, redis=redis, master=master, executors=executors, log=log,
        log_level=log_level,
    )  # fmt: skip
    check_spark_python(settings.master)
    if generation:
        _work(topology, load_for_spark(topology, settings.spout_tasks), settings, stopped)
        return
    saying = say_when(stopped)
    if reload:
        sys.dont_write_bytecode = True  # for the code loaded here, as for ReloadingRun's children
    loaded = load_for_spark(topology, settings.spout_tasks)
    try:
        with servers(settings, loaded, keep=keep, stopped=stopped) as found:
            if reload:
                ReloadingRun(topology, loaded, found, stopped).run()
            else:
                _work(topology, loaded, found, stopped, Changes(files_of(topology)))
    except ServiceStoppedError:
        pass
    if stopped.is_set():
        saying.join()
    logger.info("%s has stopped", loaded.name, extra={"event": "stopped"})


def _work(
    name: str,
    topology: Topology,
    settings: Settings,
    stopped: threading.Event,
    code: Changes | None = None,
) -> None:
    if stopped.is_set():
        return
    with LocalRun(name, topology, settings) as running:
        running.wait(stopped, code)
        if running.refused:
            sys.exit(2)


def say_when(stopped: threading.Event) -> threading.Thread:
    """Log that the run is stopping, from a thread, as soon as ``stopped`` is set.

    Returns the thread: a run may have stopped before it has said that it is stopping.
    """

    def wait() -> None:
        stopped.wait()
        logger.info(
            "stopping: messages in flight are requeued; Ctrl-C again stops at once",
            extra={"event": "stopping"},
        )

    saying = threading.Thread(target=wait, name="stopping", daemon=True)
    saying.start()
    return saying


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
    child: Child = False,
) -> None:
    """Run one task of one spout, or of each; where all tasks have a worker, wait in reserve."""
    if task_index is not None and component is None:
        raise UsageError("--task-index belongs to one spout: name the spout too")
    label = component or "spout"
    label += "" if task_index is None else f"-{task_index}"
    settings = load_settings(label, amqp=amqp, redis=redis, log=log, log_level=log_level).required()
    loaded = load_topology(topology, settings.spout_tasks)
    if component is not None:
        spout_spec(loaded, component, task_index or 0)
    if not child:
        name_servers(f"spout worker of {topology}", settings)
    run_spouts(topology, loaded, settings, component, task_index)
    logger.info("the spout worker has stopped", extra={"event": "stopped"})


_CODES = {Severity.OK: 0, Severity.WARNING: 1, Severity.ERROR: 2}


@commands.command()
def check(  # noqa: PLR0913 - one parameter an option
    topology: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:TOPOLOGY]",
            help="check its queues and states too; without it: the settings and the servers",
        ),
    ] = None,
    *,
    as_json: Annotated[bool, json_per("check")] = False,
    amqp: Amqp = None,
    redis: Redis = None,
    management: Management = None,
    master: Master = None,
    run: Run = None,
) -> None:
    """Check settings, servers and rights, before anything starts; nothing is changed.

    Exits with 0 if everything is in order, 1 after a warning, 2 after an error.
    """
    given = {"amqp": amqp, "redis": redis, "management": management, "master": master}
    settings = Settings.load(**given)
    if topology is None or run is not None:
        settings, _ = with_run(settings, run=run)
    # Each warning is a line of its own here.
    set_up_logging(settings.log, "critical")
    worst = 0
    for finding in chain(exposures(given), findings(settings, topology)):
        worst = max(worst, _CODES[finding.grade])
        if as_json:
            say(json.dumps(asdict(finding)))
        else:
            say(f"{finding.grade:<8} {finding.subject}: {finding.said}")
    raise typer.Exit(worst)
