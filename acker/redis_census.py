"""Counts what one shard of the ledger holds in Redis, for monitors."""

from __future__ import annotations

from typing import Any

import redis

from tiercel.acker.layout import ShardKeys
from tiercel.acker.ledger import Census

_SCAN_COUNT = 1000


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
