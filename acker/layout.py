"""Layout of the ledger in Redis: its servers and shards, and the names of its keys. Pure.

All keys of one shard share a hash tag, ``tiercel:{topology:shard}:``, and so are on one server of a
cluster:

    b:GGRRRR    hash      a bucket: the roots whose 24 high bits (generation and run, see
                          ``RootIds``) are these; field = the 40 low bits (5 bytes), value = ack-val
                          (8 bytes) + owner (4 bytes)
    tokens      hash      run: the current run; over: marks of the runs before it; RUN:TASK: the
                          newest attempt at the task (4 bytes), and its last step (8), with the
                          digest (16) and the numbers of the slices that were applied (2 each); kept
                          until the next run begins
    n:DIGEST    string    a receipt: this call of register has completed its roots
                          with an ack-val of 0
    feed:OWNER  stream    outcomes; fields a, r, t: roots (8 bytes each), f: failures (root, length
                          (4 bytes), JSON)
    mark        string    random; missing after the server has lost its memory

All numbers are big-endian. A run has 96 roots, so a bucket stays far below
hash-max-listpack-entries (512 by default in Redis 7 and 8 and in Valkey, 128 in old habits). A
bucket's roots are born together: it empties and expires as one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import quote


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerSpec:
    """Location and size of a topology's ledger; picklable, travels to executors.

    ``urls`` may hold passwords: never log it.
    """

    topology: str
    # One server for all shards, or one per shard (shard i is on ``urls[i % len(urls)]``).
    urls: tuple[str, ...] = field(repr=False)
    shards: int
    # Spout tasks have ids 1 .. owners; their feeds are passed to the scripts as KEYS.
    owners: int
    # None: messages never time out, and entries never expire.
    message_timeout: timedelta | None


def topology_prefix(topology: str) -> str:
    """Return the prefix of a topology's keys that belong to no shard: its hash tag, as in
    ``shard_prefix``.
    """
    return f"tiercel:{{{_quoted(topology)}}}:"


def paused_key(topology: str) -> str:
    """Return the key of the hash whose fields are the paused bolts of a topology."""
    return f"{topology_prefix(topology)}control:paused"


def silent_key(topology: str, spout: str) -> str:
    """Return the key that exists while a task of a spout can send nothing."""
    return f"{topology_prefix(topology)}control:silent:{spout}"


def seat_key(topology: str, seat: str) -> str:
    """Return the key that exists while a process has a seat of a topology."""
    return f"{topology_prefix(topology)}present:{seat}"


def spout_seat(task: int) -> str:
    """Return the name of the seat of a spout task."""
    return f"spout-task-{task}"


def shard_prefix(topology: str, shard: int) -> str:
    """Return the prefix of all keys of one shard: its hash tag, so that they lie on one
    server of a cluster.
    """
    return f"tiercel:{{{_quoted(topology)}:{shard}}}:"


def _quoted(topology: str) -> str:
    # A brace in the name would end the hash tag, a star would match in scans.
    return quote(topology, safe="")


class ShardKeys:
    """The key names of one shard."""

    def __init__(self, spec: LedgerSpec, shard: int) -> None:
        self._prefix = shard_prefix(spec.topology, shard)
        self.mark = self._prefix + "mark"
        self.feeds = [self.feed(owner) for owner in range(1, spec.owners + 1)]
        self.tokens = self._prefix + "tokens"
        self.bucket_pattern = self._prefix + "b:*"

    def feed(self, owner: int) -> str:
        return f"{self._prefix}feed:{owner}"

    def reader(self, owner: int) -> str:
        """Return the key with the name of the last reader of a feed."""
        return f"{self._prefix}reader:{owner}"

    def registered(self, owner: int) -> str:
        """Return the key that counts an owner's calls of ``register``."""
        return f"{self._prefix}registered:{owner}"

    def receipt(self, packed: bytes) -> str:
        """Return the key of the receipt of one call of ``register``, named by its content."""
        return f"{self._prefix}n:{hashlib.blake2b(packed, digest_size=16).hexdigest()}"

    def buckets(self, groups: Sequence[Group]) -> list[str]:
        return [f"{self._prefix}b:{group.high.hex()}" for group in groups]


@dataclass(frozen=True, slots=True)
class Group:
    """The part of a slice that lies in one bucket: positions ``start`` to ``end`` of its arrays."""

    # The three bytes that its roots have in common.
    high: bytes
    start: int
    end: int
