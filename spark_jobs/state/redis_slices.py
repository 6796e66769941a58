"""Cuts the writes of a commit into the calls that make them: by shard, and not too many at a time.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from tiercel.spark_jobs.state import redis_marks, redis_shard
from tiercel.spark_jobs.state.redis_keys import shard_of
from tiercel.spark_jobs.state.redis_marks import mark_shard
from tiercel.spark_jobs.state.store import Writes


def by_shard(fields: Iterable[bytes], shards: int) -> list[list[bytes]]:
    parts: list[list[bytes]] = [[] for _ in range(shards)]
    for one in fields:
        parts[shard_of(one, shards)].append(one)
    return parts


def shares_of(writes: Writes, shards: int) -> dict[int, Writes]:
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
    marks: dict[int, dict[bytes, bytes]] = {}
    if shards == 1 and writes.marks:
        marks[0] = dict(writes.marks)
    else:
        for key, record in writes.marks.items():
            marks.setdefault(mark_shard(key, shards), {})[key] = record
    return {
        shard: Writes(
            puts=puts.get(shard, {}),
            deletes=deletes.get(shard, []),
            increments=increments.get(shard, {}),
            marks=marks.get(shard, {}),
        )
        for shard in {*puts, *deletes, *increments, *marks}
    }


def slices_of(writes: Writes) -> list[Writes]:
    """Cut into calls, one at least: marks first, for one of them may be refused."""
    if not writes.marks:
        return _entries(writes)
    marks = iter(writes.marks.items())
    made = []
    while some := dict(islice(marks, redis_marks.SLICE)):
        made.append(Writes(marks=some))
    return [*made, *_entries(writes)] if len(writes) else made


def _entries(writes: Writes) -> list[Writes]:
    size = redis_shard.SLICE
    if len(writes) <= size:
        return [Writes(puts=writes.puts, deletes=writes.deletes, increments=writes.increments)]
    puts = list(writes.puts.items())
    deletes = list(writes.deletes)
    increments = list(writes.increments.items())
    return [
        *(Writes(puts=dict(puts[start : start + size])) for start in range(0, len(puts), size)),
        *(Writes(deletes=deletes[start : start + size]) for start in range(0, len(deletes), size)),
        *(
            Writes(increments=dict(increments[start : start + size]))
            for start in range(0, len(increments), size)
        ),
    ]
