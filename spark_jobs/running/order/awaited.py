"""Tuples that a bolt task has given back, and that come before their successors: a line per key, in
the order in which they first came. Pure.

A tuple that failed is awaited: its message comes again. Until then nothing else of its key may
begin. Successors that waited for it for too long are given back as well, and have their places
behind it. A tuple that does not come again in time is awaited no longer: its message was
dead-lettered, or its values are others now, or it was a copy of which the message was acked.
"""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field

from tiercel.spark_jobs.running.order.keys import IDENTITY_BYTES, KEY_BYTES

# Key, when its first one began to be awaited, number of identities.
_HEAD = struct.Struct(f">{KEY_BYTES}sdI")


@dataclass(slots=True)
class AwaitedLine:
    """Tuples that are awaited of one key; never empty."""

    # The first one comes next. Two tuples may have the same values.
    identities: deque[bytes] = field(default_factory=deque)
    # Since when the first one is awaited.
    since: float = 0.0
    # The same by the clock that outlives the process.
    since_wall: float = 0.0
    # When its successors were given back last.
    cleared: float = 0.0
    # When each was here last.
    seen: dict[bytes, float] = field(default_factory=dict)


class Awaited:
    """Of one bolt task."""

    def __init__(
        self,
        clock: Callable[[], float],
        wall: Callable[[], float],
        patience_s: float,
        hold_s: float | None,
    ) -> None:
        """``clock`` never goes back; ``wall`` is the same in each process.

        The first one of a line is awaited for ``patience_s``, after which its successors go on; and
        of these only what was here within that time is awaited any longer. Else several that never
        come would hold up their key longer than the bolts below have patience.

        Successors are given back when they have waited for ``hold_s``; None: they are held.
        """
        self._clock = clock
        self._wall = wall
        self._patience_s = patience_s
        self._hold_s = hold_s
        self._lines: dict[bytes, AwaitedLine] = {}

    def __len__(self) -> int:
        """Number of keys of which something is awaited."""
        return len(self._lines)

    def __contains__(self, key: object) -> bool:
        return key in self._lines

    @property
    def keys(self) -> Container[bytes]:
        """The keys of which something is awaited."""
        return self._lines.keys()

    def first(self, key: bytes) -> bytes | None:
        """Return the identity of what comes next of a key; None: anything may."""
        line = self._lines.get(key)
        return None if line is None else line.identities[0]

    def failed(self, key: bytes, identity: bytes) -> None:
        """A tuple was executed and failed: it keeps its place, or has one before all others."""
        line = self._lines.setdefault(key, AwaitedLine())
        if identity not in line.identities:
            line.identities.appendleft(identity)
        self._begin(line)
        line.seen[identity] = line.since

    def done(self, key: bytes, identity: bytes) -> None:
        """A tuple was executed and is not to come again."""
        line = self._lines.get(key)
        if line is not None and identity in line.identities:
            line.identities.remove(identity)
            self._next(key, line)

    def given_back(self, key: bytes, identities: Sequence[bytes]) -> None:
        """All tuples of a key that waited were given back, in their order.

        Those that had a place in its line keep it.
        """
        line = self._lines[key]
        known = Counter(line.identities)
        line.cleared = self._clock()
        for identity in identities:
            line.seen[identity] = line.cleared
            if known[identity]:
                known[identity] -= 1
            else:
                line.identities.append(identity)

    def overdue(self) -> Iterator[bytes]:
        """The keys whose successors have waited for so long that they are to be given back, unless
        the first one has come.
        """
        if self._hold_s is not None:
            now = self._clock()
            for key, line in self._lines.items():
                if now >= line.cleared + self._hold_s:
                    yield key

    def lapse(self) -> list[bytes]:
        """Wait no longer for what has not come in time; returns the keys of that."""
        now = self._clock()
        late = [key for key, line in self._lines.items() if now >= line.since + self._patience_s]
        for key in late:
            line = self._lines[key]
            line.identities.popleft()
            while line.identities and now >= line.seen[line.identities[0]] + self._patience_s:
                line.identities.popleft()
            self._next(key, line)
        return late

    def next_at(self, held: Container[bytes]) -> float | None:
        """Return when the next one lapses, or is overdue if tuples of its key are ``held``."""
        moments = [line.since + self._patience_s for line in self._lines.values()]
        if self._hold_s is not None:
            moments += [
                line.cleared + self._hold_s for key, line in self._lines.items() if key in held
            ]
        return min(moments, default=None)

    def dump(self) -> bytes:
        """Return the lines as bytes; empty if there are none."""
        return b"".join(
            _HEAD.pack(key, line.since_wall, len(line.identities)) + b"".join(line.identities)
            for key, line in self._lines.items()
        )

    def load(self, dumped: bytes) -> None:
        """Take over what an earlier process awaited. Raises ValueError for what is no dump."""
        at = 0
        while at < len(dumped):
            if len(dumped) - at < _HEAD.size:
                raise ValueError("not an order: it ends too early")
            key, since_wall, count = _HEAD.unpack_from(dumped, at)
            at += _HEAD.size
            end = at + count * IDENTITY_BYTES
            if not count or end > len(dumped):
                raise ValueError("not an order: it ends too early")
            identities = deque(
                dumped[place : place + IDENTITY_BYTES] for place in range(at, end, IDENTITY_BYTES)
            )
            now = self._clock()
            since = now - max(0.0, self._wall() - since_wall)
            seen = dict.fromkeys(identities, now)
            self._lines[key] = AwaitedLine(identities, since, since_wall, now, seen)
            at = end

    def _next(self, key: bytes, line: AwaitedLine) -> None:
        if not line.identities:
            del self._lines[key]
        self._begin(line)

    def _begin(self, line: AwaitedLine) -> None:
        line.since = line.cleared = self._clock()
        line.since_wall = self._wall()
