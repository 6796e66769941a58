"""The commands about states: ``state show``, ``state export``, ``state import``.

``tiercel state TOPOLOGY BOLT`` is short for ``tiercel state show TOPOLOGY BOLT``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from typer.core import TyperGroup

from tiercel.acker.layout import LedgerSpec
from tiercel.queues.nouns import counted, did_you_mean
from tiercel.spark_jobs.state.encoding import StateEntry, entry_of, fields_meant
from tiercel.spark_jobs.state.redis_savepoint import Import, Savepoints
from tiercel.spark_jobs.state.redis_store import RedisStateStore, check_layout
from tiercel.spark_jobs.state.savepoint import (
    Saved,
    SavedBolt,
    SavedMark,
    SavedStates,
    SavepointFile,
    open_savepoint,
    write_savepoint,
)
from tiercel.workers.cli.options import Name, Redis, Yes, found_settings, json_per
from tiercel.workers.control.registry import TopologyNote, known_topologies, topology_named
from tiercel.workers.control.steering import log_action, this_user, while_stopped
from tiercel.workers.errors import UsageError
from tiercel.workers.monitoring import screen
from tiercel.workers.monitoring.tables import STATE, count
from tiercel.workers.terminal import ask, say

# Characters of a value shown in a table: for a list of entries, and for named keys.
_SHORT = 200
_LONG = 64 * 1024
# From this many entries and remembered keys on, a move takes long enough to be announced.
_MANY = 100_000
# Number of entries whose values are read at a time.
_AT_ONCE = 100
_NOT_THERE = 1


class _StateCommands(TyperGroup):
    """Takes the name of a topology for ``show`` of it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, "--help"}:
            args = ["show", *args]
        return super().parse_args(ctx, args)


commands = typer.Typer()
states = typer.Typer(
    cls=_StateCommands,
    help="Look at the state of a stateful bolt, export states to a file, or import them.",
    no_args_is_help=True,
)
commands.add_typer(states, name="state")

ExportPlaces = Annotated[
    list[str],
    typer.Argument(
        metavar="[BOLT] FILE", help="one bolt, by default all that have a state; a new file"
    ),
]
ImportPlaces = Annotated[
    list[str],
    typer.Argument(
        metavar="[BOLT] FILE",
        help="one bolt, by its name in the topology, by default all in the file; the file",
    ),
]
Rename = Annotated[
    list[str] | None,
    typer.Option(
        metavar="OLD=NEW", help="import the state of OLD for the bolt NEW; repeat it for more"
    ),
]
Source = Annotated[
    str | None,
    typer.Option("--from", metavar="TOPOLOGY", help="the file is of this other topology"),
]
Ackers = Annotated[
    int | None,
    typer.Option(min=1, max=4_096, help="number of ackers in the new code, if it has changed"),
]
WithoutKeys = Annotated[
    bool,
    typer.Option("--without-keys", help="leave out what bolts with once remember of messages"),
]


@states.command()
def show(  # noqa: PLR0913 - one parameter an option
    topology: Name,
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
    as_json: Annotated[bool, json_per("entry")] = False,
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
        say(
            f"the state of {component} in {topology} is empty: it has no entries yet, or it is not "
            "a stateful bolt",
            err=True,
        )
    elif there > limit:
        say(f"{count(limit)} of {count(there)} entries; name keys, or --limit", err=True)


@states.command()
def export(topology: Name, places: ExportPlaces, *, redis: Redis = None) -> None:
    """Export the states of a topology that does not run to a file of JSON lines.

    All of it or nothing; the file is readable for this user only. What bolts with once remember of
    their messages is exported too.
    """
    bolt, path = _bolt_and_file(places)
    settings = found_settings(topology=topology, redis=redis).required("redis")
    url = settings.redis_urls[0]
    spec = topology_named(url, topology).ledger_spec(settings.redis_urls)
    with (
        while_stopped(url, topology, "its states are being exported") as number,
        closing(Savepoints(spec, number)) as savepoints,
    ):
        bolts = _with_states(savepoints, bolt)
        header = SavedStates(
            version=metadata.version("tiercel"),
            saved=datetime.now(UTC).isoformat(timespec="seconds"),
            topology=topology,
            bolts=tuple(bolts),
        )
        _announce("exporting", {one.name: one for one in bolts})
        write_savepoint(path, header, chain.from_iterable(map(savepoints.saved, bolts)))
    for one in bolts:
        say(f"exported {_size(one)} of {one.name}")
    say(f"{topology} is in {path}; import it with tiercel state import {topology} {path}")


def _with_states(savepoints: Savepoints, bolt: str | None) -> list[SavedBolt]:
    """Return the named bolt, or all that have a state. Raises UsageError if there is none."""
    names = savepoints.components()
    if bolt is not None and bolt not in names:
        raise UsageError(_no_state(savepoints.topology, bolt, names))
    found = [savepoints.describe(name) for name in ([bolt] if bolt is not None else names)]
    bolts = [one for one in found if one.entries or one.marks or one.name == bolt]
    if not bolts:
        raise UsageError(f"no bolt of {savepoints.topology} has a state")
    return bolts


def _no_state(topology: str, bolt: str, names: Sequence[str]) -> str:
    there = f"; there are states of {', '.join(names)}" if names else "; no bolt of it has one"
    return f"there is no state of {bolt!r} in {topology}{did_you_mean(bolt, names) or there}"


@states.command("import")
def import_(  # noqa: PLR0913 - one parameter an option
    topology: Name,
    places: ImportPlaces,
    *,
    rename: Rename = None,
    source: Source = None,
    ackers: Ackers = None,
    without_keys: WithoutKeys = False,
    yes: Yes = False,
    redis: Redis = None,
) -> None:
    """Replace states of a topology that does not run by those in a file.

    The whole file is checked before anything is written. Asks first if there are entries now.
    """
    bolt, path = _bolt_and_file(places)
    settings = found_settings(topology=topology, redis=redis).required("redis")
    url = settings.redis_urls[0]
    note = known_topologies(url).get(topology)
    with open_savepoint(path) as file:
        _check_topology(path, file.header.topology, source or topology)
        choice = _ImportChoice(bolt, _renames(rename or ()), source, ackers)
        plan = _Plan.of(topology, file.header, note, choice)
        plan = plan.without_marks() if without_keys else plan
        plan.check()
        _announce("checking", plan.bolts, f" in {path}")
        file.check()
        with (
            while_stopped(url, topology, "its states are being imported") as number,
            closing(Savepoints(plan.spec(settings.redis_urls, note), number)) as savepoints,
        ):
            there = savepoints.begin_import(plan.bolts, plan.shards)
            if not yes:
                _ask(topology, there)
            _import(there, plan, file)
    names = ", ".join(plan.bolts)
    log_action("import", topology, f"replaced the state of {names}", this_user())
    for name, one in plan.bolts.items():
        say(f"imported {_size(one)} of {name}")


def _check_topology(path: Path, found: str, wanted: str) -> None:
    if found != wanted:
        raise UsageError(
            f"{path} is of {found!r}, not of {wanted!r}: --from {found} imports it all the same"
        )


def _bolt_and_file(places: Sequence[str]) -> tuple[str | None, Path]:
    *bolt, file = places
    if len(bolt) > 1:
        raise UsageError(f"name one bolt and a file, or only a file: there is {' '.join(places)}")
    return (bolt[0] if bolt else None), Path(file)


def _renames(options: Sequence[str]) -> dict[str, str]:
    renames: dict[str, str] = {}
    for option in options:
        old, equals, new = option.partition("=")
        if not (old and equals and new):
            raise UsageError(f"--rename {option!r:.60}: write OLD=NEW, such as count=tally")
        if old in renames or new in renames.values():
            raise UsageError(f"--rename {option!r:.60}: a bolt is named twice")
        renames[old] = new
    return renames


class _ImportChoice(NamedTuple):
    """The options of an import."""

    bolt: str | None
    renames: Mapping[str, str]
    source: str | None
    ackers: int | None


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """An import: for each state of a file, the bolt that gets it."""

    topology: str
    header: SavedStates
    # The name in the topology to the state in the file.
    bolts: Mapping[str, SavedBolt]
    shards: int

    @classmethod
    def of(
        cls, topology: str, header: SavedStates, note: TopologyNote | None, choice: _ImportChoice
    ) -> _Plan:
        """Choose the states. Raises UsageError for names that the file does not have."""
        bolt, renames, source, ackers = choice
        for old in renames:
            if header.bolt(old) is None:
                raise UsageError(f"--rename {old}={renames[old]}: {_has(header, old)}")
        named = {renames.get(one.name, one.name): one for one in header.bolts}
        if len(named) < len(header.bolts):
            raise UsageError("--rename would give two states of the file to one bolt")
        if bolt is not None:
            if bolt not in named:
                raise UsageError(
                    f"{_has(header, bolt)}; --rename OLD={bolt} imports another bolt's state for it"
                )
            named = {bolt: named[bolt]}
        if note is None and source is not None:
            raise UsageError(f"there is no topology {topology!r}: start it once, then import")
        known = note.graph.shards if note is not None else max(one.shards for one in named.values())
        plan = cls(
            topology=topology,
            header=header,
            bolts=named,
            shards=ackers or max(1, known),
        )
        if note is not None and plan.header.topology != topology:
            plan.check_names([one.name for one in note.graph.bolts], set(renames.values()))
        return plan

    def check_names(self, bolts: Sequence[str], renamed: set[str]) -> None:
        """Raise UsageError for a bolt of another topology that this one does not have."""
        for name in self.bolts:
            if name not in bolts and name not in renamed:
                raise UsageError(
                    f"{self.topology} has no bolt {name!r}"
                    + (did_you_mean(name, bolts) or f"; its bolts are {', '.join(bolts)}")
                    + f"; --rename {name}=BOLT imports its state for another one"
                )

    def without_marks(self) -> _Plan:
        """Return the same plan without remembered keys."""
        bare = {name: replace(bolt, marks=0, ran=()) for name, bolt in self.bolts.items()}
        return replace(self, bolts=bare)

    def check(self) -> None:
        """Raise UsageError for remembered keys that cannot move."""
        for name, bolt in self.bolts.items():
            moved = name != bolt.name or self.topology != self.header.topology
            if bolt.marks and (moved or bolt.shards != self.shards):
                why = (
                    "are made of the names of topology and bolt"
                    if moved
                    else f"lie in {counted(bolt.shards, 'acker')}, and there are {self.shards} now"
                )
                raise UsageError(
                    f"{counted(bolt.marks, 'remembered key')} of {bolt.name} cannot be imported: "
                    f"they {why}; --without-keys imports the state alone, and a message that was "
                    "processed before then counts again if it is delivered again: empty the queues "
                    "first"
                )

    def spec(self, redis_urls: tuple[str, ...], note: TopologyNote | None) -> LedgerSpec:
        """Return the location of the topology's states."""
        if note is not None:
            return note.ledger_spec(redis_urls)
        return LedgerSpec(
            topology=self.topology,
            urls=redis_urls,
            shards=self.shards,
            owners=1,
            message_timeout=None,
        )

    def chosen(self, saved: Iterable[Saved]) -> Iterator[tuple[str, Saved]]:
        """Yield each imported state, with the name of its bolt in the topology."""
        names = {bolt.name: name for name, bolt in self.bolts.items()}
        for one in saved:
            name = names.get(one.bolt)
            if name is not None and not (isinstance(one, SavedMark) and not self.bolts[name].marks):
                yield name, one


def _has(header: SavedStates, name: str) -> str:
    names = [bolt.name for bolt in header.bolts]
    return (
        f"the file has no state of {name!r}, but of {', '.join(names) or 'none'}"
        f"{did_you_mean(name, names)}"
    )


def _ask(topology: str, there: Import) -> None:
    """Ask before entries are replaced."""
    present = [one for one in there.before.values() if one.entries or one.marks]
    if present:
        sizes = ", ".join(f"{_size(one)} of {one.name}" for one in present)
        ask(f"Replace {sizes} in {topology} for good?")


def _import(there: Import, plan: _Plan, file: SavepointFile) -> None:
    """Write everything beside the present states, then replace them; else leave nothing behind."""
    _announce("importing", plan.bolts)
    try:
        there.stage(plan.chosen(file.saved()))
        there.replace()
    finally:
        there.drop()


def _announce(doing: str, bolts: Mapping[str, SavedBolt], where: str = "") -> None:
    """Say on stderr what takes a while: millions of entries take minutes."""
    for name, one in bolts.items():
        if one.entries + one.marks >= _MANY:
            say(f"{doing} {_size(one)} of {name}{where}", err=True)


def _size(bolt: SavedBolt) -> str:
    entries = f"{count(bolt.entries)} {'entry' if bolt.entries == 1 else 'entries'}"
    return f"{entries} and {counted(bolt.marks, 'remembered key')}" if bolt.marks else entries
