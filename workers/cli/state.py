"""The command ``state``: entries of a stateful bolt, read and never changed.

Without an address it talks to the private servers of a ``tiercel run`` on this machine,
if there is one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from typing import Annotated

import typer
from rich.console import Console

from tiercel.spark_jobs.state.redis_store import RedisStateStore, check_layout
from tiercel.spark_jobs.state.shown import StateEntry, entry_of, fields_meant
from tiercel.workers.cli.options import Redis, found_settings
from tiercel.workers.control.registry import TopologyNote, topology_named
from tiercel.workers.errors import UsageError
from tiercel.workers.monitoring.screen import state_table
from tiercel.workers.monitoring.wording import count
from tiercel.workers.spelling import did_you_mean
from tiercel.workers.terminal import say

commands = typer.Typer()
# Characters of a value in a table: where several entries are looked at, and where keys are named.
_SHORT = 200
_LONG = 64 * 1024
# Entries whose values are in memory at a time.
_AT_ONCE = 100
_NOT_THERE = 1


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
    # No turn begins, so that no run is ended: this one has no number.
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
    # One that the code has lost may have left entries.
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
