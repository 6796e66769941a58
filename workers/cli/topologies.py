"""The commands about topologies: ``errors``, ``state``, ``activate``, ``deactivate``,
``rebalance``, ``kill``.

Without an address they talk to the private servers of a ``tiercel run`` on this machine, if there
is one: of several, to those of the topology.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from textwrap import indent
from typing import Annotated

import typer
from rich.console import Console

from tiercel.acker.errors import RedisUnavailableError
from tiercel.acker.metrics.contract import ErrorReport, KnownError
from tiercel.acker.metrics.redis import RedisMetrics
from tiercel.spark_jobs.logs.redaction import redact
from tiercel.spark_jobs.state.redis_store import RedisStateStore, check_layout
from tiercel.spark_jobs.state.shown import StateEntry, entry_of, fields_meant
from tiercel.workers.cli.options import Redis, found_settings
from tiercel.workers.config import Settings
from tiercel.workers.control.contract import State, parse_change
from tiercel.workers.control.registry import TopologyNote, names_of, topology_named
from tiercel.workers.control.steering import Steering, log_action, this_user
from tiercel.workers.errors import UsageError
from tiercel.workers.lifecycle import on_signals
from tiercel.workers.loading import did_you_mean
from tiercel.workers.local.addresses import runs_here
from tiercel.workers.monitoring.screen import error_table, state_table
from tiercel.workers.monitoring.wording import count
from tiercel.workers.terminal import say

commands = typer.Typer()
Name = Annotated[str, typer.Argument(metavar="TOPOLOGY", help="a topology's name")]
_Found = list[tuple[str, ErrorReport]]
# Characters of a value in a table: of several entries, and of named keys.
_SHORT = 200
_LONG = 64 * 1024
# Entries whose values are in memory at a time.
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
    Console().print(error_table(found))


def _newest(redis_url: str, topology: str | None, limit: int) -> _Found:
    """Return (topology, error), newest first."""
    found: _Found = []
    for name in names_of(redis_url, topology):
        with closing(RedisMetrics(redis_url, name)) as metrics:
            found += [
                (name, replace(error, message=redact(error.message)))
                for error in metrics.errors(limit)
            ]
    return sorted(found, key=lambda each: each[1].at, reverse=True)[:limit]


def show_tracebacks(redis_url: str, topology: str | None, limit: int) -> None:
    """Write the kinds of errors that came last to stdout, newest first: of one topology, or of all.

    Raises UsageError for a topology that never ran.
    """
    found: list[tuple[str, KnownError]] = []
    for name in names_of(redis_url, topology):
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
    began = first.at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    last = known.last.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    when = f"at {began}" if known.count == 1 else f"first at {began}, last at {last}"
    head = f"{where}: {first.reason}\n{times}, {when}; the first one in task {first.task}:"
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
    # Run number 0: no turn begins, so no run is ended.
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
    """Yield the first entries that Redis finds, each once."""
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
        Console().print(state_table(rows))


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
    """Stop the spouts of a topology from emitting; what is in flight goes on."""
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
            help="seconds to wait, at most, for what is in flight; by default the message timeout"
            " plus the execute_timeout_secs of bolts that may take longer",
        ),
    ] = None,
    redis: Redis = None,
) -> None:
    """End all processes of a topology, once what is in flight is done.

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
        # The private servers of a tiercel run end with its topology.
        if not private or _is_private(settings):
            raise
        say(f"{topology} has ended, and its servers with it")
    else:
        raise typer.Exit(0 if ended else 1)


def _is_private(settings: Settings) -> bool:
    return settings.redis in [note.redis for note in runs_here()]


def _steering(name: str, settings: Settings, stopped: threading.Event) -> Steering:
    return Steering.open(settings.required("redis").redis_urls[0], name, say, stopped)
