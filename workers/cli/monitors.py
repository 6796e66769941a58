"""The commands that watch: ``depths``, ``top``, ``monitor``.

Without an address they talk to the private servers of a ``tiercel run`` on this machine, if there
is one: of several, to those of ``--run``, or of the topology or queues that are named.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from tiercel.queues.broker.declare import work_queue
from tiercel.queues.nouns import counted
from tiercel.workers.cli.options import Amqp, Management, Redis, Run, found_settings
from tiercel.workers.config import Settings
from tiercel.workers.errors import UsageError
from tiercel.workers.lifecycle import on_signals
from tiercel.workers.monitoring.screen import run_top, survey_view, window_named
from tiercel.workers.monitoring.watcher import Addresses, Survey, Surveyor, notes
from tiercel.workers.terminal import say

commands = typer.Typer()

AllowedHost = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="a host name by which browsers and Prometheus may call it, besides localhost; repeat"
        " it for more",
    ),
]
_WATCH_S = 1.0
_FAILED = 1


@commands.command()
def depths(  # noqa: PLR0913 - one parameter an option
    queues: Annotated[
        list[str] | None,
        typer.Argument(help="by default the queues of all topologies that this Redis knows"),
    ] = None,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="show them again each second")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="one JSON object per look, each on its own line")
    ] = False,
    fail_above: Annotated[
        list[str] | None,
        typer.Option(
            metavar="QUEUE=N",
            help="exit with 1 if more than N messages wait in QUEUE; QUEUE.dead: dead letters",
        ),
    ] = None,
    amqp: Amqp = None,
    redis: Redis = None,
    management: Management = None,
    run: Run = None,
) -> None:
    """Show how many messages wait, are being worked on, and are dead.

    Of each topology it also shows what waits in its inboxes in Redis, and what is in flight.
    """
    limits = dict(_limit(each) for each in fail_above or ())
    named = _named(queues or (), limits)
    settings = found_settings(
        run=run, queues=named, amqp=amqp, redis=redis, management=management
    ).required("amqp")
    with _shown(as_json=as_json, watch=watch) as show:
        for survey in _surveys(settings, named, watch=watch):
            show(survey)
            _fail_above(survey, limits)


@commands.command()
def top(
    topology: Annotated[
        str | None, typer.Argument(help="a topology's name; needed if this Redis knows several")
    ] = None,
    *,
    window: Annotated[
        str, typer.Option(help="time over which it counts and averages: 10m, 3h, 1d or all")
    ] = "10m",
    amqp: Amqp = None,
    redis: Redis = None,
    management: Management = None,
) -> None:
    """Watch a topology in the terminal: spouts, bolts, __acker, queues, errors.

    In a pipe it shows them once.
    """
    settings = found_settings(
        topology=topology, amqp=amqp, redis=redis, management=management
    ).required("redis")

    chosen = window_named(window)
    known = notes(settings.redis_urls[0], topology)
    if not known:
        raise UsageError("no topology has run here yet: start one, tiercel run MODULE:TOPOLOGY")
    if len(known) > 1:
        raise UsageError(f"several topologies ran here: name one, {', '.join(known)}")
    stopped = threading.Event()
    on_signals(stopped.set)
    run_top(_addresses(settings), next(iter(known)), chosen, stopped)


@commands.command()
def monitor(  # noqa: PLR0913 - one parameter an option
    *,
    host: Annotated[
        str,
        typer.Option(
            help="address to listen on; beware: reading needs no token, from wherever it is reached"
        ),
    ] = "127.0.0.1",
    allowed_host: AllowedHost = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="port to listen on; 0: any free one")
    ] = 8710,
    amqp: Amqp = None,
    redis: Redis = None,
    management: Management = None,
    run: Run = None,
) -> None:
    """Serve a web page about all topologies, and /metrics for Prometheus.

    Actions, and bodies of messages, need a token: that in TIERCEL_TOKEN, or a random one that is
    printed here.
    """
    settings = found_settings(run=run, amqp=amqp, redis=redis, management=management).required()
    try:
        # NiceGUI is an extra, and takes a second.
        from tiercel.workers.monitoring.page import server  # noqa: PLC0415 - may be missing
        from tiercel.workers.monitoring.page.limits import Lock  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the monitor needs {error.name}: install it with pip install 'tiercel[monitor]'"
        ) from error

    hosts = server.AllowedHosts.of(allowed_host or ())
    listener = server.listen(host, port)
    token, hint = _token(settings.token)
    server.serve(_addresses(settings), Lock(token, hint=hint), hosts, listener)


def _token(given: str | None) -> tuple[str, str]:
    """Return the token, drawn if none is given, and the place where the operator finds it."""
    if given is not None:
        return given, "TIERCEL_TOKEN, as it was set for the monitor"
    token = secrets.token_urlsafe(12)
    say(f"the token of this monitor is {token}", err=True)
    return token, "tiercel monitor printed it when it started"


def _surveys(settings: Settings, named: list[str], *, watch: bool) -> Iterator[Survey]:
    """Take a survey once, or with ``watch`` every second until a signal."""
    stopped = threading.Event()
    if watch:
        on_signals(stopped.set)
    with closing(Surveyor(_addresses(settings))) as surveyor:
        while True:
            yield surveyor.take(named)
            if not watch or stopped.wait(_WATCH_S):
                return


@contextmanager
def _shown(*, as_json: bool, watch: bool) -> Iterator[Callable[[Survey], None]]:
    """Yield the function that shows a survey."""
    console = Console()
    if as_json:
        yield lambda survey: say(
            json.dumps(
                {
                    "queues": [{**asdict(row.depth), "use": row.use} for row in survey.queues],
                    "topologies": list(map(asdict, survey.own)),
                }
            )
        )
    elif not watch:
        yield lambda survey: console.print(survey_view(survey))
    else:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda survey: live.update(survey_view(survey), refresh=True)


def _fail_above(survey: Survey, limits: Mapping[str, int]) -> None:
    """Raise typer.Exit if a queue has more messages than its limit.

    Raises UsageError for a queue that is not in the survey.
    """
    found = [row.depth for row in survey.queues]
    depth = {each.name: each.ready for each in found}
    depth |= {f"{each.name}.dead": each.dead_lettered or 0 for each in found}
    above = False
    for name, limit in limits.items():
        if name not in depth:
            raise UsageError(
                f"--fail-above {name}={limit}: this queue was not looked at; there are "
                f"{', '.join(depth)}"
            )
        if depth[name] > limit:
            there = counted(depth[name], "message")
            say(f"tiercel: {there} in {name}, more than {limit:,}", err=True)
            above = True
    if above:
        raise typer.Exit(_FAILED)


def _named(queues: Sequence[str], limits: Iterable[str]) -> list[str]:
    """Return the queues to read; an empty list stands for all known queues.

    If any queue is named, the queues with limits are read too.
    """
    if not queues:
        return []
    return list(dict.fromkeys([*queues, *(work_queue(name) for name in limits)]))


def _limit(given: str) -> tuple[str, int]:
    name, separator, number = given.rpartition("=")
    if not separator or not name or not number.isdecimal():
        raise UsageError(f"--fail-above {given}: write QUEUE=N, such as sentences=1000")
    return name, int(number)


def _addresses(settings: Settings) -> Addresses:
    return Addresses(
        redis_urls=settings.redis_urls, amqp_url=settings.amqp, management_url=settings.management
    )
