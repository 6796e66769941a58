"""The ledger in Redis."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Literal

import numpy as np
import redis
from numpy.typing import NDArray

from tiercel.acker.connection.client import check_version, connect
from tiercel.acker.connection.errors import translated
from tiercel.acker.connection.server import RedisServers
from tiercel.acker.effects import Effect, perform_all
from tiercel.acker.layout import SLICE, ShardKeys, lifetimes, shards_of, share, slices
from tiercel.acker.ledger import (
    Census,
    Failure,
    Ids,
    Ledger,
    LedgerSpec,
    OutcomeFeed,
    Reply,
    Token,
    Updates,
)
from tiercel.acker.outcomes import total
from tiercel.acker.redis_feed import FeedServer, RedisFeed, ShardFeed
from tiercel.acker.scripts import ShardScripts
from tiercel.acker.work import RootUpdates, canonical

_SCAN_COUNT = 1000
_MOST_OWNERS = 65_535


def open_ledger(spec: LedgerSpec) -> Ledger:
    """The ledger that ``spec`` describes.

    Connects on its first call, so it may be opened while Redis is away.
    """
    return RedisLedger(spec)


class RedisLedger:
    """``Ledger`` on one or several servers; thread-safe."""

    def __init__(self, spec: LedgerSpec) -> None:
        if not spec.urls or spec.shards < 1 or spec.owners < 1:
            raise ValueError("a ledger needs a server, a shard and an owner at least")
        if spec.owners > _MOST_OWNERS:
            raise ValueError(f"a ledger has {_MOST_OWNERS} owners at most, not {spec.owners}")
        self._spec = spec
        self._keys = [ShardKeys(spec, shard) for shard in range(spec.shards)]
        self._clients = [self._connect(shard) for shard in range(spec.shards)]
        self._lifetimes = lifetimes(spec.message_timeout)
        self._servers = RedisServers(spec.urls)
        # Two workers of one owner, one after the other, do not take each other's
        # roots for their own.
        incarnation = secrets.token_bytes(2)
        self._scripts = [
            ShardScripts(
                self._servers.at(shard % len(spec.urls), keys.mark),
                keys,
                self._lifetimes,
                incarnation,
            )
            for shard, keys in enumerate(self._keys)
        ]

    def register(self, owner: int, roots: Sequence[int], ack_vals: Sequence[int]) -> list[int]:
        if not 1 <= owner <= self._spec.owners:
            raise ValueError(f"owner {owner} is not one of 1 to {self._spec.owners}")
        ids, values, collided = _first_of_each(roots, ack_vals)
        parts = [
            scripts.register(owner, ids[part], values[part])
            for scripts, mine in self._by_shard(ids)
            for part in (mine[start : start + SLICE] for start in range(0, len(mine), SLICE))
        ]
        return [*collided, *chain.from_iterable(perform_all(parts))]

    def apply(self, token: Token, updates: Updates, failures: Sequence[Failure] = ()) -> Reply:
        return total(perform_all(self.applying(token, updates, failures)))

    def applying(
        self, token: Token, updates: Updates, failures: Sequence[Failure] = ()
    ) -> list[Effect[Reply]]:
        work = canonical(updates, failures)
        digest = work.digest
        return [
            scripts.apply(token, digest, number, part)
            for scripts, mine in self._by_shard(work.roots)
            for number, part in enumerate(slices(share(work, mine)))
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
                for scripts, mine in self._by_shard(work.roots)
                for part in slices(share(work, mine))
            ]
        )

    def pending(self) -> int:
        total = 0
        for shard, keys in enumerate(self._keys):
            with translated("count pending roots"):
                total += pending_in(self._clients[shard], keys)
        return total

    def census(self) -> Census:
        parts = []
        for shard, keys in enumerate(self._keys):
            with translated("take a census of the ledger"):
                parts.append(shard_census(self._clients[shard], keys))
        return Census(
            pending=sum(part.pending for part in parts),
            memory_bytes=sum(part.memory_bytes for part in parts),
            feed_entries=sum(part.feed_entries for part in parts),
            feed_lag_s=max(part.feed_lag_s for part in parts),
        )

    def feed(self, owner: int) -> OutcomeFeed:
        if not 1 <= owner <= self._spec.owners:
            raise ValueError(f"owner {owner} is not one of 1 to {self._spec.owners}")
        servers: dict[int, FeedServer] = {}
        for shard, keys in enumerate(self._keys):
            client = self._connect(shard)
            with translated("use the ledger"):
                check_version(client)
            # Clients of one server share their connections; in a cluster, where shards may move,
            # each shard is on its own.
            server = servers.setdefault(
                id(client.connection_pool),
                FeedServer(client=client, marks_ms=self._lifetimes.marks_ms),
            )
            server.shards.append(
                ShardFeed(
                    feed=keys.feed(owner),
                    mark=keys.mark,
                    reader=keys.reader(owner),
                    registered=keys.registered(owner),
                    noted=self._scripts[shard].noted(owner),
                )
            )
        return RedisFeed(servers.values())

    def close(self) -> None:
        self._servers.close()
        for client in self._clients:
            client.close()

    def _remove(self, kind: Literal["f", "r", "-"], work: RootUpdates, verb: str) -> int:
        parts = [
            scripts.remove(kind, part, verb)
            for scripts, mine in self._by_shard(work.roots)
            for part in slices(share(work, mine))
        ]
        return sum(perform_all(parts))

    def _by_shard(self, roots: Ids) -> Iterator[tuple[ShardScripts, NDArray[np.intp]]]:
        """The scripts of each shard concerned, and the positions of its roots."""
        if self._spec.shards == 1 and roots.size:
            yield self._scripts[0], np.arange(roots.size)
            return
        shards = shards_of(roots, self._spec.shards)
        for shard in np.unique(shards).tolist():
            yield self._scripts[shard], np.flatnonzero(shards == shard)

    def _connect(self, shard: int) -> redis.Redis:
        return connect(self._spec.urls[shard % len(self._spec.urls)], self._keys[shard].mark)


def _of(roots: Sequence[int]) -> RootUpdates:
    ids = np.array(roots, np.uint64)
    return canonical(Updates(roots=ids, xors=np.zeros(ids.size, np.uint64)))


def _first_of_each(roots: Sequence[int], ack_vals: Sequence[int]) -> tuple[Ids, Ids, list[int]]:
    """Ascending roots with their values; and the roots that came a second time in this very call
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


def buckets_of(client: redis.Redis, keys: ShardKeys) -> list[bytes]:
    """The keys of all buckets of a shard. Raises the client's errors, as everything here."""
    return list(set(client.scan_iter(keys.bucket_pattern, count=_SCAN_COUNT, _type="HASH")))


def pending_in(client: redis.Redis, keys: ShardKeys) -> int:
    """Count the roots in the shard."""
    with client.pipeline(transaction=False) as pipeline:
        for bucket in buckets_of(client, keys):
            pipeline.hlen(bucket)
        return sum(pipeline.execute())


def shard_census(client: redis.Redis, keys: ShardKeys) -> Census:
    """Count what the shard holds."""
    buckets = buckets_of(client, keys)
    with client.pipeline(transaction=False) as pipeline:
        for bucket in buckets:
            pipeline.hlen(bucket)
        for bucket in buckets:
            pipeline.memory_usage(bucket, samples=0)
        for feed in keys.feeds:
            pipeline.xlen(feed)
        for feed in keys.feeds:
            pipeline.xrange(feed, count=1)
        pipeline.time()
        replies: list[Any] = pipeline.execute()
    lengths = replies[: len(buckets)]
    replies = replies[len(buckets) :]
    sizes = replies[: len(buckets)]
    replies = replies[len(buckets) :]
    entries = replies[: len(keys.feeds)]
    replies = replies[len(keys.feeds) :]
    *oldest, (seconds, microseconds) = replies
    now_ms = seconds * 1000 + microseconds / 1000
    lags = [now_ms - int(found[0][0].partition(b"-")[0]) for found in oldest if found]
    return Census(
        pending=sum(lengths),
        # None for a bucket that expired in between.
        memory_bytes=sum(size or 0 for size in sizes),
        feed_entries=sum(entries),
        feed_lag_s=max([0.0, *lags]) / 1000,
    )
