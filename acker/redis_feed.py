"""The outcome feed in Redis: one stream per shard, one reader, no thread."""

from __future__ import annotations

import json
import secrets
import struct
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np

from tiercel.acker.errors import AckerError
from tiercel.acker.ledger import REASON_LENGTH, Failure, Outcomes, joined
from tiercel.acker.redis.scripts import RedisEffect, RedisServer, script_source

_START = "0-0"
_READ = "read the outcome feed"
# ``close`` wakes a reader within this.
_ONE_SERVER_WAIT_S = 0.5
# An outcome on one server waits while the reader waits at another.
_SEVERAL_SERVERS_WAIT_S = 0.01


@dataclass(slots=True)
class Noted:
    """State that a shard's server has confirmed to one owner, and may lose."""

    # Calls of ``register``.
    calls: int = 0
    # True if the server has lost some of them, and has counted further calls since.
    lost: bool = False

    def count(self, calls: int) -> None:
        """Note the server's count after a call, which is above the one before unless it lost
        memory.
        """
        self.lost |= calls <= self.calls
        self.calls = calls


@dataclass(kw_only=True, slots=True)
class ShardFeed:
    """Position of the reader in one shard's stream."""

    feed: str
    # Key of the mark: one value for all readers of a shard, until the server loses memory.
    mark: str
    # Key with the name of the reader that opened this feed last. Only that reader deletes from it.
    reader: str
    # Key with the number of this owner's calls of ``register``.
    registered: str
    noted: Noted
    value: bytes = b""
    # The last entry that was returned.
    position: str = _START
    # True if the entries up to ``position`` have been deleted.
    trimmed: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class _Seen:
    """State of a shard's server at the end of a read."""

    mark: bytes | None
    reader: bytes | None
    calls: int


@dataclass(kw_only=True, slots=True)
class FeedServer:
    """One server's share of a feed."""

    server: RedisServer
    # Time for which marks outlive their last reader; 0: forever.
    marks_ms: int
    shards: list[ShardFeed] = field(default_factory=list)
    # Name of this reader; a later reader's is greater, unless a clock was put back.
    name: bytes = field(default_factory=lambda: time.time_ns().to_bytes(8) + secrets.token_bytes(4))

    def open(self) -> None:
        """Discard outcomes for an earlier reader. May be repeated until it succeeds."""
        verb = "open the outcome feed"
        trims = [self._command("XTRIM", each.feed, "MAXLEN", 0, verb=verb) for each in self.shards]
        self.server.perform([*self._claims(self.shards, verb), *trims])
        self._adopt_marks(self.shards, verb)

    def read(self, wait_s: float) -> Outcomes:
        """Return the outcomes that are there after at most ``wait_s`` seconds."""
        # Before the server is asked: a call of ``register`` may be confirmed meanwhile.
        before = [(shard.noted.calls, shard.noted.lost) for shard in self.shards]
        streams, found = self._fetch(wait_s)
        lost = [
            shard
            for shard, (calls, is_lost), seen in zip(self.shards, before, found, strict=True)
            if is_lost or seen.mark != shard.value or seen.calls < calls
        ]
        free = [
            shard
            for shard, seen in zip(self.shards, found, strict=True)
            if self._may_claim(shard, seen, lost)
        ]
        self.server.perform(self._claims(free, _READ))
        # The loss is reported only once the new mark is known: after an error here the next read
        # reports it.
        self._adopt_marks(lost, _READ)
        for shard in lost:
            # The new stream may have ids below the old position, so the next read begins at its
            # start. The entries of this read are above the old position; continuing after them
            # would skip entries below it.
            shard.position = _START
            shard.trimmed = True
            # Not the server's count: the reply to a call that it has may still be on its way.
            shard.noted.calls = 0
            shard.noted.lost = False
            streams.pop(shard.feed.encode(), None)
        entries: list[Sequence[bytes]] = []
        for shard, seen in zip(self.shards, found, strict=True):
            if new := streams.get(shard.feed.encode()):
                shard.position = new[-1][0].decode()
                # Only the current reader deletes entries; a later reader has discarded them.
                shard.trimmed = seen.reader != self.name
                entries += (fields for _, fields in new)
        return _outcomes(entries, ledger_lost=bool(lost))

    def _fetch(self, wait_s: float) -> tuple[dict[bytes, list[Any]], list[_Seen]]:
        """Delete the returned entries, read new ones, and read the state that the server still has,
        in one round trip.
        """
        untrimmed = [shard for shard in self.shards if not shard.trimmed]
        commands = [
            self._command("XTRIM", shard.feed, "MINID", _after(shard.position))
            for shard in untrimmed
        ]
        block = ("BLOCK", max(1, int(wait_s * 1000))) if wait_s > 0 else ()
        feeds = [shard.feed for shard in self.shards]
        positions = [shard.position for shard in self.shards]
        commands.append(self._command("XREAD", *block, "STREAMS", *feeds, *positions))
        kept = ("PX", self.marks_ms) if self.marks_ms else ()
        for shard in self.shards:
            commands += [
                self._command("GETEX", key, *kept)
                for key in (shard.mark, shard.reader, shard.registered)
            ]
        replies = self.server.perform(commands)[len(untrimmed) :]
        for shard in untrimmed:
            shard.trimmed = True
        streams, *values = replies
        seen = [
            _Seen(mark=mark, reader=reader, calls=int(registered or 0))
            for mark, reader, registered in zip(
                values[::3], values[1::3], values[2::3], strict=True
            )
        ]
        return dict(streams or ()), seen

    def _may_claim(self, shard: ShardFeed, seen: _Seen, lost: Sequence[ShardFeed]) -> bool:
        """Return True unless the server knows of a later reader of the feed."""
        return seen.reader is None or (shard in lost and seen.reader < self.name)

    def _command(self, *words: Any, verb: str = _READ) -> RedisEffect[Any]:
        return self.server.command(*words, verb=verb)

    def _claims(self, shards: Sequence[ShardFeed], verb: str) -> list[RedisEffect[Any]]:
        kept = ("PX", self.marks_ms) if self.marks_ms else ()
        return [self._command("SET", each.reader, self.name, *kept, verb=verb) for each in shards]

    def _adopt_marks(self, shards: Sequence[ShardFeed], verb: str) -> None:
        if not shards:
            return
        fresh = secrets.token_bytes(8)
        script = self.server.script(script_source("mark"))
        calls = [
            script([shard.mark], [shard.value, fresh, self.marks_ms], bytes, verb)
            for shard in shards
        ]
        for shard, value in zip(shards, self.server.perform(calls), strict=True):
            shard.value = value


class RedisFeed:
    """``OutcomeFeed`` over one or several servers."""

    def __init__(self, servers: Iterable[FeedServer]) -> None:
        """Opens the feed; raises RedisUnavailableError or RedisRefusedError."""
        self._servers = list(servers)
        self._closed = threading.Event()
        self._reading = threading.Lock()
        for server in self._servers:
            server.open()

    def read(self, timeout: timedelta) -> Outcomes:
        deadline = time.monotonic() + timeout.total_seconds()
        with self._reading:
            while not self._closed.is_set():
                remaining_s = max(0.0, deadline - time.monotonic())
                outcomes = self._sweep(remaining_s)
                if outcomes or not remaining_s:
                    return outcomes
        return Outcomes()

    def close(self) -> None:
        self._closed.set()
        # A reader that waits for a stalled server ends by its timeouts; its connection is closed
        # with the ledger's.
        if self._reading.acquire(timeout=2 * _ONE_SERVER_WAIT_S):
            self._reading.release()

    def _sweep(self, remaining_s: float) -> Outcomes:
        """Read from every server, and wait at the first one if the others have no outcomes.

        The next sweep waits at the next server.
        """
        first, *others = self._servers
        brought: list[Outcomes] = []
        error: AckerError | None = None
        for server in (*others, first):
            most_s = _SEVERAL_SERVERS_WAIT_S if others else _ONE_SERVER_WAIT_S
            wait_s = min(remaining_s, most_s) if server is first and not any(brought) else 0.0
            try:
                brought.append(server.read(wait_s))
            except AckerError as problem:
                error = problem
        self._servers = [*others, first]
        # Entries that were read must be returned now, so another server's error waits for the next
        # read.
        if error is not None and not any(brought):
            raise error
        return joined(brought)


def _after(position: str) -> str:
    milliseconds, _, count = position.partition("-")
    return f"{milliseconds}-{int(count) + 1}"


def _outcomes(entries: Iterable[Sequence[bytes]], *, ledger_lost: bool) -> Outcomes:
    """Read entries of alternating kinds and packed roots."""
    lists: dict[bytes, list[int]] = {b"a": [], b"r": [], b"t": [], b"w": []}
    failed: list[Failure] = []
    for entry in entries:
        for kind, packed in zip(entry[::2], entry[1::2], strict=True):
            if kind == b"f":
                failed += unpack_failures(packed)
            else:
                lists[kind] += unpack_roots(packed)
    return Outcomes(
        acked=lists[b"a"],
        failed=failed,
        released=lists[b"r"],
        reset=lists[b"t"],
        waiting=lists[b"w"],
        ledger_lost=ledger_lost,
    )


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
