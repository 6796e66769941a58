"""Tuples that a bolt task has given back, and that come before their successors: a line per key, in
the order in which they first came. Pure.

A tuple that failed is awaited: its message comes again. Until then nothing else of its key may
begin. Successors that waited for it for too long are given back as well, and have their places
behind it. A tuple that does not come again in time is awaited no longer: its message was
dead-lettered, or its values are others now, or it was a copy of which the message was acked.

``TupleKeys`` finds the key of a tuple, by which it is ordered, and its identity, by which it is
known again: a message that is delivered again has another root, but the same values.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter, deque
from collections.abc import Callable, Container, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from tiercel.acker.inbox.chunk import Chunk
from tiercel.queues.values.python_values import python_value
from tiercel.queues.values.schema import Schema
from tiercel.spark_jobs.bolts.streams import DEFAULT_STREAM
from tiercel.spark_jobs.bolts.tuples import Tuple
from tiercel.spark_jobs.topology.bolt_settings import ordered_by_of
from tiercel.spark_jobs.topology.graph import SpoutSpec, Subscription, Topology
from tiercel.spark_jobs.topology.grouping import key_digest

IDENTITY_BYTES = 8
KEY_BYTES = 16
_SALT_BYTES = 64


class TupleKeys:
    """Keys of the tuples of one bolt, whichever of its streams they come on."""

    def __init__(self, topology: Topology, component: str) -> None:
        spec = topology.bolts[component]
        names = ordered_by_of(spec)
        self._streams = {
            (source.component, source.stream): _StreamKeys(
                topology.spec(source.component).streams[source.stream],
                names,
                f"{source.component}\0{source.stream}",
                _changing_fields(topology, source),
            )
            for source in spec.subscriptions
        }

    def key(self, tup: Tuple) -> bytes | None:
        """Return the key of a tuple; None for a tick, which is in no order."""
        stream = self._streams.get((tup.source_component, tup.source_stream))
        return None if stream is None else stream.key(tup.values)

    def identity(self, tup: Tuple) -> bytes:
        """Return what a tuple that has a key is known again by."""
        return self._streams[tup.source_component, tup.source_stream].identity(tup.values)

    def keys_in(self, chunk: Chunk) -> Sequence[bytes | None]:
        """Return the key of each row."""
        stream = self._stream_of(chunk)
        if stream is None:
            return [None] * chunk.values.num_rows
        return stream.keys_in(chunk)

    def identity_in(self, chunk: Chunk, row: int) -> bytes:
        """Return what one row is known again by."""
        stream = self._streams[chunk.route.component, chunk.route.stream]
        return stream.identity([python_value(column, row) for column in chunk.values.columns])

    def _stream_of(self, chunk: Chunk) -> _StreamKeys | None:
        return self._streams.get((chunk.route.component, chunk.route.stream))


class _StreamKeys:
    """Keys of the tuples of one stream."""

    def __init__(
        self, schema: Schema, names: Sequence[str], source: str, changing: AbstractSet[str]
    ) -> None:
        """``source`` tells tuples of two streams apart that have the same values. ``changing``
        fields have others when a tuple comes again.
        """
        self._width = len(schema.names)
        self._positions = [schema.position(name) for name in names]
        self.key: Callable[[Sequence[Any]], bytes] = key_digest(schema, names)
        self._digest = key_digest(schema, [each for each in schema.names if each not in changing])
        self._salt = hashlib.blake2b(source.encode(), digest_size=_SALT_BYTES).digest()

    def identity(self, values: Sequence[Any]) -> bytes:
        digest = self._digest(values)
        return hashlib.blake2b(digest, digest_size=IDENTITY_BYTES, key=self._salt).digest()

    def keys_in(self, chunk: Chunk) -> list[bytes]:
        columns = [
            (position, chunk.values.column(position).to_pylist()) for position in self._positions
        ]
        values: list[Any] = [None] * self._width
        keys = []
        for row in range(chunk.values.num_rows):
            for position, column in columns:
                values[position] = column[row]
            keys.append(self.key(values))
        return keys


def _changing_fields(topology: Topology, source: Subscription) -> AbstractSet[str]:
    spec = topology.spec(source.component)
    if not isinstance(spec, SpoutSpec) or source.stream != DEFAULT_STREAM:
        return frozenset()
    return spec.spout.changing_fields


# Key, when its first place began to be awaited, number of places.
_HEAD = struct.Struct(f">{KEY_BYTES}sdI")
# Identity, when a tuple that has it was here last, True where it is doubtful.
_PLACE = struct.Struct(f">{IDENTITY_BYTES}sd?")
# Number of times that the holding time of successors doubles.
_DOUBLINGS = 2
# Doubtful tuples are awaited for this many first holding times: longer than the longest one.
DOUBTFUL_HOLDS = 8
# A new process looks into its inbox before it gives anything up: the one before may have died of
# what was awaited, or late.
_LOOK_S = 2.0


@dataclass(slots=True)
class AwaitedPlace:
    """Of one tuple in a line."""

    identity: bytes
    # When its tuple was last here.
    seen: float
    # The same by the clock that outlives the process.
    seen_wall: float
    # True if it may never come again. One before it in the line has the same identity: a tuple
    # with the same values, or a copy of the same message, whose spout worker died. Or its step was
    # repeated and did other work: its message may have been acked before.
    doubtful: bool = False


@dataclass(slots=True)
class AwaitedLine:
    """Awaited tuples of one key; never empty."""

    # The first one comes next.
    places: deque[AwaitedPlace] = field(default_factory=deque)
    # Time from which the first one has been awaited.
    since: float = 0.0
    # The same by the clock that outlives the process.
    since_wall: float = 0.0
    # When its successors were last given back.
    cleared: float = 0.0
    # How often they were, while the first one was awaited.
    clearings: int = 0


class Awaited:
    """Of one bolt task."""

    def __init__(
        self,
        clock: Callable[[], float],
        wall: Callable[[], float],
        patience_s: float,
        hold_s: float | None,
        doubtful_s: float | None = None,
    ) -> None:
        """``clock`` never goes back; ``wall`` is the same in each process.

        The first one of a line is awaited for ``patience_s``, after which its successors go on; and
        of these only what was here within that time is awaited any longer. Else several that never
        come would hold up their key longer than the bolts below have patience. What is doubtful
        comes soon or never, and is awaited for ``doubtful_s``; None: like the others.

        Successors are given back when they have waited for ``hold_s``, and then for twice as long
        each time, up to a bound; None: they are held.
        """
        self._clock = clock
        self._wall = wall
        self._patience_s = patience_s
        self._hold_s = hold_s
        self._doubtful_s = patience_s if doubtful_s is None else min(patience_s, doubtful_s)
        self._lines: dict[bytes, AwaitedLine] = {}

    def __len__(self) -> int:
        """Number of keys with awaited tuples."""
        return len(self._lines)

    def __contains__(self, key: object) -> bool:
        return key in self._lines

    @property
    def keys(self) -> Container[bytes]:
        """The keys with awaited tuples."""
        return self._lines.keys()

    def first(self, key: bytes) -> bytes | None:
        """Return the identity of the key's next tuple; None: any tuple may be next."""
        line = self._lines.get(key)
        return None if line is None else line.places[0].identity

    def failed(self, key: bytes, identity: bytes, *, doubtful: bool = False) -> None:
        """A tuple was executed and failed: it keeps its place, or has one before all others.

        ``doubtful``: its message may not come again.
        """
        line = self._lines.setdefault(key, AwaitedLine())
        place = _place_of(identity, line)
        if place is None:
            place = self._place(identity)
            line.places.appendleft(place)
        place.doubtful = doubtful
        self._begin(line)
        self._see(place)

    def done(self, key: bytes, identity: bytes) -> None:
        """A tuple was executed and will not be delivered again."""
        line = self._lines.get(key)
        place = None if line is None else _place_of(identity, line)
        if line is not None and place is not None:
            line.places.remove(place)
            self._next(key, line)

    def given_back(self, key: bytes, identities: Sequence[bytes]) -> None:
        """All tuples of a key that waited were given back, in their order.

        Those that had a place in its line keep it.
        """
        line = self._lines[key]
        line.cleared = self._clock()
        line.clearings += 1
        left = Counter(identities)
        known = {place.identity for place in line.places}
        for place in line.places:
            if left[place.identity]:
                left[place.identity] -= 1
                self._see(place)
        # What is left has no place yet: of several with the same values the last ones.
        placed = Counter(identities) - left
        for identity in identities:
            if placed[identity]:
                placed[identity] -= 1
                continue
            place = self._place(identity)
            place.doubtful = identity in known
            known.add(identity)
            line.places.append(place)

    def overdue(self, *, full: bool = False) -> Iterator[bytes]:
        """The keys whose successors have waited for so long that they are to be given back, unless
        the first one has come; ``full``: as soon as the first time, for no more can be held.
        """
        if self._hold_s is not None:
            now = self._clock()
            for key, line in self._lines.items():
                if now >= line.cleared + (self._hold_s if full else self._held_for(line)):
                    yield key

    def late(self) -> list[bytes]:
        """Return the keys whose first tuple has not come in time, or has not succeeded."""
        now = self._clock()
        return [key for key, line in self._lines.items() if now >= self._until(line)]

    def is_here(self, key: bytes) -> None:
        """The first one has come, and is under way or waits for its turn."""
        line = self._lines[key]
        line.since = line.cleared = self._clock()

    def lapse(self) -> list[bytes]:
        """Stop waiting for tuples that have not come in time; return their keys."""
        now = self._clock()
        late = self.late()
        for key in late:
            line = self._lines[key]
            line.places.popleft()
            line.places = deque(one for one in line.places if now < one.seen + self._patience(one))
            self._next(key, line)
        return late

    def next_at(self, held: Container[bytes]) -> float | None:
        """Return when the next one lapses, or is overdue if tuples of its key are ``held``."""
        moments = [self._until(line) for line in self._lines.values()]
        if self._hold_s is not None:
            moments += [
                line.cleared + self._held_for(line)
                for key, line in self._lines.items()
                if key in held
            ]
        return min(moments, default=None)

    def dump(self) -> bytes:
        """Return the lines as bytes; empty if there are none."""
        return b"".join(
            _HEAD.pack(key, line.since_wall, len(line.places))
            + b"".join(
                _PLACE.pack(one.identity, one.seen_wall, one.doubtful) for one in line.places
            )
            for key, line in self._lines.items()
        )

    def load(self, dumped: bytes) -> None:
        """Take over the lines of an earlier process. Raises ValueError for an invalid dump."""
        now, wall = self._clock(), self._wall()
        at = 0
        while at < len(dumped):
            if len(dumped) - at < _HEAD.size:
                raise ValueError("not an order: it ends too early")
            key, since_wall, count = _HEAD.unpack_from(dumped, at)
            at += _HEAD.size
            end = at + count * _PLACE.size
            if not count or end > len(dumped):
                raise ValueError("not an order: it ends too early")
            places = deque(
                AwaitedPlace(identity, now - max(0.0, wall - seen_wall), seen_wall, doubtful)
                for identity, seen_wall, doubtful in _PLACE.iter_unpack(dumped[at:end])
            )
            since = now - max(0.0, wall - since_wall)
            since = max(since, now + _LOOK_S - self._patience(places[0]))
            self._lines[key] = AwaitedLine(places, since, since_wall, now)
            at = end

    def _next(self, key: bytes, line: AwaitedLine) -> None:
        if not line.places:
            del self._lines[key]
        self._begin(line)

    def _begin(self, line: AwaitedLine) -> None:
        line.since = line.cleared = self._clock()
        line.since_wall = self._wall()
        line.clearings = 0

    def _until(self, line: AwaitedLine) -> float:
        return line.since + self._patience(line.places[0])

    def _patience(self, place: AwaitedPlace) -> float:
        return self._doubtful_s if place.doubtful else self._patience_s

    def _held_for(self, line: AwaitedLine) -> float:
        return (self._hold_s or 0.0) * (1 << min(line.clearings, _DOUBLINGS))

    def _place(self, identity: bytes) -> AwaitedPlace:
        return AwaitedPlace(identity, self._clock(), self._wall())

    def _see(self, place: AwaitedPlace) -> None:
        place.seen, place.seen_wall = self._clock(), self._wall()


def _place_of(identity: bytes, line: AwaitedLine) -> AwaitedPlace | None:
    return next((place for place in line.places if place.identity == identity), None)
