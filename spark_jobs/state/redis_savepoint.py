"""Export and import of the states of a topology that does not run.

Both have a number like that of a run, drawn by the caller, who holds the driver's seat: processes
of earlier runs are refused from then on, and their incomplete commits are undone first. An import
writes all of it beside the present states, and replaces these when it is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from urllib.parse import unquote

from tiercel.acker.effects import perform_all
from tiercel.acker.layout import LedgerSpec, shard_prefix
from tiercel.acker.redis.scripts import RedisServer, RedisServers, script_source
from tiercel.spark_jobs.errors import SavepointError
from tiercel.spark_jobs.state import redis_shard
from tiercel.spark_jobs.state.redis_shard import StateKeys, scan, shard_of
from tiercel.spark_jobs.state.redis_store import RedisStateStore
from tiercel.spark_jobs.state.savepoint import Saved, SavedBolt, SavedEntry, SavedMark

# Bounds on an import's writes in memory.
_PAIRS_AT_ONCE = 1_000
_BYTES_AT_ONCE = 1 << 20
_BUCKETS_AT_ONCE = 512
_ALL = range(redis_shard.BUCKETS)
_KEYS_AT_ONCE = 1_000


class Savepoints:
    """The states of one topology. Raises RedisUnavailableError, RedisRefusedError."""

    def __init__(self, spec: LedgerSpec, number: int) -> None:
        """``number`` is above the numbers of all earlier runs."""
        self.topology = spec.topology
        self.number = number
        self._spec = spec
        self._servers = RedisServers(spec.urls)

    def components(self) -> list[str]:
        """Return the names of all components that have ever had a state, also of removed ones."""
        prefix = StateKeys(self.topology, 0, "").run
        server = self.at(0)
        found: set[str] = set()
        cursor = -1
        while cursor != 0:
            words = ("SCAN", max(cursor, 0), "MATCH", f"{prefix}*", "COUNT", _KEYS_AT_ONCE)
            at, page = server.command(*words, read=tuple, verb="look for states").perform()
            cursor = int(at)
            found.update(unquote(key.decode()[len(prefix) :]) for key in page)
        return sorted(found)

    def describe(self, component: str) -> SavedBolt:
        """Return the size of a state, after incomplete commits were undone."""
        runs = self._runs(component)
        shards = int(runs[0].get("shards", self._spec.shards))
        with closing(self._store(shards)) as store:
            store.begin_run(component)
            entries = store.count(component)
            marks = store.marks([component]).get(component, 0)
        ran = [int(run.get("ran", 0)) for run in self._runs(component, shards)]
        return SavedBolt(
            name=component,
            tasks=max(int(run.get("tasks", 0)) for run in runs),
            shards=shards,
            entries=entries,
            marks=marks,
            ran=tuple(ran) if any(ran) else (),
        )

    def saved(self, bolt: SavedBolt) -> Iterator[Saved]:
        """Yield all entries, each once, and all marks. Keeps the keys in memory."""
        for shard in range(bolt.shards):
            keys = StateKeys(self.topology, shard, bolt.name)
            server = self.at(shard)
            seen: set[bytes] = set()
            for field, value in scan(server, keys.entries):
                # Redis may return an entry twice while it resizes its table.
                if field not in seen:
                    seen.add(field)
                    yield SavedEntry(bolt=bolt.name, field=field, value=value)
            if bolt.marks:
                yield from _marks(server, keys, bolt.name, shard)

    def begin_import(self, bolts: Mapping[str, SavedBolt], shards: int) -> Import:
        """Begin to import states: name to the state in the file."""
        before = {name: self.describe(name) for name in bolts}
        return Import(self, bolts, shards, before)

    def close(self) -> None:
        """Release the connections. Idempotent."""
        self._servers.close()

    def _store(self, shards: int) -> RedisStateStore:
        return RedisStateStore(replace(self._spec, shards=shards), self.number)

    def _runs(self, component: str, shards: int = 1) -> list[dict[str, str]]:
        read = [
            self.at(shard).command(
                "HGETALL",
                StateKeys(self.topology, shard, component).run,
                read=_texts,
                verb="look at the state",
            )
            for shard in range(shards)
        ]
        found: list[dict[str, str]] = perform_all(read)
        return found

    def at(self, shard: int) -> RedisServer:
        """Return the server of a shard."""
        return self._servers.at(shard % len(self._spec.urls), shard_prefix(self.topology, shard))


@dataclass(frozen=True, slots=True)
class _StagedKey:
    """A key that an import writes, in its shard."""

    shard: int
    key: str


class Import:
    """States on their way beside the present ones. For one thread."""

    def __init__(
        self,
        savepoints: Savepoints,
        bolts: Mapping[str, SavedBolt],
        shards: int,
        before: Mapping[str, SavedBolt],
    ) -> None:
        self._topology = savepoints.topology
        self._at = savepoints.at
        self._number = savepoints.number
        self._bolts = bolts
        self._shards = shards
        # The present states, which are replaced.
        self.before = before
        self._waiting: dict[_StagedKey, list[bytes]] = {}
        self._pairs = self._bytes = 0

    def stage(self, saved: Iterable[tuple[str, Saved]]) -> None:
        """Write everything beside the present states; each has the name of its new bolt.

        Raises SavepointError if two lines have the same key. Then, and after any other error, call
        ``drop``.
        """
        self.drop()
        for name, one in saved:
            if isinstance(one, SavedEntry):
                shard = shard_of(one.field, self._shards)
                key, pair = self._keys(name, shard).staged, (one.field, one.value)
            else:
                shard = one.shard
                number = redis_shard.bucket_of(one.field, one.bucket)
                [key] = self._keys(name, shard).staged_buckets([number])
                pair = one.field, one.mark
            self._waiting.setdefault(_StagedKey(shard, key), []).extend(pair)
            self._pairs += 1
            self._bytes += sum(map(len, pair))
            if self._pairs >= _PAIRS_AT_ONCE or self._bytes >= _BYTES_AT_ONCE:
                self._send()
        self._send()
        for name, bolt in self._bolts.items():
            self._check(name, bolt)

    def replace(self) -> None:
        """Replace the present states: in one call per bolt and shard, so that a process that dies
        in between leaves each shard as it was or replaced. Idempotent.

        Raises SavepointError if a run has begun meanwhile.
        """
        text = script_source("replace", package="tiercel.spark_jobs.state")
        for name, bolt in self._bolts.items():
            calls = []
            for shard in range(max(self._shards, self.before[name].shards)):
                keys = self._keys(name, shard)
                pairs = zip(
                    [keys.entries, *keys.buckets(_ALL)],
                    [keys.staged, *keys.staged_buckets(_ALL)],
                    strict=True,
                )
                ran: int | str = ""
                number: int | str = ""
                if bolt.marks:
                    ran = bolt.ran[shard] if shard < len(bolt.ran) else 0
                    number = self._marks(name, shard)
                args = [self._number, self._shards if shard < self._shards else "", ran, number]
                script = self._at(shard).script(text)
                words = [keys.run, *chain.from_iterable(pairs)]
                calls.append(script(words, args, _replaced, "import the state"))
            perform_all(calls)

    def drop(self) -> None:
        """Delete everything that was written beside the present states. Idempotent."""
        self._waiting.clear()
        for name in self._bolts:
            for shard in range(self._shards):
                keys = self._keys(name, shard)
                staged = [keys.staged, *keys.staged_buckets(_ALL)]
                self._at(shard).command("UNLINK", *staged, verb="import the state").perform()

    def _send(self) -> None:
        perform_all(
            [
                self._at(place.shard).command(
                    "HSET", place.key, *pairs, read=int, verb="import the state"
                )
                for place, pairs in self._waiting.items()
            ]
        )
        self._waiting.clear()
        self._pairs = self._bytes = 0

    def _check(self, name: str, bolt: SavedBolt) -> None:
        entries = sum(
            self._length(shard, self._keys(name, shard).staged) for shard in range(self._shards)
        )
        marks = sum(self._marks(name, shard) for shard in range(self._shards)) if bolt.marks else 0
        if (entries, marks) != (bolt.entries, bolt.marks):
            raise SavepointError(
                f"two lines of {bolt.name} have the same key, or the file has changed; nothing was "
                "imported"
            )

    def _marks(self, name: str, shard: int) -> int:
        server = self._at(shard)
        buckets = self._keys(name, shard).staged_buckets(_ALL)
        return sum(
            perform_all(
                [
                    server.command("HLEN", bucket, read=int, verb="import the state")
                    for bucket in buckets
                ]
            )
        )

    def _length(self, shard: int, key: str) -> int:
        return self._at(shard).command("HLEN", key, read=int, verb="import the state").perform()

    def _keys(self, name: str, shard: int) -> StateKeys:
        return StateKeys(self._topology, shard, name)


def _marks(server: RedisServer, keys: StateKeys, name: str, shard: int) -> Iterator[SavedMark]:
    buckets = keys.buckets(_ALL)
    for start in range(0, len(buckets), _BUCKETS_AT_ONCE):
        read = [
            server.command("HGETALL", bucket, read=list, verb="read the state")
            for bucket in buckets[start : start + _BUCKETS_AT_ONCE]
        ]
        for bucket, found in enumerate(perform_all(read), start):
            for field, mark in zip(found[::2], found[1::2], strict=True):
                yield SavedMark(bolt=name, shard=shard, bucket=bucket, field=field, mark=mark)


def _replaced(verdict: int) -> None:
    if verdict == 0:
        raise SavepointError("a driver began a run meanwhile: end it, and import again")


def _texts(reply: Sequence[bytes]) -> dict[str, str]:
    words = [word.decode(errors="replace") for word in reply]
    return dict(zip(words[::2], words[1::2], strict=True))
