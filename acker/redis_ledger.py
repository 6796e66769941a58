"""The ledger in Redis."""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from typing import Any, Literal, TypeVar

import numpy as np
import redis
from numpy.typing import NDArray

from tiercel.acker.effects import Effect, LocalEffect, perform_all
from tiercel.acker.ids import mix_array
from tiercel.acker.layout import Group, LedgerSpec, ShardKeys
from tiercel.acker.ledger import (
    LIFETIMES,
    Applied,
    Census,
    Failure,
    Ids,
    Ledger,
    OutcomeFeed,
    Reply,
    RootUpdates,
    Token,
    Updates,
    canonical,
    conflict_of,
)
from tiercel.acker.redis.clients import connect
from tiercel.acker.redis.errors import translated
from tiercel.acker.redis.scripts import (
    Reader,
    RedisEffect,
    RedisScript,
    RedisServer,
    RedisServers,
    nothing,
    script_source,
)
from tiercel.acker.redis_feed import (
    FeedServer,
    Noted,
    RedisFeed,
    ShardFeed,
    pack_failure,
    unpack_roots,
)

T = TypeVar("T")
_CONFLICT = pack_failure(conflict_of(0))
_APPLIED = (Applied.FRESH, Applied.REPEATED, Applied.CONFLICTING, Applied.STALE)
_SCAN_COUNT = 1000
_MOST_OWNERS = 65_535
# Roots per call: two to four milliseconds, and a third of what Lua can unpack.
SLICE = 3000
# Lifetime of receipts if messages never time out.
_HOUR_MS = 3_600_000
_HIGH_SHIFT = np.uint64(40)
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True, slots=True)
class Lifetimes:
    """Lifetimes passed to the scripts, in milliseconds; 0 means forever."""

    entries_ms: int
    receipts_ms: int
    marks_ms: int


def lifetimes(message_timeout: timedelta | None) -> Lifetimes:
    """Return how long each kind of key is kept."""
    if message_timeout is None:
        return Lifetimes(entries_ms=0, receipts_ms=_HOUR_MS, marks_ms=0)
    kept_ms = max(1, int(LIFETIMES * message_timeout.total_seconds() * 1000))
    return Lifetimes(entries_ms=kept_ms, receipts_ms=kept_ms, marks_ms=kept_ms + _HOUR_MS)


def open_ledger(spec: LedgerSpec) -> Ledger:
    """Open the ledger that ``spec`` describes.

    Connects on its first call, so it may be opened while Redis is away.
    """
    return RedisLedger(spec)


class RedisLedger(Ledger):
    """``Ledger`` on one or several servers; thread-safe."""

    def __init__(self, spec: LedgerSpec) -> None:
        if not spec.urls or spec.shards < 1 or spec.owners < 1:
            raise ValueError("a ledger needs a server, a shard and an owner at least")
        if spec.owners > _MOST_OWNERS:
            raise ValueError(f"a ledger has {_MOST_OWNERS} owners at most, not {spec.owners}")
        self._spec = spec
        self._keys = [ShardKeys(spec, shard) for shard in range(spec.shards)]
        self._lifetimes = lifetimes(spec.message_timeout)
        self._servers = RedisServers(spec.urls)
        self._server_of = [
            self._servers.at(shard % len(spec.urls), keys.mark)
            for shard, keys in enumerate(self._keys)
        ]
        # Tells the roots of successive workers of one owner apart.
        incarnation = secrets.token_bytes(2)
        self._scripts = [
            ShardScripts(server, keys, self._lifetimes, incarnation)
            for server, keys in zip(self._server_of, self._keys, strict=True)
        ]

    def register(self, owner: int, roots: Sequence[int], ack_vals: Sequence[int]) -> list[int]:
        effects, collided = self._registering(owner, roots, ack_vals)
        return [*collided, *chain.from_iterable(perform_all(effects))]

    def registering(
        self, owner: int, roots: Sequence[int], ack_vals: Sequence[int]
    ) -> Sequence[Effect[bool]]:
        effects, collided = self._registering(owner, roots, ack_vals)
        if collided:
            return [LocalEffect(lambda: False)]
        return [_if_none(effect) for effect in effects]

    def _registering(
        self, owner: int, roots: Sequence[int], ack_vals: Sequence[int]
    ) -> tuple[list[RedisEffect[list[int]]], list[int]]:
        """Prepare ``register``; return its calls, and the roots that collide with each other."""
        self._check(owner)
        ids, values, collided = _first_of_each(roots, ack_vals)
        parts = self._parts(canonical(Updates(roots=ids, xors=values)))
        return [scripts.register(owner, one.roots, one.xors) for scripts, _, one in parts], collided

    def applying(
        self, token: Token, updates: Updates, failures: Sequence[Failure] = ()
    ) -> list[Effect[Reply]]:
        work = canonical(updates, failures)
        digest = work.digest
        return [
            scripts.apply(token, digest, number, part)
            for scripts, number, part in self._parts(work)
        ]

    def begin(self, run: str) -> bool:
        return all(perform_all([scripts.begin(run) for scripts in self._scripts]))

    def fence(self, run: str, task: int, attempt: int) -> bool:
        return all(perform_all([scripts.fence(run, task, attempt) for scripts in self._scripts]))

    def fail(self, failures: Sequence[Failure]) -> int:
        none = np.empty(0, np.uint64)
        return self._remove("f", canonical(Updates(roots=none, xors=none), failures), "fail roots")

    def release(self, roots: Sequence[int]) -> int:
        return self._remove("r", _of(roots), "release roots")

    def forget(self, roots: Sequence[int]) -> None:
        self._remove("-", _of(roots), "forget roots")

    def reset_timeout(self, roots: Sequence[int], *, waiting: bool = False) -> None:
        work = _of(roots)
        perform_all(
            [
                scripts.reset_timeout(part.roots, waiting=waiting)
                for scripts, _, part in self._parts(work)
            ]
        )

    def census(self) -> Census:
        parts = []
        for shard, keys in enumerate(self._keys):
            url = self._spec.urls[shard % len(self._spec.urls)]
            with (
                connect(url, keys.mark) as client,
                translated("take a census of the ledger", client),
            ):
                parts.append(_census(client, keys))
        return Census(
            pending=sum(part.pending for part in parts),
            memory_bytes=sum(part.memory_bytes for part in parts),
            feed_entries=sum(part.feed_entries for part in parts),
            feed_lag_s=max(part.feed_lag_s for part in parts),
        )

    def feed(self, owner: int) -> OutcomeFeed:
        self._check(owner)
        servers: dict[RedisServer, FeedServer] = {}
        for server, keys, scripts in zip(self._server_of, self._keys, self._scripts, strict=True):
            # In a cluster, where shards may move, each shard is on its own.
            one = servers.setdefault(
                server, FeedServer(server=server, marks_ms=self._lifetimes.marks_ms)
            )
            one.shards.append(
                ShardFeed(
                    feed=keys.feed(owner),
                    mark=keys.mark,
                    reader=keys.reader(owner),
                    registered=keys.registered(owner),
                    noted=scripts.noted(owner),
                )
            )
        return RedisFeed(servers.values())

    def close(self) -> None:
        self._servers.close()

    def _remove(self, kind: Literal["f", "r", "-"], work: RootUpdates, verb: str) -> int:
        parts = [scripts.remove(kind, part, verb) for scripts, _, part in self._parts(work)]
        return sum(perform_all(parts))

    def _parts(self, work: RootUpdates) -> Iterator[tuple[ShardScripts, int, RootUpdates]]:
        """Yield the slices of the work, each with the scripts of its shard and its number there."""
        for shard, mine in self._by_shard(work):
            for number, part in enumerate(slices(mine)):
                yield self._scripts[shard], number, part

    def _by_shard(self, work: RootUpdates) -> Iterator[tuple[int, RootUpdates]]:
        if self._spec.shards == 1:
            yield 0, work
            return
        shards = shards_of(work.roots, self._spec.shards)
        for shard in np.unique(shards).tolist():
            yield shard, work.at(np.flatnonzero(shards == shard))

    def _check(self, owner: int) -> None:
        if not 1 <= owner <= self._spec.owners:
            raise ValueError(f"owner {owner} is not one of 1 to {self._spec.owners}")


class ShardScripts:
    """Prepares the calls of one shard: each of a few thousand roots at most, ascending."""

    def __init__(
        self,
        server: RedisServer,
        keys: ShardKeys,
        lifetimes: Lifetimes,
        incarnation: bytes = b"\0\0",
    ) -> None:
        """``incarnation``, two bytes, tells successive workers of an owner apart."""
        self._keys = keys
        self._receipts_ms = lifetimes.receipts_ms
        self._marks_ms = lifetimes.marks_ms
        self._incarnation = incarnation
        self._noted: dict[int, Noted] = {}
        self._common = (len(keys.feeds), lifetimes.entries_ms)
        self._register = server.script(script_source("outcomes", "register"))
        self._apply = server.script(script_source("outcomes", "steps", "apply"))
        self._remove = server.script(script_source("outcomes", "remove"))
        self._reset_timeout = server.script(script_source("outcomes", "reset_timeout"))
        self._begin = server.script(script_source("begin"))
        self._fence = server.script(script_source("fence"))

    def noted(self, owner: int) -> Noted:
        """Return the state of this owner that the server has confirmed."""
        return self._noted.setdefault(owner, Noted())

    def register(self, owner: int, roots: Ids, ack_vals: Ids) -> RedisEffect[list[int]]:
        """Prepare a registration; its reply is the roots that collide."""
        groups = groups_of(roots)
        packed = records(roots, ack_vals).tobytes()
        args: list[Any] = [
            *self._common,
            self._incarnation + owner.to_bytes(2),
            self._receipts_ms,
            self._marks_ms,
        ]
        for group in groups:
            args += (group.high, packed[13 * group.start : 13 * group.end])
        keys = [
            self._keys.receipt(packed),
            self._keys.registered(owner),
            *self._keys.buckets(groups),
        ]

        def read(reply: Any) -> list[int]:
            _, count, collided = reply if reply[0] is None else (None, reply[0], b"")
            self.noted(owner).count(count)
            return unpack_roots(collided)

        return self._call(self._register, keys, args, read, "register roots")

    def apply(self, token: Token, digest: bytes, number: int, work: RootUpdates) -> Effect[Reply]:
        """Prepare the ``number``-th slice of work with this digest."""
        groups = groups_of(work.roots)
        updates = records(work.roots, work.xors)
        position = struct.pack(">IQ", token.attempt, token.step)
        args: list[Any] = [*self._common, token.run, token.task, position]
        args += (digest, number.to_bytes(2), len(groups))
        failing = work.reasons >= 0
        if failing.any():
            numbers, reasons = _number_reasons(work, [_CONFLICT])
            failures = records(work.roots, numbers, width=2)
            for group in groups:
                part = np.s_[group.start : group.end]
                fails = failing[part]
                changed, failed = updates[part][~fails], failures[part][fails]
                args += (group.high, changed.tobytes(), failed.tobytes())
        else:
            reasons = [_CONFLICT]
            packed = updates.tobytes()
            for group in groups:
                args += (group.high, packed[13 * group.start : 13 * group.end], b"")
        keys = [self._keys.tokens, *self._keys.buckets(groups)]
        return self._call(self._apply, keys, [*args, *reasons], _reply, "apply updates")

    def begin(self, run: str) -> Effect[bool]:
        return self._begin([self._keys.tokens], [run], bool, "begin a run")

    def fence(self, run: str, task: int, attempt: int) -> Effect[bool]:
        args = [run, task, struct.pack(">I", attempt)]
        return self._fence([self._keys.tokens], args, bool, "fence a task")

    def remove(self, kind: Literal["f", "r", "-"], work: RootUpdates, verb: str) -> Effect[int]:
        """Fail (for ``work``'s reasons), release or forget roots; returns the number that was
        pending.
        """
        groups = groups_of(work.roots)
        numbers, reasons = _number_reasons(work, [])
        packed = records(work.roots, numbers, width=2).tobytes()
        args: list[Any] = [*self._common, kind, len(groups)]
        for group in groups:
            args += (group.high, packed[7 * group.start : 7 * group.end])
        return self._call(self._remove, self._keys.buckets(groups), [*args, *reasons], int, verb)

    def reset_timeout(self, roots: Ids, *, waiting: bool) -> Effect[None]:
        groups = groups_of(roots)
        packed = fields(roots).tobytes()
        args: list[Any] = [*self._common, "w" if waiting else "t"]
        for group in groups:
            args += (group.high, packed[5 * group.start : 5 * group.end])
        return self._call(
            self._reset_timeout, self._keys.buckets(groups), args, nothing, "reset timeouts"
        )

    def _call(
        self,
        script: RedisScript,
        keys: Sequence[str],
        args: Sequence[Any],
        read: Reader[T],
        verb: str,
    ) -> RedisEffect[T]:
        return script([*self._keys.feeds, *keys], args, read, verb)


def _of(roots: Sequence[int]) -> RootUpdates:
    ids = np.array(roots, np.uint64)
    return canonical(Updates(roots=ids, xors=np.zeros(ids.size, np.uint64)))


def _first_of_each(roots: Sequence[int], ack_vals: Sequence[int]) -> tuple[Ids, Ids, list[int]]:
    """Return the roots ascending with their values, and the roots that occur again in this call
    with another value.
    """
    given = np.array(roots, np.uint64)
    values = np.array(ack_vals, np.uint64)
    if given.shape != values.shape:
        raise ValueError(f"{given.size} roots and {values.size} ack-vals")
    if np.all(given[1:] > given[:-1]):
        return given, values, []  # as they are drawn, but for one in 65,536 runs
    ids, first, origin = np.unique(given, return_index=True, return_inverse=True)
    return ids, values[first], given[values != values[first][origin]].tolist()


def _number_reasons(
    work: RootUpdates, first: Sequence[bytes]
) -> tuple[NDArray[np.int64], list[bytes]]:
    """Number the packed reasons, each once, and return the number for each root and the reasons in
    order.

    ``first`` has the first numbers.
    """
    numbers = np.zeros(work.roots.size, np.int64)
    known = {reason: number for number, reason in enumerate(first)}
    for at in (work.reasons >= 0).nonzero()[0].tolist():
        numbers[at] = known.setdefault(pack_failure(work.failures[work.reasons[at]]), len(known))
    return numbers, list(known)


def _reply(parts: Sequence[int]) -> Reply:
    *_, applied, completed, failed, late = parts
    return Reply(applied=_APPLIED[applied], completed=completed, failed=failed, late=late)


def _if_none(effect: RedisEffect[list[int]]) -> RedisEffect[bool]:
    """Return a call whose reply is True if it finds no roots."""

    def read(reply: Any) -> bool:
        return not effect.read(reply)

    return RedisEffect(effect.pipeline, effect.command, read, effect.verb, effect.text)


def _census(client: redis.Redis, keys: ShardKeys) -> Census:
    """Count the entries of a shard; raises the client's errors."""
    buckets = set(client.scan_iter(keys.bucket_pattern, count=_SCAN_COUNT, _type="HASH"))
    with client.pipeline(transaction=False) as pipeline:
        for bucket in buckets:
            pipeline.hlen(bucket)
            pipeline.memory_usage(bucket, samples=0)
        for feed in keys.feeds:
            pipeline.xlen(feed)
            pipeline.xrange(feed, count=1)
        pipeline.time()
        *replies, (seconds, microseconds) = pipeline.execute()
    of_buckets, of_feeds = replies[: 2 * len(buckets)], replies[2 * len(buckets) :]
    now_ms = seconds * 1000 + microseconds / 1000
    lags = [now_ms - int(oldest[0][0].partition(b"-")[0]) for oldest in of_feeds[1::2] if oldest]
    return Census(
        pending=sum(of_buckets[::2]),
        # None for a bucket that expired in between.
        memory_bytes=sum(size or 0 for size in of_buckets[1::2]),
        feed_entries=sum(of_feeds[::2]),
        feed_lag_s=max([0.0, *lags]) / 1000,
    )


def shards_of(roots: Ids, shards: int) -> Ids:
    """The shard of each root: its 24 high bits, so that a bucket lies in one shard."""
    return mix_array(roots >> _HIGH_SHIFT) % np.uint64(shards)


def groups_of(roots: Ids) -> list[Group]:
    """Cut ascending roots into buckets."""
    if not roots.size:
        return []
    highs = roots >> _HIGH_SHIFT
    if highs[0] == highs[-1]:
        return [Group(int(highs[0]).to_bytes(3), 0, roots.size)]
    ends = np.concatenate(((highs[1:] != highs[:-1]).nonzero()[0] + 1, [roots.size]))
    starts = np.concatenate(([0], ends[:-1]))
    names = highs[starts].astype(">u8").tobytes()
    return [
        Group(names[8 * i + 5 : 8 * i + 8], start, end)
        for i, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True))
    ]


def fields(roots: Ids) -> Bytes:
    """The field of each root, 5 bytes per row."""
    return roots.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 3:]


def records(roots: Ids, values: NDArray[np.integer[Any]], width: int = 8) -> Bytes:
    """The field of each root and the last ``width`` bytes of its value, one row per root."""
    pairs = np.empty((roots.size, 2), ">u8")
    pairs[:, 0] = roots
    pairs[:, 1] = values
    table = pairs.view(np.uint8)
    return table[:, 3:] if width == 8 else np.delete(table, np.s_[8 : 16 - width], axis=1)[:, 3:]


def slices(work: RootUpdates) -> Iterator[RootUpdates]:
    """Cut into calls.

    Equal work is cut equally, so that a slice's number means the same to every attempt.
    """
    if 0 < work.roots.size <= SLICE:
        yield work
        return
    for start in range(0, work.roots.size, SLICE):
        yield work.at(np.s_[start : start + SLICE])
