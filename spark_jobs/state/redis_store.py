"""The state in Redis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import redis

from acker import Applied, LedgerSpec
from acker.layout import shard_prefix
from acker.redis_client import connect
from acker.redis_errors import translated
from acker.scripts import script_source
from spark_jobs.errors import BadStateError, StaleTurnError, StateLayoutError
from spark_jobs.state.redis_keys import StateKeys, shard_of
from spark_jobs.state.store import Writes
from spark_jobs.state.undo import value_before

SLICE = 2_000
"""Writes a call: a few milliseconds, and half of what Lua can unpack."""
_READ_AT_ONCE = 5_000
_SCAN_COUNT = 1_000
_STALE, _MORE, _BEGUN, _OTHER_SHARDS = range(4)


def check_layout(spec: LedgerSpec, components: Iterable[str]) -> None:
    """Raise StateLayoutError if the state of a component was written with another number of shards.

    Raises LedgerUnavailableError, LedgerRefusedError too.
    """
    for component in components:
        with connect(spec.urls[0], shard_prefix(spec.topology, 0)) as client, translated("look at the state"):
            found: Any = client.hget(StateKeys(spec.topology, 0, component).run, "shards")
        if found is None or int(found) == spec.shards:
            continue
        for shard in range(int(found)):
            keys = StateKeys(spec.topology, shard, component)
            with connect(spec.urls[shard % len(spec.urls)], keys.entries) as client, translated("look at the state"):
                if client.exists(keys.entries):
                    raise other_shards(component, int(found), spec.shards)


def other_shards(component: str, then: int, now: int) -> StateLayoutError:
    """Return the error for a state that was written with another number of shards."""
    return StateLayoutError(
        f"the state of {component!r} was written with ackers={then}, now it is {now}: set ackers={then} again,"
        " or remove the state"
    )


class RedisStateStore:
    """``StateStore`` beside the ledger, on its servers and in its shards. Connects on its first call."""

    def __init__(self, spec: LedgerSpec, epoch: int) -> None:
        """``epoch`` is the number of the run: what a run with a lower one still writes is refused."""
        self._topology, self._shards, self._epoch = spec.topology, spec.shards, epoch
        self._client_of = [
            connect(spec.urls[shard % len(spec.urls)], shard_prefix(spec.topology, shard)) for shard in range(spec.shards)
        ]

    def begin_run(self, component: str) -> None:
        tasks = 0
        for shard, client in enumerate(self._client_of):
            with translated("look at the state"):
                found: Any = client.hget(StateKeys(self._topology, shard, component).run, "tasks")
            tasks = max(tasks, int(found or 0))
        for task in range(tasks):
            self.begin(component, task, 0)

    def begin(self, component: str, task: int, batch: int) -> RedisStateTurn:
        # The home shard first: what it knows decides what the others take back.
        first = task % self._shards
        home = _Shard(self._client_of[first], StateKeys(self._topology, first, component), task)
        others = [
            (shard, _Shard(self._client_of[shard], StateKeys(self._topology, shard, component), task))
            for shard in range(self._shards)
            if shard != first
        ]
        attempt, sealed, digest = self._begin(home, component, (batch, 0), "?")
        for _, other in others:
            self._begin(other, component, (batch, attempt), sealed)
        shards = [shard for _, shard in sorted([(first, home), *others], key=lambda pair: pair[0])]
        final = digest if sealed == f"{self._epoch} {batch}" else None
        return RedisStateTurn(shards, first, f"{self._epoch} {batch} {attempt}", final)

    def entries(self, component: str) -> Iterator[tuple[bytes, bytes]]:
        for shard, client in enumerate(self._client_of):
            yield from _scan(client, StateKeys(self._topology, shard, component).entries)

    def close(self) -> None:
        for client in self._client_of:
            client.close()

    def _begin(self, shard: _Shard, component: str, turn: tuple[int, int], sealed: str) -> tuple[int, str, str]:
        """Returns the attempt, and "epoch batch" and digest of the last commit."""
        batch, attempt = turn
        verdict = _MORE
        while verdict == _MORE:
            verdict, attempt, found, digest = shard.begin(self._epoch, batch, attempt, self._shards, sealed)
        if verdict == _STALE:
            raise StaleTurnError(
                f"step {batch} of run {self._epoch} comes too late: a later one uses the state of {component!r}"
            )
        if verdict == _OTHER_SHARDS:
            raise other_shards(component, attempt, self._shards)
        return attempt, found, digest


class RedisStateTurn:
    """``StateTurn`` in Redis. A commit of many writes goes in slices, and is final when the home shard has sealed it."""

    def __init__(self, shards: Sequence[_Shard], home: int, turn: str, sealed: str | None) -> None:
        self._shards, self._home, self._turn = shards, home, turn
        self.sealed = sealed

    def read(self, fields: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = [None] * len(fields)
        positions: dict[int, list[int]] = {}
        for position, one in enumerate(fields):
            positions.setdefault(shard_of(one, len(self._shards)), []).append(position)
        for shard, mine in positions.items():
            values = self._shards[shard].read([fields[position] for position in mine], through=self.sealed is not None)
            for position, value in zip(mine, values, strict=True):
                found[position] = value
        return found

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        for shard in self._shards:
            yield from shard.scan(through=self.sealed is not None)

    def commit(self, writes: Writes, digest: str) -> Applied:
        if self.sealed is not None:
            return Applied.REPEATED if self.sealed == digest else Applied.CONFLICTING
        if not writes:
            return Applied.FRESH
        shares = _shares(writes, len(self._shards))
        for shard in sorted({*shares, self._home}, key=lambda number: number == self._home):
            slices = _slices(shares.get(shard, Writes()))
            for number, part in enumerate(slices, start=1):
                seals = shard == self._home and number == len(slices)
                self._shards[shard].write(self._turn, number, part, digest if seals else None)
        return Applied.FRESH


class _Shard:
    """What one bolt task does in one shard, a method a call."""

    def __init__(self, client: redis.Redis, keys: StateKeys, task: int) -> None:
        self._client, self._keys, self._task = client, keys.of(task), task
        self._entries, self._undo = keys.entries, keys.undo(task)

    def begin(self, epoch: int, batch: int, attempt: int, shards: int, sealed: str) -> tuple[int, int, str, str]:
        """Verdict, attempt or number of shards, "epoch batch" of the last commit, its digest."""
        with translated("begin with the state"):
            args = [epoch, batch, attempt, shards, sealed, SLICE, self._task]
            verdict, number, found, digest = self._call("begin", args)
        return verdict, number, found.decode(), digest.decode()

    def read(self, fields: Sequence[bytes], *, through: bool) -> list[bytes | None]:
        """Values, ``through`` the undo log or as they are."""
        hashes = [self._entries, self._undo] if through else [self._entries]
        with translated("read the state"), self._client.pipeline(transaction=through) as pipeline:
            for start in range(0, len(fields), _READ_AT_ONCE):
                for name in hashes:
                    pipeline.hmget(name, fields[start : start + _READ_AT_ONCE])
            replies = pipeline.execute()
        if not through:
            return [value for reply in replies for value in reply]
        return [
            value_before(value, record)
            for values, records in zip(replies[::2], replies[1::2], strict=True)
            for value, record in zip(values, records, strict=True)
        ]

    def scan(self, *, through: bool) -> Iterator[tuple[bytes, bytes]]:
        with translated("read the state"):
            undo: Any = self._client.hgetall(self._undo) if through else {}
        left = dict(undo)
        for one, value in _scan(self._client, self._entries):
            left.pop(one, None)
            before = value_before(value, undo.get(one))
            if before is not None:
                yield one, before
        for one, record in left.items():
            before = value_before(None, record)
            if before is not None:
                yield one, before

    def write(self, turn: str, number: int, writes: Writes, digest: str | None) -> None:
        """The ``number``-th call of a turn; with a digest the last of its commit."""
        epoch, batch, _ = turn.split()
        seal = ["", ""] if digest is None else [f"{epoch} {batch}", digest]
        args: list[Any] = [epoch, turn, number, *seal, len(writes.puts), len(writes.deletes)]
        for put in writes.puts.items():
            args += put
        args += writes.deletes
        for increment in writes.increments.items():
            args += increment
        with translated("write the state"):
            verdict = self._call("write", args)
        if verdict == 0:
            raise StaleTurnError("a later attempt or run has taken the bolt task over: what this one wrote is taken back")
        if verdict == 2:
            raise BadStateError("an increment met an entry that is no number of 64 bits any more")

    def _call(self, script: str, args: Sequence[Any]) -> Any:
        return self._client.register_script(_source("undo") + _source(script))(keys=self._keys, args=args)


def _scan(client: redis.Redis, entries: str) -> Iterator[tuple[bytes, bytes]]:
    cursor = -1
    while cursor != 0:
        with translated("read the state"):
            page: Any
            cursor, page = client.hscan(entries, max(cursor, 0), count=_SCAN_COUNT)
        yield from page.items()


def _shares(writes: Writes, shards: int) -> dict[int, Writes]:
    """The writes of each shard."""
    puts: dict[int, dict[bytes, bytes]] = {}
    deletes: dict[int, list[bytes]] = {}
    increments: dict[int, dict[bytes, int]] = {}
    for one, value in writes.puts.items():
        puts.setdefault(shard_of(one, shards), {})[one] = value
    for one in writes.deletes:
        deletes.setdefault(shard_of(one, shards), []).append(one)
    for one, by in writes.increments.items():
        increments.setdefault(shard_of(one, shards), {})[one] = by
    return {
        shard: Writes(puts=puts.get(shard, {}), deletes=deletes.get(shard, []), increments=increments.get(shard, {}))
        for shard in {*puts, *deletes, *increments}
    }


def _slices(writes: Writes) -> list[Writes]:
    """Cut into calls; one at least."""
    if len(writes) <= SLICE:
        return [writes]
    puts, deletes, increments = list(writes.puts.items()), list(writes.deletes), list(writes.increments.items())
    return [
        *(Writes(puts=dict(puts[start : start + SLICE])) for start in range(0, len(puts), SLICE)),
        *(Writes(deletes=deletes[start : start + SLICE]) for start in range(0, len(deletes), SLICE)),
        *(Writes(increments=dict(increments[start : start + SLICE])) for start in range(0, len(increments), SLICE)),
    ]


def _source(name: str) -> str:
    return script_source(name, "spark_jobs.state")
