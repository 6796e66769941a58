"""Layout of the ledger in Redis: key names, and the packing of ids into them. Pure.

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
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from tiercel.acker.ids import mix_array
from tiercel.acker.ledger import LIFETIMES, REASON_LENGTH, Failure, Ids, LedgerSpec, RootUpdates

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


def shards_of(roots: Ids, shards: int) -> Ids:
    """The shard of each root: its 24 high bits, so that a bucket lies in one shard."""
    return mix_array(roots >> _HIGH_SHIFT) % np.uint64(shards)


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


def pack_failure(failure: Failure) -> bytes:
    """Pack the reason, without the root: length and JSON, which keeps half a surrogate pair.

    A failure that says more than its reason has one more member.
    """
    said: list[Any] = [failure.component, failure.task, failure.reason[:REASON_LENGTH]]
    more: dict[str, Any] = {}
    if failure.reject:
        more["reject"] = True
    if failure.retry_after_s is not None:
        more.update(retry_after_s=failure.retry_after_s, blame=failure.blame)
    if more:
        said.append(more)
    text = json.dumps(said).encode()
    return struct.pack(">I", len(text)) + text


def unpack_failures(packed: bytes) -> list[Failure]:
    """The contents of an ``f`` field."""
    failures = []
    at = 0
    while at < len(packed):
        root, length = struct.unpack_from(">QI", packed, at)
        at += 12 + length
        component, task, reason, *more = json.loads(packed[at - length : at])
        orders = more[0] if more else {}
        failures.append(
            Failure(
                root=root,
                component=component,
                task=task,
                reason=reason,
                reject=orders.get("reject", False),
                retry_after_s=orders.get("retry_after_s"),
                blame=orders.get("blame", True),
            )
        )
    return failures


def unpack_roots(packed: bytes) -> list[int]:
    """The contents of an ``a``, ``r`` or ``t`` field."""
    return [int(root) for root in np.frombuffer(packed, ">u8").tolist()]
