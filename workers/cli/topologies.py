"""The commands about topologies: ``errors``, ``state``, ``activate``, ``deactivate``,
``rebalance``, ``kill``, and the views ``depths``, ``top``, ``monitor``.

Without an address they use the private servers of a ``tiercel run`` on this machine, if there is
one. If there are several, ``--run`` chooses, or the named topology or queues.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from itertools import chain
from textwrap import indent
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from tiercel.acker.errors import RedisUnavailableError
from tiercel.acker.metrics.contract import ErrorReport, KnownError
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.queues import outage
from tiercel.queues.broker.declare import work_queue
from tiercel.queues.nouns import counted, did_you_mean
from tiercel.spark_jobs.logs.formatters import redact
from tiercel.spark_jobs.state.encoding import StateEntry, entry_of, fields_meant
from tiercel.spark_jobs.state.redis_store import RedisStateStore, check_layout
from tiercel.workers.cli.options import Amqp, Management, Redis, Run, found_settings
from tiercel.workers.config import Settings
from tiercel.workers.control.contract import State, parse_change
from tiercel.workers.control.registry import TopologyNote, known_topologies, topology_named
from tiercel.workers.control.steering import Steering, log_action, this_user
from tiercel.workers.errors import UsageError
from tiercel.workers.lifecycle import on_signals
from tiercel.workers.local.addresses import runs_here
from tiercel.workers.monitoring import screen
from tiercel.workers.monitoring.tables import STATE, count, when
from tiercel.workers.monitoring.watcher import Addresses, Survey, Surveyor
from tiercel.workers.terminal import say

commands = typer.Typer()


Name = Annotated[str, typer.Argument(metavar="TOPOLOGY", help="a topology's name")]
_Found = list[tuple[str, ErrorReport]]
# Characters of a value shown in a table: for a list of entries, and for named keys.
_SHORT = 200
_LONG = 64 * 1024
# Number of entries whose values are read at a time.
_AT_ONCE = 100
_NOT_THERE = 1


@commands.command()
def errors(
    topology: Annotated[
        str | None, typer.Argument(help="a topology's name; by default all that this Redis knows")
    ] = None,
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
) -> None:
    """Show the newest errors: which task of which bolt or spout, and why."""
    settings = found_settings(topology=topology, redis=redis).required("redis")
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
    for name in _names(redis_url, topology):
        with closing(RedisMetrics(redis_url, name)) as metrics:
            found += [
                (name, replace(error, message=redact(error.message)))
                for error in metrics.errors(limit)
            ]
    return sorted(found, key=lambda each: each[1].at, reverse=True)[:limit]


def _names(redis_url: str, topology: str | None) -> Iterable[str]:
    """Return the given name, or the names of all topologies that ran. Raises UsageError."""
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


@commands.command()
def state(  # noqa: PLR0913 - one parameter an option
    topology: Annotated[str, typer.Argument(help="a topology's name")],
    component: Annotated[str, typer.Argument(help="the id of a stateful bolt")],
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY]...",
            help="a key, as the table shows it or as plain text; without any: some entries",
        ),
    ] = None,
    *,
    limit: Annotated[int, typer.Option(min=1, help="without keys: show at most this many")] = 20,
    as_json: Annotated[
        bool, typer.Option("--json", help="one JSON object per entry, each on its own line")
    ] = False,
    redis: Redis = None,
) -> None:
    """Look at the state of a stateful bolt: at these keys, or at some entries.

    Exits with 1 if there is no entry for a key.
    """
    settings = found_settings(topology=topology, redis=redis).required("redis")
    note = topology_named(settings.redis_urls[0], topology)
    spec = note.ledger_spec(settings.redis_urls)
    # Run number 0 fences no run, because the command begins no turn.
    with closing(RedisStateStore(spec, run_number=0)) as store:
        there = store.count(component)
        _check_component(note, component, there)
        check_layout(spec, [component])
        if keys:
            found = {word: list(_values(store, component, word)) for word in keys}
            _show(chain.from_iterable(found.values()), _LONG, as_json=as_json)
            missing = [word for word, entries in found.items() if not entries]
            _refuse_missing(missing, component, topology)
        else:
            _show(_some(store, component, limit), _SHORT, as_json=as_json)
            _say_rest(component, topology, limit, there)


def _values(store: RedisStateStore, component: str, word: str) -> Iterator[StateEntry]:
    fields = fields_meant(word)
    for field, raw in zip(fields, store.values(component, fields), strict=True):
        if raw is not None:
            yield entry_of(field, raw)


def _some(store: RedisStateStore, component: str, limit: int) -> Iterator[StateEntry]:
    """Yield the first ``limit`` entries that Redis returns, each once."""
    seen: set[bytes] = set()
    for field, raw in store.entries(component, min(limit, _AT_ONCE)):
        if len(seen) == limit:
            return
        if field not in seen:
            seen.add(field)
            yield entry_of(field, raw)


def _show(found: Iterable[StateEntry], longest: int, *, as_json: bool) -> None:
    if as_json:
        for entry in found:
            say(json.dumps(entry.as_json()))
        return
    rows = [replace(entry, value=_cut(entry.value, longest)) for entry in found]
    if rows:
        Console().print(screen.table_of(STATE, rows))


def _cut(value: str, longest: int) -> str:
    rest = len(value) - longest
    return f"{value[:longest]} … and {count(rest)} characters more" if rest > 0 else value


def _check_component(note: TopologyNote, component: str, there: int) -> None:
    bolts = [bolt.name for bolt in note.graph.bolts]
    # A bolt that is no longer in the code may have left entries.
    if component not in bolts and not there:
        raise UsageError(
            f"{note.name} has no bolt {component!r}, and no state of one"
            + (did_you_mean(component, bolts) or f"; its bolts are {', '.join(bolts)}")
        )


def _refuse_missing(missing: Sequence[str], component: str, topology: str) -> None:
    if missing:
        words = ", ".join(missing)
        say(f"tiercel: the state of {component} in {topology} has no {words}", err=True)
        raise typer.Exit(_NOT_THERE)


def _say_rest(component: str, topology: str, limit: int, there: int) -> None:
    if not there:
        say(f"the state of {component} in {topology} is empty", err=True)
    elif there > limit:
        say(f"{count(limit)} of {count(there)} entries; name keys, or --limit", err=True)


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
