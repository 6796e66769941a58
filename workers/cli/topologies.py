"""The commands that show topologies: ``list``, ``errors``, ``depths``, ``top``, ``status`` and
``monitor``.

Without an address they use the private servers of a ``tiercel run`` on this machine, if there is
one. If there are several, ``--run`` chooses, or the named topology or queues.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from textwrap import indent
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from tiercel.acker.metrics.contract import ErrorReport, KnownError, Window
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.queues import outage
from tiercel.queues.nouns import counted
from tiercel.queues.retry import work_queue
from tiercel.spark_jobs.logs.formatters import redact
from tiercel.workers.cli.options import (
    Amqp,
    AnyName,
    Management,
    Redis,
    Run,
    found_settings,
    json_per,
)
from tiercel.workers.config import Settings
from tiercel.workers.control.registry import TopologyNote, known_topologies
from tiercel.workers.control.steering import Standing, Steering
from tiercel.workers.errors import UsageError
from tiercel.workers.lifecycle import on_signals
from tiercel.workers.monitoring import screen
from tiercel.workers.monitoring.findings import Grade
from tiercel.workers.monitoring.overview import each_once
from tiercel.workers.monitoring.tables import TOPOLOGIES, when
from tiercel.workers.monitoring.watcher import Addresses, Look, Survey, Surveyor, Watcher
from tiercel.workers.terminal import say

commands = typer.Typer()


_Found = list[tuple[str, ErrorReport]]
_EXITS = {Grade.WELL: 0, Grade.STRAINED: 1, Grade.ILL: 2}
_SECOND_LOOK_S = 1.2


@commands.command()
def errors(
    topology: AnyName = None,
    *,
    limit: Annotated[int, typer.Option(min=1, help="show at most this many, the newest")] = 20,
    traceback: Annotated[
        bool,
        typer.Option(
            "--traceback",
            help="show instead what bolts raised: each kind of exception with its first traceback"
            " and its count",
        ),
    ] = False,
    redis: Redis = None,
    run: Run = None,
) -> None:
    """Show the newest errors with their bolt or spout, task, reason and message."""
    settings = found_settings(run=run, topology=topology, redis=redis).required("redis")
    if traceback:
        show_tracebacks(settings.redis_urls[0], topology, limit)
        return
    found = _newest(settings.redis_urls[0], topology, limit)
    if not found:
        say("no errors")
        return
    Console().print(screen.error_table(found))


def _newest(redis_url: str, topology: str | None, limit: int) -> _Found:
    """Return (topology, error) pairs, newest first."""
    found: _Found = []
    for name, note in _names(redis_url, topology).items():
        bolts = [bolt.name for bolt in note.graph.bolts]
        with closing(RedisMetrics(redis_url, name)) as metrics:
            # A failure may have two reports: its bolt's and its spout's.
            reports = each_once(metrics.errors(2 * limit), bolts)
            found += [(name, error) for error in reports]
    found = [
        (name, replace(error, message=redact(error.message), about=redact(error.about)))
        for name, error in found
    ]
    return sorted(found, key=lambda each: each[1].at, reverse=True)[:limit]


def _names(redis_url: str, topology: str | None) -> Mapping[str, TopologyNote]:
    """Return the named topology, or all topologies that ran. Raises UsageError."""
    known = known_topologies(redis_url, topology)
    if not known:
        raise UsageError(
            "no topology has run here yet: start one, or name another Redis with --redis"
        )
    return known


def show_tracebacks(redis_url: str, topology: str | None, limit: int) -> None:
    """Print the latest kinds of errors, newest first, of one topology or of all.

    Raises UsageError for a topology that never ran.
    """
    found: list[tuple[str, KnownError]] = []
    for name in _names(redis_url, topology):
        with closing(RedisMetrics(redis_url, name)) as metrics:
            found += [(name, known) for known in metrics.traces()]
    found.sort(key=lambda each: each[1].last, reverse=True)
    if not found:
        say("no errors that a bolt raised")
        return
    several = len({name for name, _ in found}) > 1
    say("\n\n".join(_told(known, name if several else "") for name, known in found[:limit]))


def _told(known: KnownError, topology: str) -> str:
    first = known.first
    where = f"{topology} {first.component}" if topology else first.component
    times = "once" if known.count == 1 else f"{known.count:,} times"
    span = f"first at {when(first.at)}, last at {when(known.last)}"
    moment = f"at {when(first.at)}" if known.count == 1 else span
    head = f"{where}: {first.reason}\n{times}, {moment}; the first one in task {first.task}:"
    # Indented, so that a message cannot forge the beginning of another error.
    return redact(f"{head}\n{indent(first.text, '    ', lambda _: True)}")


@commands.command("list")
def list_(
    *,
    as_json: Annotated[bool, json_per("topology")] = False,
    redis: Redis = None,
    run: Run = None,
) -> None:
    """List all topologies that ran here: their health, order, processes, newest run."""
    settings = found_settings(run=run, redis=redis).required("redis")
    url = settings.redis_urls[0]
    found = []
    for name, look in _looked(settings, known_topologies(url)).items():
        with closing(Steering.open(url, name, say, threading.Event())) as steering:
            standing = steering.standing()
        found.append(
            replace(standing, health=look.health.badge, findings=len(look.health.findings))
        )
    if as_json:
        for row in found:
            say(json.dumps(_standing_json(row)))
    elif found:
        Console().print(screen.fitting(TOPOLOGIES, found))
    else:
        say("no topology has run here yet")


def _standing_json(row: Standing) -> dict[str, Any]:
    return {
        "topology": row.name,
        "health": row.health,
        "findings": row.findings,
        "ordered": row.ordered.value,
        "running": row.driver or row.spouts > 0,
        "driver": row.driver,
        "spout_workers": row.spouts,
        "spout_tasks": row.spout_tasks,
        "in_flight": row.in_flight,
        "last_run": None if row.last_run is None else row.last_run.isoformat(),
    }


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
# As for an expected error.
_AWAY = 2


@commands.command()
def depths(  # noqa: PLR0913 - one parameter an option
    queues: Annotated[
        list[str] | None,
        typer.Argument(help="by default the queues of all topologies that this Redis knows"),
    ] = None,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="show them again each second")] = False,
    as_json: Annotated[bool, json_per("look")] = False,
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

    Of each topology it also shows what waits in its inboxes in Redis, and what is in flight. If
    RabbitMQ or Redis is away, it shows the figures of the other one and exits with 2.
    """
    limits = dict(_limit(each) for each in fail_above or ())
    named = _named(queues or (), limits)
    settings = found_settings(
        run=run, queues=named, amqp=amqp, redis=redis, management=management
    ).required("amqp")
    with _shown(as_json=as_json, watch=watch) as show:
        for survey in _surveys(settings, named, watch=watch):
            show(survey)
            _fail_above(survey, limits, watch=watch)


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

    chosen = screen.window_named(window)
    known = known_topologies(settings.redis_urls[0], topology)
    if not known:
        raise UsageError("no topology has run here yet: start one, tiercel run MODULE:TOPOLOGY")
    if len(known) > 1:
        raise UsageError(f"several topologies ran here: name one, {', '.join(known)}")
    stopped = threading.Event()
    on_signals(stopped.set)
    screen.run_top(_addresses(settings), next(iter(known)), chosen, stopped)


@commands.command()
def status(  # noqa: PLR0913 - one parameter an option
    topology: AnyName = None,
    *,
    as_json: Annotated[bool, json_per("topology")] = False,
    amqp: Amqp = None,
    redis: Redis = None,
    management: Management = None,
    run: Run = None,
) -> None:
    """Say how topologies are, and name their faults.

    Exits with 0 if all are well or at rest by order, 1 if one is strained, 2 if one is in trouble.
    """
    settings = found_settings(
        run=run, topology=topology, amqp=amqp, redis=redis, management=management
    ).required("redis")
    looks = _looked(settings, _names(settings.redis_urls[0], topology))
    for name, look in looks.items():
        say(
            json.dumps(screen.status_json(name, look))
            if as_json
            else screen.status_text(name, look)
        )
    raise typer.Exit(max(_EXITS[look.health.worst] for look in looks.values()))


def _looked(settings: Settings, names: Mapping[str, TopologyNote]) -> dict[str, Look]:
    """Read topologies twice: rates need two readings, and one may see by chance that messages
    wait.
    """
    with closing(Watcher(_addresses(settings))) as watcher:
        for name in names:
            watcher.look(name, Window.TEN_MINUTES)
        if names:
            time.sleep(_SECOND_LOOK_S)
        return {name: watcher.look(name, Window.TEN_MINUTES) for name in names}


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

    outage.name_process("the monitor")
    hosts = server.AllowedHosts.of(allowed_host or ())
    listener = server.listen(host, port)
    token, hint = _token(settings.token)
    server.serve(_addresses(settings), Lock(token, hint=hint), hosts, listener)


def _token(given: str | None) -> tuple[str, str]:
    """Return the token, drawn if none is given, and where an operator finds it."""
    if given is not None:
        return given, "TIERCEL_TOKEN, as it was set for the monitor"
    token = secrets.token_urlsafe(12)
    say(f"the token of this monitor is {token}", err=True)
    return token, "tiercel monitor printed it when it started"


def _surveys(settings: Settings, named: list[str], *, watch: bool) -> Iterator[Survey]:
    """Yield one survey, or with ``watch`` one per second until a signal."""
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
    """Yield a function that shows a survey."""
    console = Console()
    if as_json:
        yield lambda survey: say(
            json.dumps(
                {
                    "queues": [{**asdict(row.depth), "use": row.use} for row in survey.queues],
                    "topologies": list(map(asdict, survey.own)),
                    "problems": list(survey.problems),
                }
            )
        )
    elif not watch:
        yield lambda survey: console.print(screen.survey_view(survey))
    else:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda survey: live.update(screen.survey_view(survey), refresh=True)


def _fail_above(survey: Survey, limits: Mapping[str, int], *, watch: bool) -> None:
    """Raise typer.Exit if a queue has more messages than its limit, or if a server is away, unless
    it is watched until that is back. Raises UsageError for a queue that the survey lacks.
    """
    if not survey.complete:
        if watch:
            return
        raise typer.Exit(_AWAY)
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
    """Return the queues to read; an empty list means all known queues.

    If any queue is named, queues with limits are read too.
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
