"""The outcome feed in Redis: one stream a shard, read by one owner, without a thread of its own."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import redis

from acker.errors import AckerError
from acker.layout import unpack_failures, unpack_roots
from acker.ledger import Failure, Outcomes
from acker.outcomes import joined
from acker.redis_errors import translated

_START = "0-0"
_ONE_SERVER_WAIT_S = 0.5
"""``close`` wakes a reader within this."""
_SEVERAL_SERVERS_WAIT_S = 0.01
"""An outcome on one server waits while the reader waits at another."""


@dataclass(kw_only=True, slots=True)
class ShardFeed:
    """Where the reader stands in one shard's stream."""

    feed: str
    mark: str
    """Key of the mark: written once by whoever comes first, so that all readers of a shard see one value until it is lost."""
    value: bytes = b""
    position: str = _START
    """The last entry that was returned."""
    trimmed: bool = True
    """Whether the entries up to ``position`` have been deleted."""


@dataclass(kw_only=True, slots=True)
class FeedServer:
    """One server's share of a feed."""

    client: redis.Redis
    marks_ms: int
    """How long marks outlive their last reader; 0: for ever."""
    shards: list[ShardFeed] = field(default_factory=list)

    def open(self) -> None:
        """Throw away what was for an earlier reader. May be repeated until it succeeded."""
        with translated("open the outcome feed"), self.client.pipeline(transaction=False) as pipeline:
            for shard in self.shards:
                pipeline.xtrim(shard.feed, maxlen=0, approximate=False)
            pipeline.execute()
            self._adopt_marks(self.shards)

    def read(self, wait_s: float) -> Outcomes:
        """What is there after at most ``wait_s`` seconds."""
        with translated("read the outcome feed"):
            streams, marks = self._fetch(wait_s)
            lost = [shard for shard, mark in zip(self.shards, marks, strict=True) if mark != shard.value]
            # Only when the new mark is known is the loss told: an error here leaves it to the next read.
            self._adopt_marks(lost)
        for shard in lost:
            # The new stream may count from below the old position: read it from its start, next time. What came now lies
            # above that position, and going on behind it would skip what lies below.
            shard.position, shard.trimmed = _START, True
            streams.pop(shard.feed.encode(), None)
        entries: list[dict[bytes, bytes]] = []
        for shard in self.shards:
            if found := streams.get(shard.feed.encode()):
                shard.position, shard.trimmed = found[-1][0].decode(), False
                entries += (fields for _, fields in found)
        return _outcomes(entries, ledger_lost=bool(lost))

    def _fetch(self, wait_s: float) -> tuple[dict[bytes, list[Any]], list[bytes | None]]:
        """One round trip: delete what was returned, read on, look at the marks."""
        untrimmed = [shard for shard in self.shards if not shard.trimmed]
        with self.client.pipeline(transaction=False) as pipeline:
            for shard in untrimmed:
                pipeline.xtrim(shard.feed, minid=_after(shard.position), approximate=False)
            block = max(1, int(wait_s * 1000)) if wait_s > 0 else None
            pipeline.xread({shard.feed: shard.position for shard in self.shards}, block=block)
            for shard in self.shards:
                pipeline.getex(shard.mark, px=self.marks_ms or None)
            _, streams, marks = _split(pipeline.execute(), len(untrimmed))
        for shard in untrimmed:
            shard.trimmed = True
        return dict(streams or ()), marks

    def _adopt_marks(self, shards: Sequence[ShardFeed]) -> None:
        if not shards:
            return
        fresh = secrets.token_bytes(8)
        with self.client.pipeline(transaction=False) as pipeline:
            for shard in shards:
                pipeline.set(shard.mark, fresh, nx=True, get=True, px=self.marks_ms or None)
            found = pipeline.execute()
        for shard, value in zip(shards, found, strict=True):
            shard.value = value or fresh


class RedisFeed:
    """``OutcomeFeed`` over one or several servers."""

    def __init__(self, servers: Iterable[FeedServer]) -> None:
        """Opens the feed; raises LedgerUnavailableError or LedgerRefusedError."""
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
        # A reader that waits for a stalled server is left to its timeouts; its connection goes with the client.
        if self._reading.acquire(timeout=2 * _ONE_SERVER_WAIT_S):
            self._reading.release()
        for server in self._servers:
            server.client.close()

    def _sweep(self, remaining_s: float) -> Outcomes:
        """Look at every server, and wait at the first if the others have nothing; the next sweep waits at the next."""
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
        # What one server gave is not given again: the error of another has to wait for the next read.
        if error is not None and not any(brought):
            raise error
        return joined(brought)


def _after(position: str) -> str:
    milliseconds, _, count = position.partition("-")
    return f"{milliseconds}-{int(count) + 1}"


def _split(replies: list[Any], first: int) -> tuple[list[Any], Any, list[Any]]:
    return replies[:first], replies[first], replies[first + 1 :]


def _outcomes(entries: Iterable[dict[bytes, bytes]], *, ledger_lost: bool) -> Outcomes:
    lists: dict[bytes, list[int]] = {b"a": [], b"r": [], b"t": []}
    failed: list[Failure] = []
    for entry in entries:
        for kind, packed in entry.items():
            if kind == b"f":
                failed += unpack_failures(packed)
            else:
                lists[kind] += unpack_roots(packed)
    return Outcomes(acked=lists[b"a"], failed=failed, released=lists[b"r"], reset=lists[b"t"], ledger_lost=ledger_lost)
