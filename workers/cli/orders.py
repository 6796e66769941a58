"""The commands that steer topologies: ``activate``, ``deactivate``, ``pause``, ``resume``,
``rebalance``, ``kill`` and ``forget``.
"""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Annotated

import typer

from tiercel.acker.errors import RedisUnavailableError
from tiercel.queues.nouns import counted
from tiercel.workers.cli.options import Name, Redis, Yes, found_settings
from tiercel.workers.config import Settings
from tiercel.workers.control.contract import State, parse_change
from tiercel.workers.control.registry import Registry, TopologyNote, remove_keys, topology_named
from tiercel.workers.control.steering import Steering, log_action, this_user, while_stopped
from tiercel.workers.lifecycle import on_signals
from tiercel.workers.local.addresses import runs_here
from tiercel.workers.terminal import ask, say

commands = typer.Typer()

BoltName = Annotated[str, typer.Option(metavar="BOLT", help="the bolt's name")]


@commands.command()
def forget(
    topology: Name,
    *,
    yes: Yes = False,
    redis: Redis = None,
) -> None:
    """Remove everything of a topology that does not run from Redis: states, figures, orders.

    Its queues in RabbitMQ stay, with all messages.
    """
    settings = found_settings(topology=topology, redis=redis).required("redis")
    urls = settings.redis_urls
    note = topology_named(urls[0], topology)
    with closing(_steering(topology, settings, threading.Event())) as steering:
        steering.check_ended()
        if not yes:
            ask(_forget_question(note, urls))
        with while_stopped(urls[0], topology, "it is being forgotten"):
            removed = remove_keys(urls, topology)
            with closing(Registry(urls[0])) as registry:
                registry.forget(topology)
    log_action("forget", topology, f"removed {counted(removed, 'key')}", this_user())
    say(f"forgot {topology}: {counted(removed, 'key')} removed from Redis")


def _forget_question(note: TopologyNote, urls: tuple[str, ...]) -> str:
    """Name the data that is lost for good: states above all."""
    # They cost 0.1 s, and the orders need neither.
    from tiercel.spark_jobs.state.redis_savepoint import Savepoints  # noqa: PLC0415
    from tiercel.spark_jobs.state.redis_store import RedisStateStore  # noqa: PLC0415

    spec = note.ledger_spec(urls)
    with closing(Savepoints(spec, 0)) as savepoints, closing(RedisStateStore(spec, 0)) as store:
        sizes = {name: store.count(name) for name in savepoints.components()}
    states = [f"{size:,} in the state of {name}" for name, size in sizes.items() if size]
    lost = f"the entries of its states ({', '.join(states)})" if states else "no state"
    return (
        f"Forget {note.name}: remove {lost}, its memory of processed messages, its inboxes, "
        "figures, errors and orders from Redis for good? Messages in RabbitMQ stay."
    )


@commands.command()
def activate(topology: Name, *, redis: Redis = None) -> None:
    """Let the spouts of a deactivated topology emit again."""
    settings = found_settings(topology=topology, redis=redis)
    _steering(topology, settings, threading.Event()).turn(State.ACTIVE)
    log_action("activate", topology, "ordered", this_user())


@commands.command()
def deactivate(topology: Name, *, redis: Redis = None) -> None:
    """Stop the spouts of a topology from emitting; messages in flight go on."""
    settings = found_settings(topology=topology, redis=redis)
    _steering(topology, settings, threading.Event()).turn(State.DEACTIVATED)
    log_action("deactivate", topology, "ordered", this_user())


@commands.command()
def pause(topology: Name, *, bolt: BoltName, redis: Redis = None) -> None:
    """Stop a bolt from taking tuples; the other bolts go on.

    Its tasks finish their current tuples. Messages that wait for it do not time out. The order
    lasts until tiercel resume, also in later runs.
    """
    settings = found_settings(topology=topology, redis=redis)
    with closing(_steering(topology, settings, threading.Event())) as steering:
        steering.pause(bolt)
    log_action("pause", f"{topology} {bolt}", "ordered", this_user())


@commands.command()
def resume(topology: Name, *, bolt: BoltName, redis: Redis = None) -> None:
    """Let a paused bolt take tuples again."""
    settings = found_settings(topology=topology, redis=redis)
    with closing(_steering(topology, settings, threading.Event())) as steering:
        steering.resume(bolt)
    log_action("resume", f"{topology} {bolt}", "ordered", this_user())


@commands.command()
def rebalance(
    topology: Name,
    *,
    parallelism: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BOLT=N",
            help="give a bolt N tasks; BOLT=default: as many as its code says; repeat it for more"
            " bolts",
        ),
    ] = None,
    redis: Redis = None,
) -> None:
    """Spread the bolt tasks of a topology over the executors that Spark has now.

    What is in flight is finished first.

    A number of tasks that is given here overrides that of the code, also of newer code, until
    BOLT=default.

    The tasks of a spout are processes: start more workers to have more of them.
    """
    change = parse_change(parallelism or [])
    stopped = threading.Event()
    steering = _steering(topology, found_settings(topology=topology, redis=redis), stopped)
    steering.check(change)
    on_signals(stopped.set)
    log_action("rebalance", topology, ", ".join(["ordered", *(parallelism or [])]), this_user())
    raise typer.Exit(0 if steering.rebalance(change) else 1)


@commands.command()
def kill(
    topology: Name,
    *,
    wait: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="seconds to wait, at most, for messages in flight; by default the message timeout"
            " plus the execute_timeout_secs of bolts that may take longer",
        ),
    ] = None,
    redis: Redis = None,
) -> None:
    """End all processes of a topology, once messages in flight are done.

    Deactivates it, waits, and gives the rest back to the broker.
    """
    settings = found_settings(topology=topology, redis=redis)
    stopped = threading.Event()
    private = _is_private(settings)
    steering = _steering(topology, settings, stopped)
    on_signals(stopped.set)
    log_action("kill", topology, "ordered", this_user())
    try:
        ended = steering.kill(wait)
    except RedisUnavailableError:
        # The private servers of a ``tiercel run`` end with its topology.
        if not private or _is_private(settings):
            raise
        say(f"{topology} has ended, and its servers with it")
    else:
        raise typer.Exit(0 if ended else 1)


def _is_private(settings: Settings) -> bool:
    return settings.redis in [note.redis for note in runs_here()]


def _steering(name: str, settings: Settings, stopped: threading.Event) -> Steering:
    return Steering.open(settings.required("redis").redis_urls[0], name, say, stopped)
