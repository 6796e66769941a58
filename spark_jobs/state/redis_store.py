"""The state in Redis."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tiercel.acker.effects import Effect, perform_all
from tiercel.acker.layout import LedgerSpec, shard_prefix
from tiercel.acker.redis.clients import connect
from tiercel.acker.redis.errors import translated
from tiercel.acker.redis.scripts import RedisEffect, RedisServer, RedisServers
from tiercel.spark_jobs.errors import TurnAgainError
from tiercel.spark_jobs.state import redis_shard
from tiercel.spark_jobs.state.redis_shard import (
    Begun,
    Recalled,
    StateKeys,
    StateShard,
    Turn,
    mark_shard,
    other_shards,
    scan,
    shard_of,
)
from tiercel.spark_jobs.state.store import ENTRIES_AT_ONCE, StateTurn, Writes

# A commit of several calls completes within milliseconds unless its process has died. Then another
# attempt at its task completes it, or the next run undoes it.
_PATIENCE_S = 5.0
_SHORTEST_WAIT_S = 0.005
_LONGEST_WAIT_S = 0.25


def check_layout(spec: LedgerSpec, components: Iterable[str]) -> None:
    """Raise StateLayoutError if the state of a component was written with another number of shards.

    Raises RedisUnavailableError, RedisRefusedError too.
    """
    for component in components:
        with (
            connect(spec.urls[0], shard_prefix(spec.topology, 0)) as client,
            translated("look at the state", client),
        ):
            found: Any = client.hget(StateKeys(spec.topology, 0, component).run, "shards")
        if found is None or int(found) == spec.shards:
            continue
        for shard in range(int(found)):
            keys = StateKeys(spec.topology, shard, component)
            with (
                connect(spec.urls[shard % len(spec.urls)], keys.entries) as client,
                translated("look at the state", client),
            ):
                if client.exists(keys.entries) or client.hexists(keys.run, "ran"):
                    raise other_shards(component, int(found), spec.shards)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskShards:
    """The shards, as one bolt task sees them."""

    mine: Sequence[StateShard]
    # The number of its home shard.
    home: int
    # Returns the shards as another task of the component sees them.
    of: Callable[[int], Sequence[StateShard]]


class RedisStateStore:
    """``StateStore`` next to the ledger, on its servers and in its shards.

    Connects on its first call.
    """

    def __init__(self, spec: LedgerSpec, run_number: int) -> None:
        """Writes of runs with a lower ``run_number`` are refused."""
        self._topology = spec.topology
        self._run_number = run_number
        self._servers = RedisServers(spec.urls)
        self._at = [
            self._servers.at(shard % len(spec.urls), shard_prefix(spec.topology, shard))
            for shard in range(spec.shards)
        ]
        self._shards: dict[tuple[str, int], list[StateShard]] = {}
        # The last look at each shard of a component: its birth, and if a turn had begun.
        self._births: dict[str, list[tuple[bytes, bool]]] = {}

    def begin_run(self, component: str, tasks: int | None = None) -> None:
        # First: the marks of a commit that broke off are taken back from the new buckets.
        self._split_marks(component)
        known = 0
        for shard, server in enumerate(self._at):
            run = StateKeys(self._topology, shard, component).run
            found = server.command(
                "HGET", run, "tasks", read=_number, verb="look at the state"
            ).perform()
            known = max(known, found)
        for task in range(known):
            self.begin(component, task, 0).perform()
        if tasks is not None and tasks < known:
            for one in self._shards_of(component, 0):
                one.forget_turns(self._run_number, range(tasks, known)).perform()

    def age(self, component: str, retention_s: int) -> None:
        perform_all([shard.marks.age(retention_s) for shard in self._shards_of(component, 0)])

    def marks(self, components: Sequence[str]) -> dict[str, int]:
        counted = [
            server.command(
                "HGET",
                StateKeys(self._topology, shard, component).run,
                "marks",
                read=_number,
                verb="count marks",
            )
            for component in components
            for shard, server in enumerate(self._at)
        ]
        found = perform_all(counted)
        shards = len(self._at)
        sums = [sum(found[at : at + shards]) for at in range(0, len(found), shards)]
        return {name: number for name, number in zip(components, sums, strict=True) if number}

    def has_lost(self, component: str) -> bool:
        # Each call offers a word of its own, so a server that has lost the old one shows another.
        word = secrets.token_hex(8)
        looks: list[RedisEffect[Any]] = []
        for shard, server in enumerate(self._at):
            run = StateKeys(self._topology, shard, component).run
            verb = "look at the state"
            looks.append(server.command("HSETNX", run, "born", word, read=_number, verb=verb))
            looks.append(server.command("HMGET", run, "born", "shards", read=list, verb=verb))
        births = [(born, shards is not None) for born, shards in perform_all(looks)[1::2]]
        before = self._births.get(component, births)
        self._births[component] = births
        return any(
            begun and born != now for (born, begun), (now, _) in zip(before, births, strict=True)
        )

    def begin(
        self, component: str, task: int, step: int, fields: Sequence[bytes] = ()
    ) -> Effect[RedisStateTurn]:
        # The home shard first: its record decides what the other shards undo.
        shards = self._shards_of(component, task)
        home = task % len(shards)
        turn = Turn(run_number=self._run_number, step=step)
        parts = by_shard(fields, len(shards))
        first = shards[home].begin(turn, "?", parts[home])

        def others(reply: Any) -> RedisStateTurn:
            begun = first.read(reply)
            where = TaskShards(mine=shards, home=home, of=partial(self._shards_of, component))
            return _begun(where, replace(turn, attempt=begun.attempt), begun, parts)

        return RedisEffect(first.pipeline, first.command, others, first.verb, first.text)

    def entries(
        self, component: str, at_once: int = ENTRIES_AT_ONCE
    ) -> Iterator[tuple[bytes, bytes]]:
        for server, entries in self._entries_of(component):
            yield from scan(server, entries, at_once)

    def values(self, component: str, fields: Sequence[bytes]) -> list[bytes | None]:
        found: dict[bytes, bytes | None] = {}
        parts = by_shard(fields, len(self._at))
        for (server, entries), part in zip(self._entries_of(component), parts, strict=True):
            if part:
                read = server.command("HMGET", entries, *part, read=list, verb="read the state")
                found.update(zip(part, read.perform(), strict=True))
        return [found[one] for one in fields]

    def count(self, component: str) -> int:
        return sum(
            server.command("HLEN", entries, read=_number, verb="look at the state").perform()
            for server, entries in self._entries_of(component)
        )

    def close(self) -> None:
        self._servers.close()

    def _split_marks(self, component: str) -> None:
        """Split the buckets of older versions, and count their marks."""
        for shard, (server, one) in enumerate(
            zip(self._at, self._shards_of(component, 0), strict=True)
        ):
            run = StateKeys(self._topology, shard, component).run
            verb = "look at the state"
            ran, layout = server.command(
                "HMGET", run, "ran", "layout", read=list, verb=verb
            ).perform()
            if ran is not None and layout is None:
                number = sum(part.perform() for part in one.marks.split(self._run_number))
                new = ("marks", number, "layout", 2)
                server.command("HSET", run, *new, read=int, verb=verb).perform()

    def _entries_of(self, component: str) -> list[tuple[RedisServer, str]]:
        """Return the server and the key of the entries in each shard."""
        return [
            (server, StateKeys(self._topology, shard, component).entries)
            for shard, server in enumerate(self._at)
        ]

    def _shards_of(self, component: str, task: int) -> list[StateShard]:
        found = self._shards.get((component, task))
        if found is None:
            found = self._shards[component, task] = [
                StateShard(server, StateKeys(self._topology, shard, component), task, len(self._at))
                for shard, server in enumerate(self._at)
            ]
        return found


class RedisStateTurn:
    """``StateTurn`` in Redis.

    A large commit is sent in slices, and is final when the home shard has its digest.
    """

    def __init__(self, where: TaskShards, turn: Turn, committed_digest: str | None) -> None:
        self._where = where
        self._shards = where.mine
        self._home = where.home
        self.turn = turn
        self.committed_digest = committed_digest
        self.found: dict[bytes, bytes | None] = {}
        # Per shard, the turn before with its calls, and the foreign writes.
        self.seen: Sequence[tuple[bytes, bytes]] = ()
        # Per shard, the number of calls of the commit.
        self.calls = [0] * len(where.mine)

    def follows(self, last: StateTurn) -> bool:
        if not isinstance(last, RedisStateTurn):
            return False
        # A server that went back in time has the turn, and not all of its calls.
        return self.seen == [
            (f"{last.turn} {calls}".encode(), foreign)
            for calls, (_, foreign) in zip(last.calls, last.seen, strict=True)
        ]

    def read(self, fields: Sequence[bytes]) -> list[bytes | None]:
        found: dict[bytes, bytes | None] = {}
        left = fields
        through = self.committed_digest is not None
        while left:
            parts = by_shard(left, len(self._shards))
            asked = [(self._shards[at], part) for at, part in enumerate(parts) if part]
            replies = perform_all([shard.read(part, through=through) for shard, part in asked])
            for (_, part), values in zip(asked, replies, strict=True):
                found.update(zip(part, values, strict=False))
            left = [one for one in left if one not in found]
        return [found[one] for one in fields]

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        for shard in self._shards:
            yield from shard.scan(through=self.committed_digest is not None)

    def recall(self, keys: Sequence[bytes], tasks: int) -> dict[bytes, bytes]:
        through = self.committed_digest is not None
        return MarkReader(self._shards, self._where.of, tasks, through=through).read(keys)

    def writing(self, writes: Writes, digest: str) -> list[Effect[bool]]:
        if self.committed_digest is not None or not writes:
            return []
        shares = shares_of(writes, len(self._shards))
        effects: list[Effect[bool]] = []
        for shard in sorted({*shares, self._home}, key=lambda number: number == self._home):
            slices = slices_of(shares.get(shard, Writes(owners=())))
            self.calls[shard] = len(slices)
            for number, part in enumerate(slices, start=1):
                is_last = shard == self._home and number == len(slices)
                effects.append(
                    self._shards[shard].write(self.turn, number, part, digest if is_last else None)
                )
        return effects


def _begun(
    where: TaskShards, turn: Turn, begun: Begun, parts: Sequence[Sequence[bytes]]
) -> RedisStateTurn:
    """Begin in the other shards too, and read the remaining fields."""
    shards = where.mine
    others = [shard for shard in range(len(shards)) if shard != where.home]
    replies = perform_all(
        [shards[shard].begin(turn, begun.committed, parts[shard]) for shard in others]
    )
    digest = begun.digest if begun.committed == turn.place else None
    made = RedisStateTurn(where, turn, digest)
    answers = dict(zip([where.home, *others], [begun, *replies], strict=True))
    made.seen = [answers[shard].seen for shard in range(len(shards))]
    for shard, answer in answers.items():
        made.found.update(zip(parts[shard], answer.values, strict=False))
    left = [one for part in parts for one in part if one not in made.found]
    if left:
        made.found.update(zip(left, made.read(left), strict=True))
    return made


def _number(reply: Any) -> int:
    return int(reply or 0)


class MarkReader:
    """Reads marks, and waits until their commits are final. For one thread."""

    def __init__(
        self,
        shards: Sequence[StateShard],
        shards_of: Callable[[int], Sequence[StateShard]],
        tasks: int,
        *,
        through: bool,
    ) -> None:
        """``shards`` belong to this task, ``shards_of`` returns the shards of another task."""
        self._shards = shards
        self._shards_of = shards_of
        self._tasks = tasks
        self._through = through

    def read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the records of the existing marks; raises TurnAgainError."""
        found = self._read(keys)
        wait_s = _SHORTEST_WAIT_S
        until = time.monotonic() + _PATIENCE_S
        while unsure := [key for key, one in found.items() if isinstance(one, tuple)]:
            if time.monotonic() > until:
                raise TurnAgainError("another task is applying one of the tuples")
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
            for key in unsure:
                del found[key]
            found |= self._read(unsure)
        return {key: one for key, one in found.items() if isinstance(one, bytes)}

    def _read(self, keys: Sequence[bytes]) -> dict[bytes, Recalled]:
        found = self._recalled(keys, self._tasks)
        unsure = {key: one for key, one in found.items() if isinstance(one, tuple)}
        if unsure:
            self._ask_home(unsure, found)
        return found

    def _recalled(self, keys: Sequence[bytes], tasks: int) -> dict[bytes, Recalled]:
        found: dict[bytes, Recalled] = {}
        while keys:
            left: list[bytes] = []
            for some, unread in perform_all(self._recalling(keys, tasks)):
                found |= some
                left += unread
            keys = left
        return found

    def _recalling(
        self, keys: Sequence[bytes], tasks: int
    ) -> list[RedisEffect[tuple[dict[bytes, Recalled], Sequence[bytes]]]]:
        parts: dict[int, Sequence[bytes]] = {0: keys}
        if len(self._shards) > 1:
            in_shards: dict[int, list[bytes]] = {}
            for key in keys:
                in_shards.setdefault(mark_shard(key, len(self._shards)), []).append(key)
            parts = dict(in_shards)
        return [
            effect
            for shard, part in parts.items()
            for effect in self._shards[shard].marks.recall(part, tasks, through=self._through)
        ]

    def _ask_home(
        self, unsure: Mapping[bytes, tuple[int, str]], found: dict[bytes, Recalled]
    ) -> None:
        """Ask the home shards of the tasks that made a mark whether its commit is final."""
        final = {task: self._committed(task) for task in {task for task, _ in unsure.values()}}
        sure = [key for key, (task, place) in unsure.items() if final[task] == place]
        for key in sure:
            del found[key]
        # Read again: a final mark stays.
        found |= self._recalled(sure, 0)

    def _committed(self, task: int) -> str:
        shards = self._shards_of(task)
        return shards[task % len(shards)].committed().perform()


def by_shard(fields: Sequence[bytes], shards: int) -> Sequence[Sequence[bytes]]:
    if shards == 1:
        return [fields]
    parts: list[list[bytes]] = [[] for _ in range(shards)]
    for one in fields:
        parts[shard_of(one, shards)].append(one)
    return parts


def shares_of(writes: Writes, shards: int) -> dict[int, Writes]:
    """Divide the writes among the shards."""
    if shards == 1:
        return {0: writes}
    puts: dict[int, dict[bytes, bytes]] = {}
    deletes: dict[int, list[bytes]] = {}
    increments: dict[int, dict[bytes, int]] = {}
    for one, value in writes.puts.items():
        puts.setdefault(shard_of(one, shards), {})[one] = value
    for one in writes.deletes:
        deletes.setdefault(shard_of(one, shards), []).append(one)
    for one, by in writes.increments.items():
        increments.setdefault(shard_of(one, shards), {})[one] = by
    marks: dict[int, dict[bytes, bytes]] = {}
    for key, record in writes.marks.items():
        marks.setdefault(mark_shard(key, shards), {})[key] = record
    return {
        shard: Writes(
            puts=puts.get(shard, {}),
            deletes=deletes.get(shard, []),
            increments=increments.get(shard, {}),
            marks=marks.get(shard, {}),
            owners=writes.owners,
        )
        for shard in {*puts, *deletes, *increments, *marks}
    }


def slices_of(writes: Writes) -> list[Writes]:
    """Cut into calls, at least one. Marks come first, because one of them may be refused."""
    if not writes.marks:
        return _entries(writes)
    made = [Writes(marks=part) for part in _cut(writes.marks, redis_shard.MARKS_AT_ONCE)]
    return [*made, *_entries(writes)] if len(writes) else made


def _entries(writes: Writes) -> list[Writes]:
    size = redis_shard.SLICE
    if len(writes) <= size and redis_shard.bytes_of(writes.puts) <= redis_shard.SLICE_BYTES:
        return [replace(writes, marks={})]
    deletes = list(writes.deletes)
    increments = list(writes.increments.items())
    cut = partial(Writes, owners=writes.owners)
    return [
        *(cut(puts=part) for part in _cut(writes.puts, size)),
        *(cut(deletes=deletes[start : start + size]) for start in range(0, len(deletes), size)),
        *(
            cut(increments=dict(increments[start : start + size]))
            for start in range(0, len(increments), size)
        ),
    ]


def _cut(pairs: Mapping[bytes, bytes], most: int) -> Iterator[dict[bytes, bytes]]:
    """Cut into parts of at most ``most`` pairs and ``SLICE_BYTES``, each with a pair at least."""
    part: dict[bytes, bytes] = {}
    left = redis_shard.SLICE_BYTES
    for one, value in pairs.items():
        if len(part) == most or (part and len(value) > left):
            yield part
            part, left = {}, redis_shard.SLICE_BYTES
        part[one] = value
        left -= len(value)
    if part:
        yield part
